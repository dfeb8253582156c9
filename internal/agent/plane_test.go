package agent_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/hub"
	hubagentapi "freehold.dev/freehold/internal/hub/agentapi"
	"freehold.dev/freehold/internal/hub/controller"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// plane is the Hub plane as agents meet it: the real store, ledger, controllers and API.
type plane struct {
	t      *testing.T
	store  store.Store
	ledger *ledger.Ledger
	addr   string
	stop   func()
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "hub.db"), sqlite.Options{Kinds: hub.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p := &plane{t: t, store: s, ledger: ledger.New(ledger.Config{})}
	p.start()
	t.Cleanup(func() { p.stop() })
	return p
}

// start serves the plane, at the address that it had before.
func (p *plane) start() {
	p.t.Helper()
	registry, live := prometheus.NewPedanticRegistry(), presence.New(time.Now)
	quiet := slog.New(slog.DiscardHandler)
	workers, err := controller.New(controller.Config{Store: p.store, Ledger: p.ledger, Presence: live, Logger: quiet, Registry: registry})
	if err != nil {
		p.t.Fatal(err)
	}
	manager := reconcile.New(p.store, quiet, registry)
	if err := workers.Add(manager); err != nil {
		p.t.Fatal(err)
	}
	mux := http.NewServeMux()
	api, err := hubagentapi.New(mux, hubagentapi.Config{
		Store: p.store, Ledger: p.ledger, Presence: live, Key: bytes.Repeat([]byte{7}, 32), Version: "v1", Logger: quiet,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(api.Handler())
	if p.addr != "" {
		_ = server.Listener.Close()
		if server.Listener, err = net.Listen("tcp", p.addr); err != nil {
			p.t.Fatal(err)
		}
	}
	server.Start()
	p.addr = server.Listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = manager.Run(ctx) })
	work.Go(func() { _ = workers.Run(ctx) })
	p.stop = func() {
		cancel()
		server.CloseClientConnections()
		server.Close()
		work.Wait()
	}
}

func (p *plane) update(f func(store.Tx) error) {
	p.t.Helper()
	if err := p.store.Update(p.t.Context(), f); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) register(node string) (token string) {
	p.t.Helper()
	token, e := p.ledger.NewEnrolment(0)
	p.update(func(tx store.Tx) error {
		_, err := p.ledger.RegisterNode(tx, node, nil, e)
		return err
	})
	return token
}

func (p *plane) publish(content string) (version string) {
	p.t.Helper()
	p.update(func(tx store.Tx) error {
		c, _, err := p.ledger.PublishConfig(tx, hub.EngineBenthos, content, "", "ann")
		if err == nil {
			version = c.Name
		}
		return err
	})
	return version
}

func (p *plane) declare(verb hub.Verb, state hub.State, version string) {
	p.t.Helper()
	p.update(func(tx store.Tx) error {
		_, err := p.ledger.Declare(tx, ledger.Mutation{Node: "node-a", Resource: "orders", Verb: verb, State: state, ConfigVersion: version, Principal: "ann", CorrelationID: "c"})
		return err
	})
}

// await waits for the convergence of the newest generation.
func (p *plane) await(state hub.ConvergenceState, reason string) *hub.Stream {
	p.t.Helper()
	var got *hub.Stream
	over := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := p.store.View(p.t.Context(), func(r store.Reader) (err error) {
			got, err = hub.Streams.Get(r, hub.StreamName("node-a", "orders"))
			return err
		}); err != nil {
			p.t.Fatal(err)
		}
		if c := got.Status.Convergence; c.State == state && (reason == "" || c.Reason == reason) {
			return got
		}
		select {
		case <-tick.C:
		case <-over:
			p.t.Fatalf("waited in vain for %s %s: desired %+v, observed %+v, %+v", state, reason, got.Spec.Desired, got.Status.Observed, got.Status.Convergence)
		}
	}
}

func (p *plane) agent(n *node, token string) agent.Config {
	return agent.Config{
		Data: n.data, Version: "v1", Logger: slog.New(slog.NewTextHandler(n.logs, nil)),
		Enrolment: &agent.Enrolment{Server: "http://" + p.addr, NodeID: "node-a", Token: token},
		Engines:   map[hub.Engine]engine.Engine{hub.EngineBenthos: n.engine},
		Timing:    agent.Timing{RestartMin: time.Millisecond, RestartMax: 10 * time.Millisecond},
		Network:   agent.Network{RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, Heartbeat: 100 * time.Millisecond, RefusedRetry: 20 * time.Millisecond},
	}
}

