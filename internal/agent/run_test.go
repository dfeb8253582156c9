package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/hubtest"
	"freehold.dev/freehold/internal/hub"
)

// fakeEngine runs streams in memory. A content that starts with "bad" is refused.
type fakeEngine struct {
	mu   sync.Mutex
	runs map[string]*fakeRun
	log  []string
	// overlap is set when two runs of a stream met.
	overlap bool
}

type fakeRun struct {
	engine *fakeEngine
	spec   engine.Spec
	ready  chan struct{}
	done   chan struct{}
	once   sync.Once
	err    *hub.Failure
}

func newFakeEngine() *fakeEngine { return &fakeEngine{runs: map[string]*fakeRun{}} }

func (e *fakeEngine) Check(_ context.Context, s engine.Spec) error {
	if strings.HasPrefix(s.Content, "bad") {
		return &engine.Error{Failure: hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config", Message: "bad content"}}
	}
	return nil
}

func (e *fakeEngine) Start(ctx context.Context, s engine.Spec) (engine.Run, error) {
	if err := e.Check(ctx, s); err != nil {
		return nil, err
	}
	if name, found := strings.CutPrefix(s.Content, "secret "); found {
		value, err := s.Secret(name)
		if err != nil {
			return nil, &engine.Error{Failure: hub.Failure{Class: hub.Transient, Code: "secret_missing", Message: err.Error()}}
		}
		s.Log("engine", "the secret has "+fmt.Sprint(len(value))+" letters: "+value)
	}
	r := &fakeRun{engine: e, spec: s, ready: make(chan struct{}), done: make(chan struct{})}
	e.mu.Lock()
	e.overlap = e.overlap || e.runs[s.Stream] != nil
	e.runs[s.Stream] = r
	e.log = append(e.log, "start "+s.Content)
	e.mu.Unlock()
	s.Log("engine", "output of "+s.Content)
	close(r.ready)
	return r, nil
}

func (e *fakeEngine) Clean(context.Context, []string) error { return nil }

func (e *fakeEngine) run(stream string) *fakeRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[stream]
}

func (r *fakeRun) end(err *hub.Failure) {
	r.once.Do(func() {
		r.engine.mu.Lock()
		delete(r.engine.runs, r.spec.Stream)
		r.engine.log = append(r.engine.log, "end "+r.spec.Content)
		r.err = err
		r.engine.mu.Unlock()
		close(r.done)
	})
}

func (r *fakeRun) Ready() <-chan struct{}     { return r.ready }
func (r *fakeRun) Done() <-chan struct{}      { return r.done }
func (r *fakeRun) Err() *hub.Failure          { return r.err }
func (r *fakeRun) Stop(context.Context) error { r.end(nil); return nil }
func (r *fakeRun) Metrics() agentapi.Metrics {
	return agentapi.Metrics{InputMessages: 7, LagMessages: -1}
}

// node is an agent in this process.
type node struct {
	t      *testing.T
	data   string
	engine *fakeEngine
	logs   *syncBuffer
	stop   func() error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (n *node) config(h *hubtest.Hub) agent.Config {
	return agent.Config{
		Data: n.data, Version: "v1", Logger: slog.New(slog.NewTextHandler(n.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Enrolment: &agent.Enrolment{Server: h.URL, NodeID: "node-a", Token: hubtest.Token},
		Engines:   map[hub.Engine]engine.Engine{hub.EngineBenthos: n.engine},
		Timing:    agent.Timing{RestartMin: time.Millisecond, RestartMax: 10 * time.Millisecond, FetchMin: time.Millisecond, FetchMax: 10 * time.Millisecond},
		Network:   agent.Network{Heartbeat: 50 * time.Millisecond, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, RefusedRetry: 20 * time.Millisecond},
	}
}

func newNode(t *testing.T) *node {
	return &node{t: t, data: t.TempDir(), logs: &syncBuffer{}}
}

// start starts the agent with an engine that knows of no runs. It ends with the test, if not before.
func (n *node) start(h *hubtest.Hub) {
	n.t.Helper()
	n.engine = newFakeEngine()
	n.runWith(n.config(h))
}

func (n *node) runWith(config agent.Config) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx, config) }()
	var once sync.Once
	n.stop = func() (err error) {
		once.Do(func() {
			cancel()
			select {
			case err = <-ended:
			case <-time.After(time.Minute):
				err = errors.New("the agent does not end")
			}
		})
		return err
	}
	n.t.Cleanup(func() {
		if err := n.stop(); err != nil {
			n.t.Errorf("the agent ended with: %v\n%s", err, n.logs)
		}
	})
}

func (n *node) mustStop() {
	n.t.Helper()
	if err := n.stop(); err != nil {
		n.t.Fatalf("the agent ended with: %v\n%s", err, n.logs)
	}
}

