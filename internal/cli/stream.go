package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

var streamNoun = noun[client.Stream]{
	singular: "stream", plural: "streams",
	header: []string{"NODE", "STREAM", "DESIRED", "OBSERVED", "CONVERGENCE", "CONFIG", "GEN", "SINCE"},
	wide:   []string{"OPERATION", "FAILURE"},
	name:   func(s *client.Stream) string { return hub.StreamName(s.NodeID, s.StreamID) },
	cells: func(s *client.Stream, now time.Time) ([]string, []string) {
		var desired hub.Desired
		if s.Desired != nil {
			desired = *s.Desired
		}
		observed := ""
		if s.Observed != nil {
			observed = string(s.Observed.State)
		}
		generation := ""
		if desired.Generation > 0 {
			generation = fmt.Sprint(desired.Generation)
		}
		state := string(s.Convergence)
		if s.ConvergenceReason != "" {
			state += " (" + s.ConvergenceReason + ")"
		}
		return []string{s.NodeID, s.StreamID, string(desired.State), observed, state, desired.ConfigVersion, generation, since(s.ConvergenceSince, now)},
			[]string{s.IntentID, failureOf(s.Observed)}
	},
}

func (a *app) streamCommand() *cobra.Command {
	return parentCommand("stream", "Run streams on nodes, and see what they do",
		"Run streams on nodes, and see what they do.\n\nA stream is a pipeline or a program that a node runs: what it is, is a config version. It is named by its node and its\n"+
			"own name, as local/orders or as orders --node local.",
		a.streamRunCommand(), a.streamListCommand(), a.streamShowCommand(),
		a.streamStateCommand(hub.Running), a.streamStateCommand(hub.Stopped), a.streamRestartCommand(), a.streamRollbackCommand(), a.streamStateCommand(hub.Absent),
		a.streamLogsCommand(), a.streamTopCommand(), a.streamWatchCommand())
}

// nodeFlag names the node of streams.
type nodeFlag struct{ node string }

func (f *nodeFlag) add(a *app, cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP(&f.node, "node", "n", "", usage)
	_ = cmd.RegisterFlagCompletionFunc("node", a.completeNodes())
}

const nodeUsage = "the node of the stream, unless it is named NODE/STREAM"

// streamRef names one stream.
type streamRef struct{ node, stream string }

func (r streamRef) String() string { return "stream/" + hub.StreamName(r.node, r.stream) }

// words is the name in a sentence.
func (r streamRef) words() string { return "stream " + hub.StreamName(r.node, r.stream) }

// ref understands STREAM with --node, NODE/STREAM, and stream/NODE/STREAM as -o name prints it.
func (f *nodeFlag) ref(name string) (streamRef, error) {
	parts := strings.Split(name, "/")
	if len(parts) == 3 && parts[0] == "stream" {
		parts = parts[1:]
	}
	switch {
	case len(parts) == 1 && f.node != "" && name != "":
		return streamRef{f.node, name}, nil
	case len(parts) == 1:
		return streamRef{}, fmt.Errorf("on which node is %s? Say --node NODE, or NODE/%s", name, name)
	case len(parts) != 2 || parts[0] == "" || parts[1] == "":
		return streamRef{}, fmt.Errorf("%q: name a stream as NODE/STREAM, or as STREAM with --node", name)
	case f.node != "" && f.node != parts[0]:
		return streamRef{}, fmt.Errorf("%s is on another node than --node %s", name, f.node)
	}
	return streamRef{parts[0], parts[1]}, nil
}

// streamCommandFor is a command about one stream.
func (a *app) streamCommandFor(cmd *cobra.Command, run func(ctx context.Context, r streamRef) error) *cobra.Command {
	var nodes nodeFlag
	cmd.Use += " STREAM"
	cmd.Args = exactly("STREAM")
	cmd.ValidArgsFunction = a.completeStreams(&nodes)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := nodes.ref(args[0])
		if err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		return run(cmd.Context(), r)
	}
	nodes.add(a, cmd, nodeUsage)
	return cmd
}

// mutationFlags guard a change, and tell whether to wait for it.
type mutationFlags struct {
	wait         bool
	timeout      time.Duration
	ifGeneration int64
	key          string
}

func (f *mutationFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.wait, "wait", false, "show how it comes true, and end when it has, or cannot")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait")
	cmd.Flags().Int64Var(&f.ifGeneration, "if-generation", -1, "change nothing unless this is the stream's generation; 0: unless it is new")
	cmd.Flags().StringVar(&f.key, "idempotency-key", "", "a key under which the same command may be repeated without being done twice")
	cmd.Flags().Lookup("if-generation").DefValue = "" // any generation
}

