package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/client/clienttest"
	"freehold.dev/freehold/internal/hub"
)

const (
	benthosConfig = "input:\n  generate:\n    mapping: root = \"hello\"\noutput:\n  stdout: {}\n"
	processConfig = "command: /usr/bin/yes\nrestart: always\n"
)

// newHubShell is a shell whose server has the nodes local (online) and far (offline), and whose home has configurations.
func newHubShell(t *testing.T) *shell {
	s := newShell(t)
	reported := epoch.Add(80 * time.Second)
	s.server.AddNode(client.HubNode{
		NodeID: "local", State: hub.PresenceOnline, Since: epoch, AgentVersion: "1.0.0", LastReportAt: &reported, Capabilities: []string{"benthos", "process"},
		Labels: map[string]string{"site": "berlin"},
	})
	s.server.AddNode(client.HubNode{
		NodeID: "far", State: hub.PresenceOffline, Since: epoch,
		Conditions: []hub.Condition{{Type: hub.ConditionIdentityConflict, Message: "two agents use this identity", Since: epoch, LastSeen: epoch}},
	})
	t.Chdir(s.home)
	for name, content := range map[string]string{"orders.yaml": benthosConfig, "ticker.yaml": processConfig, "odd.yaml": "a: 1\n", "node.yaml": "labels: {site: berlin}\n"} {
		if err := os.WriteFile(filepath.Join(s.home, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// faulty finds a fault in whatever says "inptu".
func faulty(c client.ConfigContent) []hub.Lint {
	for i, line := range strings.Split(c.Content, "\n") {
		if col := strings.Index(line, "inptu"); col >= 0 {
			return []hub.Lint{{Line: i + 1, Column: col + 1, Message: "field inptu is not known"}}
		}
	}
	return nil
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Fatalf("%q is not in:\n%s", p, text)
		}
	}
}

func TestStreamsAtTheTerminal(t *testing.T) {
	s := newHubShell(t)
	text := s.transcript("stream list", "stream run orders --node local -f orders.yaml", "stream run local/ticker -f ticker.yaml", "stream run far/orders --config-version cfg-1")
	s.server.Converge("local", "orders")
	s.server.Observe("local", "ticker", func(v *client.Stream, o *client.Operation) {
		f := &hub.Failure{Class: hub.Permanent, Code: "start_failed", Message: "no such program: /usr/bin/yes"}
		v.Convergence, v.ConvergenceReason = hub.ConvergenceBlocked, "start_failed"
		v.Observed = &hub.Observed{State: hub.Failed, Generation: 1, ConfigVersion: "cfg-2", Failure: f, ReportedAt: epoch}
		o.State, o.Failure, o.Observed, o.Convergence, o.ConvergenceReason = hub.Blocked, f, v.Observed, v.Convergence, v.ConvergenceReason
		o.AttemptID, o.Attempts = "attempt-1", 1
		o.Attempt = &client.OperationAttempt{State: hub.AttemptFail, DispatchedAt: &epoch, AcknowledgedAt: &epoch, FinishedAt: &epoch, Result: f}
	})
	reported := epoch.Add(85 * time.Second)
	s.server.SetMetrics(client.StreamMetrics{
		NodeID: "local", StreamID: "orders", ReportedAt: &reported, InputPerSecond: 1234, OutputPerSecond: 3.25,
		Metrics: agentapi.Metrics{InputMessages: 1_200_000, OutputMessages: 15_000, Errors: 3, LagMessages: -1, Restarts: 1, UptimeSeconds: 80, CPUSeconds: 1.5, MemoryBytes: 48 << 20},
	})
	text += s.transcript("stream list", "stream ls -n local -o wide", "stream list --convergence blocked -o name", "stream show orders --node local",
		"stream show local/ticker", "stream show local/orders -o yaml", "stream top", "stream top local/orders --sort cpu", "stream top local/none",
		"stream stop local/orders", "stream start local/orders --if-generation 1", "stream restart local/orders", "stream start local/orders", "stream restart local/orders",
		"stream rollback local/orders", "stream remove orders -n local", "stream stop local/none", "stream run orders -f orders.yaml", "stream run local/orders",
		"stream run local/x -f odd.yaml", "stream run local/x -f none.yaml", "stream run far/orders -n local -f orders.yaml", "stream run nowhere/orders -f orders.yaml",
		"stream run local/orders -f orders.yaml --if-generation 0", "stream list --convergence broken", "stream run local/x -f orders.yaml --config-version cfg-1",
		"stream lst", "stream launch")
	golden(t, "stream", text)
}

func TestRemovedStreamsAreListedOnlyWhenAskedFor(t *testing.T) {
	s := newHubShell(t)
	s.ok("stream", "run", "local/orders", "-f", "orders.yaml")
	s.ok("stream", "remove", "local/orders")
	if out := s.ok("stream", "list", "-o", "name"); out != "stream/local/orders\n" {
		t.Fatalf("while it is being removed: %q", out)
	}
	s.server.Converge("local", "orders")
	if out := s.ok("stream", "list", "-o", "name"); out != "" {
		t.Fatal(out)
	}
	if out := s.ok("stream", "list", "--all", "-o", "name"); out != "stream/local/orders\n" {
		t.Fatal(out)
	}
}

func TestNodesAtTheTerminal(t *testing.T) {
	s := newHubShell(t)
	s.ok("stream", "run", "local/orders", "-f", "orders.yaml")
	text := s.transcript("node list", "node list -o wide", "node show local", "node show far", "node show none", "node show local -o name",
		"node register edge-7 --labels site=hamburg", "node register edge-7", "node register edge-8 -o yaml", "node enrol far --ttl 1h",
		"node register edge-9 --fingerprint "+strings.Repeat("ab", 32),
		"node configure local -f node.yaml", "node configure local", "node delete edge-7", "node delete far --wait=false", "node delete far --force", "node delete none")
	golden(t, "node", text)
}

func TestConfigVersionsAtTheTerminal(t *testing.T) {
	s := newHubShell(t)
	s.server.LintWith(faulty)
	bad := "input:\n  generate: {}\n  inptu: 1\noutput:\n  drop: {}\n"
	if err := os.WriteFile("bad.yaml", []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	golden(t, "config", s.transcript("config list", "config publish -f orders.yaml --description first", "config publish -f orders.yaml -o name", "config publish -f bad.yaml",
		"config validate -f bad.yaml", "config validate -f ticker.yaml", "config publish -f odd.yaml", "config publish -f odd.yaml --engine benthos", "config publish", "config list -o wide",
		"config show cfg-1", "config show cfg-1 --raw", "config show cfg-9", "stream run local/orders -f bad.yaml", "config", "config get-contexts", "context list"))
}

func TestOperationsAtTheTerminal(t *testing.T) {
	s := newHubShell(t)
	s.ok("stream", "run", "local/orders", "-f", "orders.yaml")
	s.server.Converge("local", "orders")
	s.ok("stream", "run", "far/orders", "-f", "orders.yaml")
	golden(t, "operation", s.transcript("operation list", "operation list --node local -o wide", "operation list --state blocked", "operation show intent-1-1",
		"operation cancel intent-1-2", "operation cancel intent-1-1", "operation cancel intent-9-9", "operation show intent-1-2 -o jsonpath={.state}"))
}

func TestRunWaitsAndShowsConvergence(t *testing.T) {
	s := newHubShell(t)
	b := s.background("stream", "run", "orders", "--node", "local", "-f", "orders.yaml", "--wait")
	await(t, "the acceptance", func() bool { return strings.Contains(b.err.String(), "pending") })
	s.server.Observe("local", "orders", func(v *client.Stream, o *client.Operation) {
		v.Convergence, o.State, o.AttemptID, o.Attempts = hub.Applying, hub.Converging, "attempt-1", 1
		o.Attempt = &client.OperationAttempt{State: hub.Acknowledged}
	})
	await(t, "the attempt", func() bool { return strings.Contains(b.err.String(), "accepted by the node") })
	s.server.DropStreams()
	s.server.Observe("local", "orders", func(v *client.Stream, o *client.Operation) {
		v.Observed = &hub.Observed{State: hub.Starting, Generation: 1, ConfigVersion: "cfg-1"}
	})
	await(t, "the report", func() bool {
		return strings.Contains(b.err.String(), "the node reports: starting, generation 1, cfg-1")
	})
	s.server.Converge("local", "orders")
	if code := b.ends(t); code != 0 {
		t.Fatalf("exit %d\n%s", code, b.err.String())
	}
	want(t, b.out.String(), "config cfg-1: benthos, from orders.yaml", "stream local/orders: intent-1-1 accepted: running, generation 1, cfg-1", "stream local/orders: in_sync")
	has(t, b.err.String(), "0.0s  pending", "applying", "in_sync")
}

func TestRunFailsWithTheReasonWhenItIsBlocked(t *testing.T) {
	s := newHubShell(t)
	b := s.background("stream", "run", "local/ticker", "-f", "ticker.yaml", "--wait")
	await(t, "the acceptance", func() bool { return strings.Contains(b.err.String(), "pending") })
	block(s, "local", "ticker")
	if code := b.ends(t); code != 1 {
		t.Fatalf("exit %d\n%s", code, b.err.String())
	}
	has(t, b.err.String(), "error: stream local/ticker is blocked: exited with status 3 (exit_status, permanent)", "freehold operation show intent-1-1")
	if strings.Contains(b.out.String(), "in_sync") {
		t.Fatal(b.out.String())
	}
}

func block(s *shell, node, stream string) {
	s.server.Observe(node, stream, func(v *client.Stream, o *client.Operation) {
		v.Convergence, v.ConvergenceReason, o.State = hub.ConvergenceBlocked, "exit_status", hub.Blocked
		o.Failure = &hub.Failure{Class: hub.Permanent, Code: "exit_status", Message: "exited with status 3"}
	})
}

func TestAWaitEndsWhenTheOperationIsOvertaken(t *testing.T) {
	s := newHubShell(t)
	b := s.background("stream", "run", "far/orders", "-f", "orders.yaml", "--wait")
	await(t, "the acceptance", func() bool { return strings.Contains(b.err.String(), "pending") })
	s.ok("stream", "stop", "far/orders")
	if code := b.ends(t); code != 1 || !strings.Contains(b.err.String(), "stream far/orders was changed again meanwhile: intent-1-1 is superseded") {
		t.Fatalf("exit %d\n%s", code, b.err.String())
	}
	c := s.background("stream", "restart", "far/orders", "--wait")
	if code := c.ends(t); code != 1 || !strings.Contains(c.err.String(), "code stream_not_running") {
		t.Fatalf("exit %d\n%s", code, c.err.String())
	}
	d := s.background("stream", "start", "far/orders", "--wait")
	await(t, "the acceptance", func() bool { return strings.Contains(d.err.String(), "pending") })
	s.ok("operation", "cancel", "intent-3-3")
	if code := d.ends(t); code != 1 || !strings.Contains(d.err.String(), "intent-3-3 was cancelled before stream far/orders came to it") {
		t.Fatalf("exit %d\n%s", code, d.err.String())
	}
}

func TestAWaitHasADeadlineAndSaysWhatItWaitedFor(t *testing.T) {
	s := newHubShell(t)
	s.ok("stream", "run", "far/orders", "-f", "orders.yaml")
	s.server.Observe("far", "orders", func(v *client.Stream, _ *client.Operation) { v.ConvergenceReason = "node_offline" })
	if e := s.fails("stream", "run", "far/orders", "-f", "orders.yaml", "--wait", "--timeout", "300ms"); !strings.Contains(e, "error: stream far/orders: gave up after 300ms: it is pending") {
		t.Fatal(e)
	}
	b := s.background("stream", "run", "far/orders", "-f", "orders.yaml", "--wait")
	await(t, "the acceptance", func() bool { return strings.Contains(b.err.String(), "pending") })
	b.stop()
	if code := b.ends(t); code != 130 || !strings.Contains(b.err.String(), "The server goes on without you. To look again:\n  freehold operation show intent-3-3") {
		t.Fatalf("exit %d\n%s", code, b.err.String())
	}
}

// A server that is away for a moment is waited for.
func TestAWaitOutlivesTheServersRestart(t *testing.T) {
	s := newHubShell(t)
	b := s.background("stream", "run", "local/orders", "-f", "orders.yaml", "--wait")
	await(t, "the acceptance", func() bool { return strings.Contains(b.err.String(), "pending") })
	s.server.FailNext(503, 503, 503, 503, 503, 503, 503, 503)
	s.server.DropStreams()
	await(t, "the trouble", func() bool { return strings.Contains(b.err.String(), "trying again") })
	s.server.Converge("local", "orders")
	if code := b.ends(t); code != 0 {
		t.Fatalf("exit %d\n%s", code, b.err.String())
	}
}

// Several lines are written at once, and none is lost or told twice.
func TestLogsAreFollowed(t *testing.T) {
	s := newHubShell(t)
	s.ok("stream", "run", "local/orders", "-f", "orders.yaml")
	line := func(source, text string) agentapi.LogLine {
		return agentapi.LogLine{Time: epoch, Source: source, Text: text}
	}
	s.server.AppendLog("local", "orders", line("stdout", "one"), line("stderr", "two"), line("agent", "started again"))
	if out := s.ok("stream", "logs", "local/orders", "--tail", "2"); out != "two\nagent: started again\n" {
		t.Fatalf("%q", out)
	}
	if out := s.ok("stream", "logs", "local/orders", "--tail", "1", "--timestamps"); out != "2026-05-28T09:00:00.000Z agent  started again\n" {
		t.Fatalf("%q", out)
	}
	b := s.background("stream", "logs", "local/orders", "-f", "--tail", "1")
	await(t, "the last line", func() bool { return b.out.String() == "agent: started again\n" })
	s.server.FailNext(500)
	s.server.AppendLog("local", "orders", line("stdout", "three"), line("stdout", "four"))
	await(t, "what came", func() bool { return b.out.String() == "agent: started again\nthree\nfour\n" })
	b.stop()
	if code := b.ends(t); code != 130 {
		t.Fatalf("exit %d: %s", code, b.err.String())
	}
	s.ok("stream", "run", "far/orders", "-f", "orders.yaml")
	if e := s.fails("stream", "logs", "far/orders"); !strings.Contains(e, "code node_unavailable, request corr-1") {
		t.Fatal(e)
	}
}

func TestStreamWatchTellsWhatHappens(t *testing.T) {
	s := newHubShell(t)
	s.ok("stream", "run", "local/orders", "-f", "orders.yaml")
	b := s.background("stream", "watch")
	j := s.background("stream", "watch", "local/orders", "-o", "jsonpath={.type} {.object.convergence}")
	await(t, "the watches", func() bool { return s.server.Streams() == 2 })
	s.server.Converge("local", "orders")
	s.ok("stream", "run", "far/orders", "-f", "orders.yaml")
	await(t, "the changes", func() bool { return strings.Count(b.out.String(), "\n") == 4 })
	await(t, "the change of the one", func() bool { return j.out.String() == "ADDED pending\nMODIFIED in_sync\n" })
	b.stop()
	b.ends(t)
	golden(t, "stream-watch", b.out.String())
}

func TestANodesDeletionIsWaitedFor(t *testing.T) {
	s := newHubShell(t)
	s.ok("stream", "run", "local/orders", "-f", "orders.yaml")
	b := s.background("node", "delete", "local")
	await(t, "the deletion", func() bool {
		return strings.Contains(b.err.String(), "node/local is being deleted: 1 stream to be stopped")
	})
	s.server.RemoveNode("local")
	if code := b.ends(t); code != 0 || b.out.String() != "node/local deleted\n" {
		t.Fatalf("exit %d: %s%s", code, b.out.String(), b.err.String())
	}
}

func TestEnginesAreRecognised(t *testing.T) {
	for content, engine := range map[string]hub.Engine{
		benthosConfig: hub.EngineBenthos, processConfig: hub.EngineProcess, `{"command": "/bin/true"}`: hub.EngineProcess,
		"labels: {a: b}\n": hub.EngineNode, "a: 1\n": "", "input: [\noutput: {": hub.EngineBenthos, "command: {\n": hub.EngineProcess, "- 1\n": "",
	} {
		if got := engineOf(content); got != engine {
			t.Errorf("%q: %q, expected %q", content, got, engine)
		}
	}
}

func TestNamesOfStreams(t *testing.T) {
	local := nodeFlag{"local"}
	for name, want := range map[string]streamRef{"orders": {"local", "orders"}, "local/orders": {"local", "orders"}, "stream/local/orders": {"local", "orders"}} {
		if got, err := local.ref(name); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "far/orders", "/orders", "local/", "a/b/c", "stream/local"} {
		if got, err := local.ref(name); err == nil {
			t.Errorf("%q is taken for %v", name, got)
		}
	}
	if _, err := new(nodeFlag).ref("orders"); err == nil || !strings.Contains(err.Error(), "orders --node") && !strings.Contains(err.Error(), "NODE/orders") {
		t.Error(err)
	}
}

func (p *convergence) at(d time.Duration) string {
	return "\n" + strings.Join(p.lines(&live{width: 120}, p.started.Add(d)), "\n") + "\n"
}

func TestConvergenceIsDrawn(t *testing.T) {
	asked := &client.StreamAccepted{NodeID: "local", StreamID: "orders", IntentID: "intent-4-17", Generation: 4, DesiredState: hub.Running, ConfigVersion: "cfg-3", Convergence: hub.Pending}
	p := newConvergence("stream local/orders", asked, epoch)
	p.sawStream(&client.Stream{Desired: &hub.Desired{Generation: 3}, Convergence: hub.InSync, IntentID: "intent-3-16"}) // of before
	if diff := cmp.Diff("\n⠋ stream local/orders  pending  0.0s\n    asked for  running, generation 4, cfg-3\n", p.at(0)); diff != "" {
		t.Error(diff)
	}
	next := epoch.Add(4 * time.Second)
	s := &client.Stream{
		Desired: &hub.Desired{Generation: 4}, IntentID: "intent-4-17", Convergence: hub.Degraded, ConvergenceReason: "start_failed",
		Observed: &hub.Observed{State: hub.Failed, Generation: 4, ConfigVersion: "cfg-3"},
	}
	p.sawStream(s)
	p.sawOperation(&client.Operation{
		State: hub.Retrying, Attempts: 2, Attempt: &client.OperationAttempt{State: hub.AttemptFail}, Retry: hub.RetryState{Count: 2, Budget: 10, NextAt: &next},
	})
	if diff := cmp.Diff(`
⠋ stream local/orders  degraded: start_failed  1.0s
    asked for  running, generation 4, cfg-3
    observed   failed, generation 4, cfg-3
    attempt    failed on the node (attempt 2); again in 3.0s, try 3 of 10
`, p.at(time.Second)); diff != "" {
		t.Error(diff)
	}
	s = &client.Stream{Desired: s.Desired, IntentID: s.IntentID, Convergence: hub.InSync, Observed: &hub.Observed{State: hub.Running, Generation: 4, ConfigVersion: "cfg-3"}}
	p.sawStream(s)
	if done, err := p.ended(); !done || err != nil {
		t.Fatal(done, err)
	}
	has(t, p.at(6*time.Second), "✓ stream local/orders  in_sync  6.0s")
}

func TestTopFitsTheTerminalAndTellsCPU(t *testing.T) {
	s := clienttest.New(t)
	s.AddNode(client.HubNode{NodeID: "local", State: hub.PresenceOnline})
	h := s.Client(t).Hub()
	at := epoch
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		if _, err := h.SetDesiredState(t.Context(), "local", name, client.DesiredState{State: hub.Running}, client.MutationOptions{}); err != nil {
			t.Fatal(err)
		}
		s.SetMetrics(client.StreamMetrics{NodeID: "local", StreamID: name, ReportedAt: &at})
	}
	v := &topView{order: topOrder["cpu"], cpu: map[string]cpuSample{}}
	read := func() {
		t.Helper()
		if err := v.read(context.Background(), h); err != nil {
			t.Fatal(err)
		}
	}
	read()
	later := at.Add(10 * time.Second)
	s.SetMetrics(client.StreamMetrics{NodeID: "local", StreamID: "d", ReportedAt: &later, Metrics: agentapi.Metrics{CPUSeconds: 5, LagMessages: 7}})
	read()
	read() // without a new report the last reading stands
	lines := v.lines(&live{width: 200}, later, 8)
	if len(lines) != 6 || lines[0] != "6 streams, 6 pending" || !strings.HasPrefix(lines[2], "local   d ") || !strings.Contains(lines[2], "50%") || lines[5] != "… and 3 more" {
		t.Fatalf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
}
