package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/controller"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

const patience = 60 * time.Second

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// plane is the controllers on the real store and ledger, with a clock that is moved by hand.
type plane struct {
	t        *testing.T
	clock    *clock
	store    store.Store
	ledger   *ledger.Ledger
	presence *presence.Registry
	registry *prometheus.Registry
	*controller.Plane
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: hub.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p := &plane{t: t, clock: &clock{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}, store: s, registry: prometheus.NewPedanticRegistry()}
	p.ledger = ledger.New(ledger.Config{Now: p.clock.Now, Jitter: func() float64 { return 0 }})
	p.presence = presence.New(p.clock.Now)
	if p.Plane, err = controller.New(controller.Config{
		Store: s, Ledger: p.ledger, Presence: p.presence, Logger: slog.New(slog.DiscardHandler), Registry: p.registry, Now: p.clock.Now,
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *plane) update(f func(store.Tx) error) {
	p.t.Helper()
	if err := p.store.Update(p.t.Context(), f); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) node(name string) *hub.Node {
	p.t.Helper()
	var n *hub.Node
	if err := p.store.View(p.t.Context(), func(r store.Reader) (err error) {
		n, err = hub.Nodes.Get(r, name)
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *plane) intent(id string) *hub.Intent {
	p.t.Helper()
	var i hub.Intent
	if err := p.store.View(p.t.Context(), func(r store.Reader) error {
		o, err := hub.Operations.Get(r, id)
		if err == nil {
			i = o.Status
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return &i
}

// agent reports to the ledger as the agents' API does.
type agent struct {
	p    *plane
	name string
	uid  string
	boot hub.Boot
	seq  int64
}

func (p *plane) online(name string) *agent {
	p.t.Helper()
	a := &agent{p: p, name: name, boot: hub.Boot{ID: "boot-" + name, Seq: 1}}
	token, e := p.ledger.NewEnrolment(0)
	p.update(func(tx store.Tx) error {
		if _, err := p.ledger.RegisterNode(tx, name, nil, e); err != nil {
			return err
		}
		n, err := p.ledger.Enrol(tx, &agentapi.EnrolRequest{
			NodeID: name, EnrolmentToken: token, ProtocolVersion: 1, PublicKey: "key-" + name, BootID: a.boot.ID, BootSeq: 1,
		})
		if err == nil {
			a.uid = n.UID
		}
		return err
	})
	a.report(agentapi.Report{Full: true})
	return a
}

func (a *agent) report(r agentapi.Report) {
	a.p.t.Helper()
	a.seq++
	r.BootID, r.BootSeq, r.ReportSeq = a.boot.ID, a.boot.Seq, a.seq
	in := a.p.presence.Reporting(a.name, a.uid)
	defer in.Close()
	a.p.update(func(tx store.Tx) error {
		_, err := a.p.ledger.Report(tx, a.name, &r)
		return err
	})
	in.Accept(&r)
}

func (a *agent) dispatch() []agentapi.Command {
	a.p.t.Helper()
	var out []agentapi.Command
	a.p.update(func(tx store.Tx) (err error) {
		out, _, err = a.p.ledger.Dispatch(tx, a.name, a.boot, 100)
		return err
	})
	return out
}

func (p *plane) declare(node, stream string, state hub.State) *hub.Intent {
	p.t.Helper()
	var out *hub.Intent
	p.update(func(tx store.Tx) error {
		c, _, err := p.ledger.PublishConfig(tx, hub.EngineProcess, "command: [true]", "", "ann")
		if err != nil {
			return err
		}
		out, err = p.ledger.Declare(tx, ledger.Mutation{
			Node: node, Resource: stream, Verb: hub.SetState, State: state, ConfigVersion: c.Name, Principal: "ann",
		})
		return err
	})
	return out
}

func reconciled(t *testing.T, r reconcile.Reconciler, key string) reconcile.Result {
	t.Helper()
	out, err := r.Reconcile(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// woken tells whether the poll was woken since it was asked last.
func woken(p *presence.Poll) bool {
	select {
	case <-p.Wake():
		return true
	default:
		return false
	}
}

func TestALeaseThatRanOutMakesTheAttemptAmbiguous(t *testing.T) {
	p := newPlane(t)
	a := p.online("node-a")
	i := p.declare("node-a", "orders", hub.Running)
	a.dispatch()
	poll := p.presence.Poll("node-a", a.uid)
	for p.intent(i.ID).Attempt.Active() {
		after := reconciled(t, p.Intents, i.ID).After
		if p.intent(i.ID).Attempt.Active() && (after <= 0 || after > hub.DispatchLease) {
			t.Fatalf("an attempt with a lease is looked at again after %v", after)
		}
		if p.clock.advance(after); p.clock.Now().After(i.CreatedAt.Add(hub.DispatchLease + time.Second)) {
			t.Fatal("the lease does not run out")
		}
	}
	if got := p.intent(i.ID); got.Attempt.State != hub.Ambiguous || got.AwaitReport == nil {
		t.Errorf("%+v", got.Attempt)
	}
	if !woken(poll) {
		t.Error("the node is not asked for a full report")
	}
	if again := a.dispatch(); len(again) != 0 {
		t.Errorf("sent blindly: %+v", again)
	}
}

func TestARetryComesWhenItIsDue(t *testing.T) {
	p := newPlane(t)
	a := p.online("node-a")
	i := p.declare("node-a", "orders", hub.Running)
	c := a.dispatch()[0]
	a.report(agentapi.Report{Attempts: []agentapi.AttemptReport{{
		AttemptID: c.AttemptID, State: hub.AttemptFail, Failure: &hub.Failure{Class: hub.Transient, Code: "start_failed", Message: "no"},
	}}})
	due := p.intent(i.ID).Retry.NextAt
	if due == nil {
		t.Fatalf("%+v", p.intent(i.ID))
	}
	poll := p.presence.Poll("node-a", a.uid)
	after := reconciled(t, p.Intents, i.ID).After
	if want := due.Sub(p.clock.Now()); after != want || woken(poll) {
		t.Fatalf("looked at again after %v, not %v", after, want)
	}
	p.clock.advance(after)
	reconciled(t, p.Intents, i.ID)
	if !woken(poll) || len(a.dispatch()) != 1 {
		t.Error("the retry is not sent")
	}
}

func TestAnIntentThatIsThroughOrGoneNeedsNothing(t *testing.T) {
	p := newPlane(t)
	a := p.online("node-a")
	i := p.declare("node-a", "orders", hub.Running)
	a.dispatch()
	a.report(agentapi.Report{Streams: []agentapi.StreamReport{{StreamID: "orders", State: hub.Running, Generation: 1, ConfigVersion: i.Desired.ConfigVersion}}})
	for _, id := range []string{i.ID, "intent-9-9"} {
		if after := reconciled(t, p.Intents, id).After; after != 0 {
			t.Errorf("%s is looked at again after %v", id, after)
		}
	}
}

func TestASilentNodeIsOffline(t *testing.T) {
	p := newPlane(t)
	a := p.online("node-a")
	p.clock.advance(30 * time.Second)
	if after := reconciled(t, p.Nodes, "node-a").After; after != 15*time.Second {
		t.Errorf("looked at again after %v", after)
	}
	a.report(agentapi.Report{}) // a heartbeat
	p.clock.advance(15 * time.Second)
	if after := reconciled(t, p.Nodes, "node-a").After; after != 30*time.Second || p.node("node-a").Status.Presence != hub.PresenceOnline {
		t.Errorf("after a heartbeat: %v, %s", after, p.node("node-a").Status.Presence)
	}
	p.clock.advance(30 * time.Second)
	if after := reconciled(t, p.Nodes, "node-a").After; after != 0 || p.node("node-a").Status.Presence != hub.PresenceOffline {
		t.Errorf("after silence: %v, %s", after, p.node("node-a").Status.Presence)
	}
	a.report(agentapi.Report{})
	if got := p.node("node-a").Status.Presence; got != hub.PresenceOnline {
		t.Errorf("after its return: %s", got)
	}
}

func TestAfterAStartNodesGetTheTimeToReport(t *testing.T) {
	p := newPlane(t)
	p.online("node-a")
	p.clock.advance(24 * time.Hour) // the server was away
	p.presence = presence.New(p.clock.Now)
	nodes := &controller.Nodes{Config: p.Nodes.Config}
	nodes.Presence = p.presence
	if after := reconciled(t, nodes, "node-a").After; after != hub.OfflineAfter || p.node("node-a").Status.Presence != hub.PresenceOnline {
		t.Fatalf("%v, %s", after, p.node("node-a").Status.Presence)
	}
	p.clock.advance(hub.OfflineAfter)
	reconciled(t, nodes, "node-a")
	if got := p.node("node-a").Status.Presence; got != hub.PresenceOffline {
		t.Errorf("%s", got)
	}
}

func TestANodeThatNeverEnrolledIsNotOffline(t *testing.T) {
	p := newPlane(t)
	_, e := p.ledger.NewEnrolment(0)
	p.update(func(tx store.Tx) error {
		_, err := p.ledger.RegisterNode(tx, "node-a", nil, e)
		return err
	})
	p.clock.advance(time.Hour)
	if after := reconciled(t, p.Nodes, "node-a").After; after != 0 || p.node("node-a").Status.Presence != hub.PresencePending {
		t.Errorf("%v, %s", after, p.node("node-a").Status.Presence)
	}
}

func TestAConflictWithoutAnotherSignPasses(t *testing.T) {
	p := newPlane(t)
	a := p.online("node-a")
	note := func() {
		p.update(func(tx store.Tx) error {
			_, err := p.ledger.NoteConflict(tx, "node-a", "two agents")
			return err
		})
	}
	note()
	for range 3 {
		p.clock.advance(4 * time.Minute)
		a.report(agentapi.Report{})
		note()
		reconciled(t, p.Nodes, "node-a")
		if len(p.node("node-a").Status.Conditions) != 1 {
			t.Fatal("the conflict is not noted any more")
		}
	}
	p.clock.advance(10 * time.Minute)
	a.report(agentapi.Report{})
	reconciled(t, p.Nodes, "node-a")
	if c := p.node("node-a").Status.Conditions; len(c) != 0 {
		t.Errorf("%+v", c)
	}
}

// run runs the whole plane until the test ends.
func (p *plane) run() {
	p.t.Helper()
	m := reconcile.New(p.store, slog.New(slog.DiscardHandler), p.registry)
	if err := p.Add(m); err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	var wg sync.WaitGroup
	for _, f := range []func(context.Context) error{m.Run, p.Run} {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				p.t.Error(err)
			}
		})
	}
	p.t.Cleanup(func() { cancel(); wg.Wait() })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("in vain: " + what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p *plane) exists(name string) bool {
	p.t.Helper()
	err := p.store.View(p.t.Context(), func(r store.Reader) error {
		_, err := hub.Nodes.Get(r, name)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		p.t.Fatal(err)
	}
	return err == nil
}

func TestADeletedNodeGoesWhenItsStreamsAreAbsent(t *testing.T) {
	p := newPlane(t)
	p.run()
	a := p.online("node-a")
	for i := range 3 {
		p.declare("node-a", fmt.Sprintf("s-%d", i), hub.Running)
	}
	a.dispatch()
	p.update(func(tx store.Tx) error {
		gone, err := p.ledger.DeleteNode(tx, ledger.Deletion{Node: "node-a", Principal: "ann"})
		if gone {
			t.Error("a node with streams went at once")
		}
		return err
	})
	poll := p.presence.Poll("node-a", a.uid)
	for i := range 3 {
		if !p.exists("node-a") {
			t.Fatalf("the node went before its streams, %d of 3 were absent", i)
		}
		a.report(agentapi.Report{Streams: []agentapi.StreamReport{{StreamID: fmt.Sprintf("s-%d", i), State: hub.Absent, Generation: 2}}})
	}
	eventually(t, "the node to go", func() bool { return !p.exists("node-a") })
	eventually(t, "the node to be forgotten", func() bool { return !p.presence.Knows("node-a", a.uid) })
	if !woken(poll) {
		t.Error("the poll of a node that is gone is not told")
	}
}

func TestAWriteWakesThePollOfItsNodeOnly(t *testing.T) {
	p := newPlane(t)
	a, b := p.online("node-a"), p.online("node-b")
	p.run()
	pollA, pollB := p.presence.Poll("node-a", a.uid), p.presence.Poll("node-b", b.uid)
	p.declare("node-a", "orders", hub.Running)
	select {
	case <-pollA.Wake():
	case <-time.After(patience):
		t.Fatal("the poll was not woken")
	}
	if woken(pollB) {
		t.Error("another node's poll was woken")
	}
}

func TestMetricsTellWhatHappened(t *testing.T) {
	p := newPlane(t)
	p.run()
	a := p.online("node-a")
	done := p.declare("node-a", "done", hub.Running)
	p.declare("node-a", "waits", hub.Running)
	failing := p.declare("node-a", "fails", hub.Running)
	var attempts []agentapi.AttemptReport
	for _, c := range a.dispatch() {
		switch c.IntentID {
		case done.ID:
			attempts = append(attempts, agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.Succeeded})
		case failing.ID:
			attempts = append(attempts, agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.AttemptFail,
				Failure: &hub.Failure{Class: hub.Transient, Code: "start_failed", Message: "no"}})
		}
	}
	p.clock.advance(3 * time.Second)
	a.report(agentapi.Report{Attempts: attempts, Streams: []agentapi.StreamReport{
		{StreamID: "done", State: hub.Running, Generation: 1, ConfigVersion: done.Desired.ConfigVersion},
	}})
	p.clock.advance(20 * time.Second)
	want := map[string]float64{
		"attempts_total failed": 1, "attempts_total succeeded": 1,
		"intents accepted": 0, "intents blocked": 0, "intents converging": 1, "intents retrying": 1,
		"intents_ended_total converged": 1, "outbox_depth": 1, "convergence_seconds": 1, "command_seconds": 2,
		"nodes offline": 0, "nodes online": 1, "nodes pending": 0, "identity_conflicts": 0, "polls": 0, "report_age_max_seconds": 20,
		"streams applying": 1, "streams blocked": 0, "streams degraded": 1, "streams in_sync": 1, "streams pending": 0, "streams unknown": 0,
	}
	diff := ""
	defer func() {
		if t.Failed() {
			t.Log(diff)
		}
	}()
	eventually(t, "the metrics to tell it", func() bool {
		diff = cmp.Diff(want, p.metrics())
		return diff == ""
	})
}

// metrics are the hub's, by name and label value; of a histogram, its count.
func (p *plane) metrics() map[string]float64 {
	p.t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), "freehold_hub_")
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			if ok {
				out[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

func TestTheJanitorLetsGoOfWhatIsKeptLongEnough(t *testing.T) {
	p := newPlane(t)
	a := p.online("node-a")
	var ids []string
	for g := range 3 {
		i := p.declare("node-a", "orders", hub.Running)
		ids = append(ids, i.ID)
		a.dispatch()
		a.report(agentapi.Report{Streams: []agentapi.StreamReport{{
			StreamID: "orders", State: hub.Running, Generation: int64(g + 1), ConfigVersion: i.Desired.ConfigVersion,
		}}})
	}
	p.clock.advance(29 * 24 * time.Hour)
	if after := reconciled(t, p.Janitor, "retention").After; after <= 0 {
		t.Error("the janitor does not come back")
	}
	if n := p.operations(); n != 3 {
		t.Fatalf("%d operations are left before their time", n)
	}
	p.clock.advance(2 * 24 * time.Hour)
	reconciled(t, p.Janitor, "retention")
	if n := p.operations(); n != 1 {
		t.Errorf("%d operations are left", n)
	}
	if got := p.intent(ids[2]).State; got != hub.Converged {
		t.Errorf("the current intent is %s", got)
	}
}

func (p *plane) operations() int {
	p.t.Helper()
	n := 0
	if err := p.store.View(p.t.Context(), func(r store.Reader) error {
		_, total, err := hub.Operations.List(r, store.Query{Limit: 1})
		n = total
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return n
}
