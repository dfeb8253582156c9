package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

var nodeNoun = noun[client.HubNode]{
	singular: "node", plural: "nodes",
	header: []string{"NAME", "STATE", "SINCE", "STREAMS", "AGENT", "LAST-REPORT", "AGE"},
	wide:   []string{"CAPABILITIES", "LABELS", "CONDITIONS"},
	name:   func(n *client.HubNode) string { return n.NodeID },
	cells: func(n *client.HubNode, now time.Time) ([]string, []string) {
		var conditions []string
		for _, c := range n.Conditions {
			conditions = append(conditions, c.Type)
		}
		return []string{
				n.NodeID, nodeState(n), since(n.Since, now), strings.TrimPrefix(statesText(n.Streams), ", "), n.AgentVersion,
				ago(n.LastReportAt, now), since(n.CreatedAt, now),
			}, []string{
				strings.Join(n.Capabilities, ","), labelText(n.Labels), strings.Join(conditions, ","),
			}
	},
}

func nodeState(n *client.HubNode) string {
	state := string(n.State)
	if n.Deleting {
		state = "deleting"
	}
	for _, c := range n.Conditions {
		if c.Type == hub.ConditionIdentityConflict {
			state += " (identity conflict)"
		}
	}
	return state
}

func (a *app) nodeCommand() *cobra.Command {
	return parentCommand("node", "Register the nodes that streams run on, and see how they are",
		"Register the nodes that streams run on, and see how they are. A node is any Linux machine with freehold-agent on it.",
		a.nodeListCommand(), a.nodeShowCommand(), a.nodeRegisterCommand(), a.nodeEnrolCommand(), a.nodeConfigureCommand(), a.nodeDeleteCommand())
}

func (a *app) nodeListCommand() *cobra.Command {
	var out outputFlags
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Args: atMost(0),
		Example: "  freehold node list\n  freehold node list -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(a, out, nodeNoun, func(h client.Hub) ([]client.HubNode, error) { return h.Nodes(cmd.Context()) })
		},
	}
	out.addFormat(cmd)
	return cmd
}

func (a *app) nodeShowCommand() *cobra.Command {
	var out outputFlags
	cmd := &cobra.Command{
		Use: "show NODE", Short: "Show a node and its streams", Args: exactly("NODE"), ValidArgsFunction: a.completeNodes(),
		Example: "  freehold node show local\n  freehold node show local -o yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return show(a, out, nodeNoun, func(h client.Hub) (*client.HubNode, error) { return h.Node(ctx, args[0]) },
				func(d *description, h client.Hub, n *client.HubNode) error { return d.hubNode(ctx, h, n) })
		},
	}
	out.addFormat(cmd)
	return cmd
}

func (d *description) hubNode(ctx context.Context, h client.Hub, n *client.HubNode) error {
	d.line("Name", "%s", n.NodeID)
	d.line("State", "%s, for %s", nodeState(n), since(n.Since, d.now))
	d.line("Last report", "%s", ago(n.LastReportAt, d.now))
	d.line("Agent", "%s", n.AgentVersion)
	d.line("Capabilities", "%s", strings.Join(n.Capabilities, ", "))
	d.pairs("Labels", n.Labels)
	d.line("Created", "%s", d.when(n.CreatedAt))
	streams, err := h.Streams(ctx, n.NodeID)
	if err != nil {
		return err
	}
	var streamRows [][]string
	for i := range streams {
		if s := &streams[i]; s.StreamID == hub.NodeConfig {
			d.line("Configuration", "%s, %s", desiredText(s.Desired), convergenceText(s.Convergence, s.ConvergenceReason))
			continue
		}
		cells, _ := streamNoun.cells(&streams[i], d.now)
		streamRows = append(streamRows, cells[1:])
	}
	var rows [][]string
	for _, c := range n.Conditions {
		rows = append(rows, []string{c.Type, since(c.Since, d.now), since(c.LastSeen, d.now) + " ago", c.Message})
	}
	if len(rows) > 0 {
		d.section("Conditions", []string{"TYPE", "SINCE", "LAST SEEN", "MESSAGE"}, rows)
	}
	d.section("Streams", streamNoun.header[1:], streamRows)
	return nil
}