func (f *mutationFlags) options() client.MutationOptions {
	o := client.MutationOptions{IdempotencyKey: f.key}
	if f.ifGeneration >= 0 {
		o.IfGeneration = &f.ifGeneration
	}
	return o
}

// accepted tells what was accepted, and follows it if that was asked for.
func (a *app) accepted(ctx context.Context, h client.Hub, what string, got *client.StreamAccepted, f mutationFlags) error {
	want := hub.Desired{State: got.DesiredState, Generation: got.Generation, ConfigVersion: got.ConfigVersion, ActionID: got.ActionID}
	a.printf("%s: %s accepted: %s\n", what, got.IntentID, desiredText(&want))
	if !f.wait {
		return nil
	}
	if err := a.converge(ctx, h, what, got, f.timeout); err != nil {
		return err
	}
	a.printf("%s: in_sync\n", what)
	return nil
}

// streamStateCommand is start, stop or remove.
func (a *app) streamStateCommand(state hub.State) *cobra.Command {
	var f mutationFlags
	cmd := map[hub.State]*cobra.Command{
		hub.Running: {Use: "start", Short: "Have a stream run, with the configuration that it has", Example: "  freehold stream start orders --node local --wait"},
		hub.Stopped: {Use: "stop", Short: "Have a stream stopped; what is on its way is delivered first", Example: "  freehold stream stop local/orders"},
		hub.Absent: {
			Use: "remove", Aliases: []string{"rm"}, Short: "Have a stream stopped and forgotten by its node",
			Example: "  freehold stream remove local/orders --wait",
		},
	}[state]
	f.add(cmd)
	return a.streamCommandFor(cmd, func(ctx context.Context, r streamRef) error {
		h, err := a.hubAPI()
		if err != nil {
			return err
		}
		// A state that is written makes the stream; these commands are about one that is there.
		if _, err := h.Stream(ctx, r.node, r.stream); err != nil {
			return err
		}
		got, err := h.SetDesiredState(ctx, r.node, r.stream, client.DesiredState{State: state}, f.options())
		if err != nil {
			return err
		}
		return a.accepted(ctx, h, r.words(), got, f)
	})
}

func (a *app) streamRestartCommand() *cobra.Command {
	var f mutationFlags
	cmd := &cobra.Command{
		Use: "restart", Short: "Restart a stream, once",
		Long: "Restart a stream, once: the node proves that it did, and does not do it again, whatever is lost on the way. One that the\n" +
			"node began and cannot prove finished is reported as interrupted, and blocks.",
		Example: "  freehold stream restart local/orders --wait",
	}
	f.add(cmd)
	return a.streamCommandFor(cmd, func(ctx context.Context, r streamRef) error {
		h, err := a.hubAPI()
		if err != nil {
			return err
		}
		got, err := h.RestartStream(ctx, r.node, r.stream, "", f.options())
		if err != nil {
			return err
		}
		return a.accepted(ctx, h, r.words(), got, f)
	})
}

func (a *app) streamRollbackCommand() *cobra.Command {
	var f mutationFlags
	cmd := &cobra.Command{
		Use: "rollback", Short: "Give a stream the config version that it ran before", Example: "  freehold stream rollback local/orders --wait",
	}
	f.add(cmd)
	return a.streamCommandFor(cmd, func(ctx context.Context, r streamRef) error {
		h, err := a.hubAPI()
		if err != nil {
			return err
		}
		got, err := h.RollbackConfig(ctx, r.node, r.stream, f.options())
		if err != nil {
			return err
		}
		return a.accepted(ctx, h, r.words(), got, f)
	})
}

func (a *app) streamListCommand() *cobra.Command {
	var nodes nodeFlag
	var out outputFlags
	var convergence string
	var all bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List streams", Args: atMost(0),
		Example: "  freehold stream list\n  freehold stream list --node local -o wide\n  freehold stream list --convergence blocked -o name",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if convergence != "" && !slices.Contains(convergences, convergence) {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--convergence %s: choose one of %s", convergence, strings.Join(convergences, ", "))}
			}
			return list(a, out, streamNoun, func(h client.Hub) ([]client.Stream, error) {
				streams, err := streamsOf(cmd.Context(), h, nodes.node)
				return slices.DeleteFunc(streams, func(s client.Stream) bool {
					return convergence != "" && string(s.Convergence) != convergence || !all && removed(&s)
				}), err
			})
		},
	}
	nodes.add(a, cmd, "the streams of this node only")
	out.addFormat(cmd)
	addConvergenceFlag(cmd, &convergence)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "those that were removed, too: the server remembers them for their generation")
	return cmd
}