func (n *node) runOn(p *plane, token string) {
	n.engine = newFakeEngine()
	config := p.agent(n, token)
	n.runWith(config)
}

func TestAnAgentAndTheRealHubConverge(t *testing.T) {
	p, n := newPlane(t), newNode(t)
	n.runOn(p, p.register("node-a"))
	one, two, bad := p.publish("one"), p.publish("two"), p.publish("bad")
	p.declare(hub.SetState, hub.Running, one)
	p.await(hub.InSync, "")
	p.declare(hub.SetState, "", two)
	if s := p.await(hub.InSync, ""); s.Status.Observed.ConfigVersion != two {
		t.Errorf("observed: %+v", s.Status.Observed)
	}
	p.declare(hub.Restart, "", "")
	p.await(hub.InSync, "")
	p.declare(hub.SetState, "", bad)
	if s := p.await(hub.ConvergenceBlocked, "invalid_config"); s.Status.Observed.ConfigVersion != two || s.Status.Observed.State != hub.Running {
		t.Errorf("the old version does not go on: %+v", s.Status.Observed)
	}
	p.declare(hub.ConfigRollback, "", "")
	p.await(hub.InSync, "")
	p.declare(hub.SetState, hub.Stopped, "")
	p.await(hub.InSync, "")
	p.declare(hub.SetState, hub.Running, "")
	p.await(hub.InSync, "")

	p.stop() // the hub goes, and a stream fails meanwhile
	n.engine.run("orders").end(&hub.Failure{Class: hub.Transient, Code: "exit_status", Message: "it broke"})
	eventually(t, "the stream runs again", func() bool { return n.engine.run("orders") != nil })
	p.declare(hub.Restart, "", "")
	p.start()
	p.await(hub.InSync, "")

	p.declare(hub.SetState, hub.Absent, "")
	p.await(hub.InSync, "")
	if n.engine.run("orders") != nil || n.engine.overlap {
		t.Errorf("runs: %+v, overlap %v", n.engine.run("orders"), n.engine.overlap)
	}
}

func TestAClonedNodeIsNoticedAndSaid(t *testing.T) {
	p, n := newPlane(t), newNode(t)
	token := p.register("node-a")
	n.runOn(p, token)
	one := p.publish("one")
	p.declare(hub.SetState, hub.Running, one)
	p.await(hub.InSync, "")
	n.mustStop()
	clone := newNode(t)
	if err := os.CopyFS(clone.data, os.DirFS(n.data)); err != nil {
		t.Fatal(err)
	}
	n.runOn(p, token)
	p.await(hub.InSync, "")
	clone.runOn(p, token)
	eventually(t, "the hub says that there are two", func() bool {
		var node *hub.Node
		if err := p.store.View(t.Context(), func(r store.Reader) (err error) {
			node, err = hub.Nodes.Get(r, "node-a")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return len(node.Status.Conditions) == 1 && node.Status.Conditions[0].Type == hub.ConditionIdentityConflict
	})
	eventually(t, "one of them is told", func() bool {
		for _, data := range []string{n.data, clone.data} {
			if s, err := agent.ReadStatus(t.Context(), data); err == nil && !s.Hub.Connected && s.Hub.Code != "" && s.Hub.Code != "unreachable" {
				return true
			}
		}
		return false
	})
	eventually(t, "and it says so loudly", func() bool {
		return bytes.Contains([]byte(n.logs.String()+clone.logs.String()), []byte("level=ERROR"))
	})
}

// A hub that is slow to answer, or answers nonsense, is no reason to stop.
func TestAnAgentOutlivesAHubThatAnswersNonsense(t *testing.T) {
	p, n := newPlane(t), newNode(t)
	n.runOn(p, p.register("node-a"))
	p.declare(hub.SetState, hub.Running, p.publish("one"))
	p.await(hub.InSync, "")
	p.stop()
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 1)
	odd := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html>it works</html>")
		select {
		case asked <- struct{}{}:
		default:
		}
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = odd.Serve(listener) }()
	for range 5 {
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatal("the agent gave up")
		}
	}
	_ = odd.Close()
	<-served
	if n.engine.run("orders") == nil {
		t.Error("the stream was stopped")
	}
	p.start()
	p.declare(hub.SetState, hub.Stopped, "")
	p.await(hub.InSync, "")
}
