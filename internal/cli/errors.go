package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"freehold.dev/freehold/client"
)

// usageError is a command line that cannot be understood.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }

// tell writes an error the way an operator reads it: what is wrong, each fault of a refused object by its field,
// and what to do next.
func tell(out io.Writer, err error) {
	w := new(strings.Builder)
	defer func() { _, _ = io.WriteString(out, w.String()) }()
	var usage *usageError
	var refused *client.Error
	var connect *client.ConnectError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(w, "error: %s\nSee '%s --help' for usage.\n", usage.err, usage.command)
	case errors.As(err, &refused):
		tellRefused(w, err, refused)
	case errors.As(err, &connect):
		tellConnect(w, err, connect)
	default:
		fmt.Fprintln(w, "error:", err)
	}
}

func tellRefused(w *strings.Builder, err error, e *client.Error) {
	tellFaults(w, strings.Replace(err.Error(), e.Error(), e.Message, 1), e.Causes)
	if isCode(e.Reason) {
		fmt.Fprintf(w, "  code %s, request %s\n", e.Reason, first(e.CorrelationID, "unknown"))
	}
	switch {
	case client.IsUnauthorized(e):
		fmt.Fprintln(w, "  to log in: freehold login")
	case client.IsForbidden(e):
		fmt.Fprintln(w, "  freehold whoami tells your role; an admin can change it")
	case e.Code >= 500 && e.CorrelationID != "" && e.Reason != client.CodeNodeUnavailable:
		fmt.Fprintf(w, "  the server's log has more, under request %s\n", e.CorrelationID)
	}
}

// isCode tells whether a reason is one of the Hub's codes, such as generation_conflict, and not the status in words.
func isCode(reason string) bool { return reason != "" && reason == strings.ToLower(reason) }

// tellFaults writes a refusal with a line for each of several faults. What the server's message repeats of them is left
// out of the first line.
func tellFaults(w *strings.Builder, text string, causes []client.Cause) {
	if len(causes) == 1 && strings.Contains(text, causes[0].Message) && strings.Contains(text, causes[0].Field) {
		causes = nil
	}
	lines := make([]string, len(causes))
	for i, c := range causes {
		lines[i] = c.Message
		if c.Field != "" {
			lines[i] = c.Field + ": " + c.Message
		}
	}
	if len(lines) > 0 {
		if head, _, repeated := strings.Cut(text, lines[0]); repeated {
			text = strings.TrimRight(head, ": ")
		}
	}
	fmt.Fprintln(w, "error:", text)
	for _, line := range lines {
		fmt.Fprintf(w, "  %s\n", line)
	}
}

func tellConnect(w *strings.Builder, err error, e *client.ConnectError) {
	switch cert := e.Certificate(); {
	case e.Refused():
		fmt.Fprintf(w, "error: no server answers at %s: connection refused\n", e.Server)
		fmt.Fprintln(w, "  start one here:         freehold dev\n  or log in to another:   freehold login https://HOST:PORT")
	case e.Untrusted() && cert != nil:
		sum := sha256.Sum256(cert.Raw)
		fmt.Fprintf(w, "error: the certificate of %s is not trusted: %v\n", e.Server, e.Err)
		fmt.Fprintf(w, "  give its authority:     --certificate-authority FILE\n"+
			"  or, if the server shows the same fingerprint, trust it alone:\n  --fingerprint sha256:%s\n", hex.EncodeToString(sum[:]))
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		fmt.Fprintf(w, "error: the server at %s speaks HTTP without TLS\n  use: %s\n", e.Server, strings.Replace(e.Server, "https://", "http://", 1))
	default:
		fmt.Fprintln(w, "error:", err)
	}
}