// removed tells of a stream that was removed, and is.
func removed(s *client.Stream) bool { return hub.Removed(s.Desired, s.Convergence) }

var convergences = []string{"unknown", "pending", "applying", "in_sync", "degraded", "blocked"}

func addConvergenceFlag(cmd *cobra.Command, convergence *string) {
	cmd.Flags().StringVar(convergence, "convergence", "", "those of this convergence only: unknown, pending, applying, in_sync, degraded or blocked")
	_ = cmd.RegisterFlagCompletionFunc("convergence", cobra.FixedCompletions(convergences, cobra.ShellCompDirectiveNoFileComp))
}

// streamsOf reads the streams of a node, or of all nodes. What is declared of the nodes themselves is not among them.
func streamsOf(ctx context.Context, h client.Hub, node string) ([]client.Stream, error) {
	read := h.AllStreams
	if node != "" {
		read = func(ctx context.Context) ([]client.Stream, error) { return h.Streams(ctx, node) }
	}
	all, err := read(ctx)
	return slices.DeleteFunc(all, func(s client.Stream) bool { return s.StreamID == hub.NodeConfig }), err
}

func (a *app) streamShowCommand() *cobra.Command {
	var out outputFlags
	cmd := &cobra.Command{
		Use: "show", Short: "Show a stream: what is asked for, what its node reports, and what was done",
		Example: "  freehold stream show local/orders\n  freehold stream show orders --node local -o yaml",
	}
	out.addFormat(cmd)
	return a.streamCommandFor(cmd, func(ctx context.Context, r streamRef) error {
		return show(a, out, streamNoun, func(h client.Hub) (*client.Stream, error) { return h.Stream(ctx, r.node, r.stream) },
			func(d *description, h client.Hub, s *client.Stream) error { return d.stream(ctx, h, s) })
	})
}

func (d *description) stream(ctx context.Context, h client.Hub, s *client.Stream) error {
	d.line("Stream", "%s", s.StreamID)
	d.line("Node", "%s", s.NodeID)
	d.line("Convergence", "%s, for %s", convergenceText(s.Convergence, s.ConvergenceReason), since(s.ConvergenceSince, d.now))
	d.line("Desired", "%s", first(desiredText(s.Desired), "<nothing: the node has it by itself>"))
	d.line("Observed", "%s", first(observedText(s.Observed), "<nothing yet>"))
	if s.Observed != nil {
		d.line("Reported", "%s", d.when(s.Observed.ReportedAt))
	}
	if f := failureOf(s.Observed); f != "" {
		d.line("Failure", "%s", f)
	}
	d.line("Operation", "%s", s.IntentID)
	if s.AttemptID != "" {
		d.line("Attempt", "%s", s.AttemptID)
	}
	d.line("Created", "%s", d.when(s.CreatedAt))
	m, err := h.Metrics(ctx, s.NodeID, s.StreamID)
	switch {
	case err == nil && m.ReportedAt != nil:
		d.metrics(m)
	case err != nil && !client.IsNotFound(err) && !client.IsNodeUnavailable(err):
		return err
	}
	ops, err := h.Operations(ctx, client.OperationFilter{Node: s.NodeID, Resource: s.StreamID}, 5)
	if err != nil {
		return err
	}
	var rows [][]string
	for i := range ops {
		cells, _ := operationNoun.cells(&ops[i], d.now)
		rows = append(rows, slices.Delete(cells, 1, 2)) // the stream is known
	}
	d.section("Operations", slices.Delete(slices.Clone(operationNoun.header), 1, 2), rows)
	return nil
}

func (d *description) metrics(m *client.StreamMetrics) {
	d.line("Input", "%d messages, %s/s", m.InputMessages, rate(m.InputPerSecond))
	d.line("Output", "%d messages, %s/s", m.OutputMessages, rate(m.OutputPerSecond))
	d.line("Errors", "%d, %s/s", m.Errors, rate(m.ErrorsPerSecond))
	if m.LagMessages >= 0 {
		d.line("Waiting input", "%d messages", m.LagMessages)
	}
	d.line("Process", "up %s, %d restarts, %.1fs of CPU, %s", age(inSeconds(m.UptimeSeconds)), m.Restarts, m.CPUSeconds, bytesText(m.MemoryBytes))
	d.line("Measured", "%s", d.when(*m.ReportedAt))
}
