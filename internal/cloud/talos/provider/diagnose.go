package provider

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const maxAnswer = 2000

// operation is something that is asked of a machine, in words for diagnostics.
type operation struct {
	// doing completes "while …", refuses completes "the machine …", then is what to do after that.
	doing, refuses, then string
}

var (
	applying = operation{"applying its configuration", "refuses its configuration",
		"It keeps the configuration that it had, if any. Correct the configuration or config_patches, and apply again."}
	bootstrapping = operation{"bootstrapping etcd on it", "refuses to bootstrap etcd", "Bootstrap one control-plane machine of the cluster, and no other."}
	asking        = operation{"asking it for a kubeconfig", "gives no kubeconfig", "Ask a control-plane machine of a cluster that was bootstrapped."}
	resetting     = operation{"resetting it", "refuses to reset itself",
		"If it cannot leave its cluster in order, apply on_destroy = { reset = true, graceful = false } first."}
)

// explain turns what went wrong with a machine into the summary and detail of a diagnostic. redact takes secrets out of
// the machine's own words.
func explain(m *machine, op operation, err error, redact func(string) string) (summary, detail string) {
	doing := op.doing
	who := m.node
	if m.forwards {
		who += " (reached through " + m.address + ")"
	}
	answer := func(e error) string {
		text := redact(answerText(e))
		if len(text) > maxAnswer {
			text = strings.ToValidUTF8(text[:maxAnswer], "") + "…"
		}
		return text
	}
	var over *gaveUpError
	var stopped *interrupted
	switch {
	case errors.As(err, &stopped):
		return "Interrupted at " + who, fmt.Sprintf("The run was stopped while %s. What the machine has taken already stays; run again to continue.\n\nLast seen: %s",
			doing, answer(stopped.last))
	case errors.Is(err, errForeign):
		return who + " belongs to another cluster", fmt.Sprintf("The machine at %s has a configuration already, and its certificate does not come from this "+
			"cluster's authority. It was left as it is.\n\nCheck that the address is right. To use the machine here, reset it first "+
			"(talosctl reset --system-labels-to-wipe STATE --system-labels-to-wipe EPHEMERAL --reboot, with the other cluster's talosconfig), "+
			"or boot it from Talos' installation medium, so that it comes up in maintenance mode.", m.address)
	case errors.Is(err, errUnconfigured):
		return who + " has no configuration", fmt.Sprintf("The machine at %s is in maintenance mode, since its configuration could not be applied: "+
			"that error is told beside this one. It was not waited for any longer.", m.address)
	case errors.As(err, &over) && errors.Is(over.last, errMaintenance):
		return who + " has no configuration", fmt.Sprintf("The machine at %s was still in maintenance mode after %s while %s.\n\n"+
			"Apply its configuration first (talos_machine_configuration_apply), and let this resource depend on it.", m.address, over.after, doing)
	case errors.As(err, &over) && isAnswer(over.last):
		return who + " was not ready in time", fmt.Sprintf("Tried %d times in %s while %s. The machine's last words: %s\n\n"+
			"Look at its console or `talosctl dmesg`. A longer time can be set in timeouts.", over.attempts, over.after, doing, answer(over.last))
	case errors.As(err, &over):
		return who + " cannot be reached", fmt.Sprintf("Tried %s %d times in %s while %s. Last: %s\n\nCheck that %s. A longer time can be set in timeouts.",
			m.address, over.attempts, over.after, doing, answer(over.last), whatToCheck(over.last))
	case status.Code(err) == codes.PermissionDenied, status.Code(err) == codes.Unauthenticated:
		return who + " denies access", fmt.Sprintf("While %s, the machine answered: %s\n\nThe client certificate must carry the role os:admin and still be valid.",
			doing, answer(err))
	}
	return who + " " + op.refuses, fmt.Sprintf("While %s, the machine answered: %s\n\n%s", doing, answer(err), op.then)
}

// answerText is the message of an answer without gRPC's wrapping.
func answerText(err error) string {
	if s, ok := status.FromError(err); ok {
		return strings.TrimSpace(s.Message())
	}
	return err.Error()
}

// isAnswer tells an answer of the machine from a failure to reach it.
func isAnswer(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() != codes.Unavailable && s.Code() != codes.DeadlineExceeded && s.Code() != codes.Canceled
}

func whatToCheck(err error) string {
	var dns *net.DNSError
	text := err.Error()
	switch {
	case errors.As(err, &dns):
		return "the name is right and can be resolved here"
	case errors.As(err, new(x509.HostnameError)), strings.Contains(text, "certificate is valid for"), strings.Contains(text, "doesn't contain any IP SANs"):
		return "the machine's certificate names this address: add it to machine.certSANs in the configuration"
	case errors.As(err, new(x509.CertificateInvalidError)), strings.Contains(text, "has expired or is not yet valid"):
		return "the clocks of the machine and of this one agree"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Talos runs on the machine (booted, not at the boot loader or an installer's prompt) and that the address is that of the machine"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "the machine is switched on and a route leads to it from here"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "the machine is switched on, the address is right, and no firewall drops port 50000 on the way"
	}
	return "the machine is switched on, the address is right, and port 50000 is open on the way"
}