// eventually waits until f is content.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(time.Minute)
	for !f() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestAStreamConvergesThroughTheHub(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	h.Publish("cfg-1", hub.EngineBenthos, "one")
	h.Publish("cfg-2", hub.EngineBenthos, "two")
	n.start(h)
	first := h.Send("orders", 1, hub.Running, "cfg-1", "")
	if a := h.AwaitAttempt(first); a.State != hub.Succeeded {
		t.Fatalf("%+v", a)
	}
	h.AwaitStream("orders", "to have metrics", func(s agentapi.StreamReport) bool { return s.Metrics != nil && s.Metrics.InputMessages == 7 })
	h.Send("orders", 2, hub.Running, "cfg-2", "")
	h.AwaitStream("orders", "to run cfg-2", func(s agentapi.StreamReport) bool { return s.State == hub.Running && s.ConfigVersion == "cfg-2" })
	h.Send("orders", 3, hub.Running, "cfg-2", "act")
	h.AwaitStream("orders", "to be restarted", func(s agentapi.StreamReport) bool { return s.State == hub.Running && len(s.CompletedActions) == 1 })
	log := h.Logs("orders", "output of two")
	if log.Error != "" || log.Next == 0 {
		t.Errorf("log: %+v", log)
	}
	h.Send("orders", 4, hub.Absent, "", "")
	h.AwaitState("orders", hub.Absent, 4)
	if n.engine.overlap {
		t.Error("two runs of the stream met")
	}
	if want := "start one,end one,start two,end two,start two,end two"; strings.Join(n.engine.log, ",") != want {
		t.Errorf("the engine saw %v", n.engine.log)
	}
}

func TestARejectedConfigLeavesTheOldRunGoing(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	h.Publish("cfg-1", hub.EngineBenthos, "one")
	h.Publish("cfg-2", hub.EngineBenthos, "bad")
	h.Publish("cfg-3", hub.EngineNode, "labels: {}")
	h.Publish("cfg-4", hub.EngineProcess, "command: true")
	n.start(h)
	h.AwaitAttempt(h.Send("orders", 1, hub.Running, "cfg-1", ""))
	run := n.engine.run("orders")
	for i, want := range []string{"invalid_config", "invalid_config", "engine_unknown"} {
		generation := int64(i + 2)
		a := h.AwaitAttempt(h.Send("orders", generation, hub.Running, fmt.Sprintf("cfg-%d", generation), ""))
		if a.State != hub.AttemptFail || a.Failure.Code != want {
			t.Fatalf("%+v", a)
		}
		s := h.AwaitState("orders", hub.Running, generation)
		if s.ConfigVersion != "cfg-1" || s.Error == nil || s.Error.Code != want || n.engine.run("orders") != run {
			t.Fatalf("%+v", s)
		}
	}
}

func TestStreamsGoOnWithoutTheHubAndStartWithoutIt(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	h.Publish("cfg-1", hub.EngineBenthos, "one")
	n.start(h)
	h.AwaitAttempt(h.Send("orders", 1, hub.Running, "cfg-1", ""))
	h.Refuse(503, agentapi.CodeRepositoryUnavailable)
	eventually(t, "the failure of the stream is dealt with", func() bool {
		r := n.engine.run("orders")
		if r == nil {
			return false
		}
		r.end(&hub.Failure{Class: hub.Transient, Code: "exit_status", Message: "it broke"})
		return true
	})
	eventually(t, "the stream runs again", func() bool { return n.engine.run("orders") != nil })
	n.mustStop()
	if n.engine.run("orders") != nil {
		t.Fatal("the agent left a run behind")
	}
	n.start(h) // it cannot reach its hub, and starts what it has
	eventually(t, "the stream is started without the hub", func() bool { return n.engine.run("orders") != nil })
	h.Refuse(0, "")
	h.AwaitBoot(3) // the enrolment was the first
	h.AwaitState("orders", hub.Running, 1)
}