func (a *app) nodeRegisterCommand() *cobra.Command {
	var out outputFlags
	var labels map[string]string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "register NODE", Short: "Register a node, and tell what to run on it", Args: exactly("NODE"),
		Long: "Register a node, and tell what to run on it. The command that is printed holds a token that is good once and for a short\n" +
			"time; it makes the agent known under the node's name, with a key that never leaves the node.",
		Example: "  freehold node register edge-7 --labels site=berlin",
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.hubAPI()
			if err != nil {
				return err
			}
			got, err := h.RegisterNode(cmd.Context(), client.NodeRegistration{NodeID: args[0], Labels: labels, EnrolmentTTLSeconds: int(ttl.Seconds())}, client.MutationOptions{})
			if err != nil {
				return err
			}
			return a.tellEnrolment(out, got, "registered")
		},
	}
	cmd.Flags().StringToStringVar(&labels, "labels", nil, "labels, as KEY=VALUE")
	addTTLFlag(cmd, &ttl)
	out.addFormat(cmd)
	return cmd
}

func addTTLFlag(cmd *cobra.Command, ttl *time.Duration) {
	cmd.Flags().DurationVar(ttl, "ttl", 0, "how long the token is good for; default: 15m")
}

func (a *app) nodeEnrolCommand() *cobra.Command {
	var out outputFlags
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "enrol NODE", Aliases: []string{"enroll"}, Short: "Make a new enrolment token for a node, and tell what to run on it",
		Long: "Make a new enrolment token for a node that is registered: because the first one expired, because the machine was replaced, or\n" +
			"because two agents use one identity. When the token is used, the credentials that the node had before are void.",
		Args: exactly("NODE"), ValidArgsFunction: a.completeNodes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.hubAPI()
			if err != nil {
				return err
			}
			got, err := h.EnrolAgain(cmd.Context(), args[0], ttl, client.MutationOptions{})
			if err != nil {
				return err
			}
			return a.tellEnrolment(out, got, "may be enrolled again")
		},
	}
	addTTLFlag(cmd, &ttl)
	out.addFormat(cmd)
	return cmd
}

// tellEnrolment prints what to run on the node. The output holds the commands only, so that a script can pass them on.
func (a *app) tellEnrolment(out outputFlags, got *client.NodeEnrolment, done string) error {
	p, err := a.newPrinter(out)
	if err != nil {
		return err
	}
	switch {
	case p.f.format == "name":
		return printNames(p, nodeNoun, []client.HubNode{got.HubNode})
	case !p.tabular():
		return p.structured(got)
	}
	x, err := a.resolve()
	if err != nil {
		return err
	}
	server, err := client.ParseServer(x.Server)
	if err != nil {
		return err
	}
	left := got.TokenExpiresAt.Sub(a.Now())
	if left > 2*time.Minute {
		left = left.Round(time.Minute)
	}
	a.notef("node %s %s. Run this on it, within %s:\n\n", got.NodeID, done, age(left))
	command := fmt.Sprintf("freehold-agent enroll --server %s --node %s --token %s", server, got.NodeID, got.EnrolmentToken)
	if x.Fingerprint != "" {
		command += " --fingerprint " + x.Fingerprint
	}
	byAuthority := x.Fingerprint == "" && x.CertificateAuthority != "" // a fingerprint is trusted alone
	if byAuthority {
		command += " --certificate-authority ca.pem"
	}
	a.printf("%s\nfreehold-agent run\n", command)
	if byAuthority {
		a.notef("\nca.pem is %s: copy it to the node.\n", x.CertificateAuthority)
	}
	if client.IsLoopback(server.Hostname()) {
		a.notef("\n%s is this computer's own address: a node elsewhere needs one that it can reach.\n", server)
	}
	return nil
}

func (a *app) nodeConfigureCommand() *cobra.Command {
	var config configFlags
	var version string
	var rollback bool
	var f mutationFlags
	cmd := &cobra.Command{
		Use: "configure NODE", Short: "Declare a node's own configuration: labels, limits, where secrets come from", Args: exactly("NODE"),
		Example:           "  freehold node configure edge-7 -f node.yaml --wait\n  freehold node configure edge-7 --rollback",
		ValidArgsFunction: a.completeNodes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := 0
			for _, is := range []bool{config.file != "", version != "", rollback} {
				if is {
					given++
				}
			}
			if given != 1 {
				return &usageError{cmd.CommandPath(), errors.New("say one of -f FILE, --config-version and --rollback")}
			}
			h, err := a.hubAPI()
			if err != nil {
				return err
			}
			got, err := a.configureNode(cmd.Context(), h, args[0], config, version, f.options())
			if err != nil {
				return err
			}
			return a.accepted(cmd.Context(), h, "configuration of node "+args[0], got, f)
		},
	}
	cmd.Flags().StringVarP(&config.file, "filename", "f", "", "file with the configuration, or - (standard input)")
	config.engine = string(hub.EngineNode)
	config.addDescription(cmd)
	cmd.Flags().StringVar(&version, "config-version", "", "a config version of the engine node that was published before")
	cmd.Flags().BoolVar(&rollback, "rollback", false, "go back to the configuration that converged before this one")
	f.add(cmd)
	return cmd
}