func TestASecretAndTheNodesConfigurationReachAStream(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	folder := t.TempDir()
	h.Publish("cfg-1", hub.EngineBenthos, "secret db")
	h.Publish("cfg-2", hub.EngineNode, "secrets: {folder: "+folder+"}\nlimits: {memory: 64Mi}\nlabels: {site: berlin}\n")
	n.start(h)
	h.Send("orders", 1, hub.Running, "cfg-1", "")
	h.AwaitStream("orders", "to miss its secret", func(s agentapi.StreamReport) bool { return s.Error != nil && s.Error.Code == "secret_missing" })
	if err := os.WriteFile(filepath.Join(folder, "db"), []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := h.AwaitAttempt(h.Send(hub.NodeConfig, 1, hub.Running, "cfg-2", "")); a.State != hub.Succeeded {
		t.Fatalf("%+v", a)
	}
	h.AwaitState("orders", hub.Running, 1)
	if got := n.engine.run("orders").spec.Limits.MemoryMiB; got != 64 {
		t.Errorf("the limit is %d MiB", got)
	}
	h.Logs("orders", "the secret has 4 letters: •••")
	if s, err := agent.ReadStatus(t.Context(), n.data); err != nil || s.Labels["site"] != "berlin" {
		t.Errorf("%+v %v", s, err)
	}
	h.Send(hub.NodeConfig, 2, hub.Absent, "", "")
	h.AwaitState(hub.NodeConfig, hub.Absent, 2)
	if s, err := agent.ReadStatus(t.Context(), n.data); err != nil || len(s.Labels) > 0 {
		t.Errorf("%+v %v", s, err)
	}
}

func TestTheLogOfAStreamThatIsAbsentIsRemoved(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	h.Publish("cfg-1", hub.EngineBenthos, "one")
	n.start(h)
	for _, before := range []hub.State{hub.Running, hub.Stopped} {
		stream, generation := "was-"+string(before), int64(1)
		h.AwaitAttempt(h.Send(stream, generation, hub.Running, "cfg-1", ""))
		h.Logs(stream, "output of one")
		if before != hub.Running {
			generation++
			h.Send(stream, generation, before, "cfg-1", "")
			h.AwaitState(stream, before, generation)
		}
		h.Send(stream, generation+1, hub.Absent, "", "")
		h.AwaitState(stream, hub.Absent, generation+1)
		eventually(t, "the log of "+stream+" is gone", func() bool {
			_, err := os.Stat(filepath.Join(n.data, "logs", stream+".log"))
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

func TestTheStatusIsThereWhetherTheAgentRunsOrNot(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	n.data = filepath.Join(t.TempDir(), strings.Repeat("long", 40), "folder") // longer than a socket's name may be
	if _, err := agent.ReadStatus(t.Context(), n.data); !errors.Is(err, agent.ErrNotEnrolled) {
		t.Fatalf("before: %v", err)
	}
	h.Publish("cfg-1", hub.EngineBenthos, "one")
	n.start(h)
	h.AwaitAttempt(h.Send("orders", 1, hub.Running, "cfg-1", ""))
	s, err := agent.ReadStatus(t.Context(), n.data)
	if err != nil || !s.Running || !s.Hub.Connected || s.NodeID != "node-a" || len(s.Streams) != 1 || s.Streams[0].State != hub.Running {
		t.Fatalf("%+v %v", s, err)
	}
	n.mustStop()
	s, err = agent.ReadStatus(t.Context(), n.data)
	if err != nil || s.Running || s.Hub.Connected || len(s.Streams) != 1 || s.Streams[0].State != hub.Stopped || s.Streams[0].Target.State != hub.Running {
		t.Fatalf("%+v %v", s, err)
	}
}

func TestADataFolderHasOneAgentAndOneNode(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	n.start(h)
	h.AwaitReports(1)
	if err := agent.Run(t.Context(), n.config(h)); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second agent: %v", err)
	}
	n.mustStop()
	other := n.config(h)
	other.Enrolment = &agent.Enrolment{Server: h.URL, NodeID: "node-b", Token: hubtest.Token}
	var taken *agent.OtherNodeError
	if _, err := agent.Enrol(t.Context(), other, *other.Enrolment); !errors.As(err, &taken) || taken.Node != "node-a" {
		t.Errorf("another node: %v", err)
	}
	none := n.config(h)
	none.Data, none.Enrolment = t.TempDir(), nil
	if err := agent.Run(t.Context(), none); !errors.Is(err, agent.ErrNotEnrolled) {
		t.Errorf("without enrolment: %v", err)
	}
}

func TestAStolenIdentityIsSaidLoudlyAndStreamsGoOn(t *testing.T) {
	h, n := hubtest.New(t), newNode(t)
	h.Publish("cfg-1", hub.EngineBenthos, "one")
	n.start(h)
	h.AwaitAttempt(h.Send("orders", 1, hub.Running, "cfg-1", ""))
	h.Refuse(409, agentapi.CodeIdentityConflict)
	eventually(t, "the conflict is said", func() bool {
		s, err := agent.ReadStatus(t.Context(), n.data)
		return err == nil && !s.Hub.Connected && s.Hub.Code == agentapi.CodeIdentityConflict
	})
	if log := n.logs.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "another agent uses this node's identity") {
		t.Errorf("the log does not say it:\n%s", log)
	}
	if n.engine.run("orders") == nil {
		t.Error("the stream was stopped")
	}
	sessions := h.Sessions()
	h.Refuse(0, "")
	eventually(t, "the node is back with a new session", func() bool {
		s, err := agent.ReadStatus(t.Context(), n.data)
		return err == nil && s.Hub.Connected && h.Sessions() > sessions
	})
}