func (a *app) configureNode(ctx context.Context, h client.Hub, node string, config configFlags, version string, o client.MutationOptions) (*client.StreamAccepted, error) {
	if config.file != "" {
		name, content, err := config.read(a)
		if err != nil {
			return nil, err
		}
		got, err := a.publish(ctx, h, name, content)
		if err != nil {
			return nil, err
		}
		version = got.ConfigVersion
		a.printf("config %s: %s, from %s\n", version, got.Engine, name)
	}
	if version == "" {
		return h.RollbackNodeConfig(ctx, node, o)
	}
	return h.ApplyNodeConfig(ctx, node, version, o)
}

func (a *app) nodeDeleteCommand() *cobra.Command {
	var force, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "delete NODE", Short: "Have a node's streams stopped, and the node forgotten", Args: exactly("NODE"),
		Long: "Have a node's streams stopped, and the node forgotten. It goes when its streams are gone; one that never comes back is removed\n" +
			"with --force, and whatever runs on it goes on until somebody stops it there.",
		Example: "  freehold node delete edge-7\n  freehold node delete edge-7 --force", ValidArgsFunction: a.completeNodes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.deleteNode(cmd.Context(), args[0], force, wait, timeout)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove it at once, without asking the node (needs the role admin)")
	addWaitFlags(cmd, &wait, &timeout, true, "wait until the node is gone")
	return cmd
}

func (a *app) deleteNode(ctx context.Context, node string, force, wait bool, timeout time.Duration) error {
	h, err := a.hubAPI()
	if err != nil {
		return err
	}
	gone, err := h.DeleteNode(ctx, node, force, client.MutationOptions{})
	if err != nil {
		return err
	}
	if gone.Deleted {
		a.printf("node/%s deleted\n", node)
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &timeoutError{timeout})
	defer cancel()
	told := ""
	trouble := a.reconnecting()
	for {
		n, err := h.Node(ctx, node)
		switch {
		case client.IsNotFound(err):
			a.printf("node/%s deleted\n", node)
			return nil
		case ctx.Err() == nil && err != nil && !mayRecover(err):
			return err
		case err != nil && ctx.Err() == nil:
			trouble(err)
		case err == nil:
			text := fmt.Sprintf("node/%s is being deleted", node)
			if left := total(n.Streams); left > 0 {
				text += fmt.Sprintf(": %s to be stopped", countOf(left, "stream"))
			}
			if n.State == hub.PresenceOffline {
				text += "; it is offline, and goes on when it is back (or at once, with --force)"
			}
			if text != told {
				told = text
				a.notef("%s\n", text)
			}
			if !wait {
				return nil
			}
		}
		if err := pause(ctx, refresh/2); err != nil {
			return fmt.Errorf("node %s is not gone yet, its deletion goes on: %w", node, err)
		}
	}
}

func total(states map[hub.ConvergenceState]int) int {
	n := 0
	for _, count := range states {
		n += count
	}
	return n
}

func (a *app) completeNodes() completer {
	return a.completeWith(func(ctx context.Context, h client.Hub) ([]string, error) {
		nodes, err := h.Nodes(ctx)
		var names []string
		for _, n := range nodes {
			names = append(names, n.NodeID)
		}
		return names, err
	})
}

// completeStreams completes names of streams: with their nodes, unless the node is given.
func (a *app) completeStreams(f *nodeFlag) completer {
	return a.completeWith(func(ctx context.Context, h client.Hub) ([]string, error) {
		streams, err := streamsOf(ctx, h, f.node)
		var names []string
		for i := range streams {
			if removed(&streams[i]) {
				continue
			}
			name := streamNoun.name(&streams[i])
			if f.node != "" {
				name = streams[i].StreamID
			}
			names = append(names, name)
		}
		return names, err
	})
}
