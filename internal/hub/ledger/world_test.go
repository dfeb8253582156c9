package ledger

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// fataler is a test, or one case of a property.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a ledger on a real store, with a clock that stands still until it is moved.
type world struct {
	test   testing.TB
	fail   fataler
	store  store.Store
	ledger *Ledger
	now    time.Time
	words  int
	config string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{test: t, fail: t, now: time.Date(2026, 5, 28, 12, 0, 0, 0, time.UTC)}
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: hub.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.store = s
	w.ledger = New(Config{
		Now:    func() time.Time { return w.now },
		Jitter: func() float64 { return 0.5 },
		NewID:  func() string { w.words++; return fmt.Sprintf("w%d", w.words) },
	})
	w.config = w.publish(hub.EngineProcess, "command: sleep")
	return w
}

func (w *world) update(f func(store.Tx) error) {
	w.fail.Helper()
	if err := w.try(f); err != nil {
		w.fail.Fatalf("%v", err)
	}
}

func (w *world) try(f func(store.Tx) error) error {
	return w.store.Update(w.test.Context(), f)
}

func (w *world) view(f func(store.Reader) error) {
	w.fail.Helper()
	if err := w.store.View(w.test.Context(), f); err != nil {
		w.fail.Fatalf("%v", err)
	}
}

func (w *world) publish(engine hub.Engine, content string) (version string) {
	w.fail.Helper()
	w.update(func(tx store.Tx) error {
		c, _, err := w.ledger.PublishConfig(tx, engine, content, "", "ann")
		if err == nil {
			version = c.Name
		}
		return err
	})
	return version
}

func (w *world) tryDeclare(m Mutation) (i *hub.Intent, err error) {
	if m.Verb == "" {
		m.Verb = hub.SetState
	}
	err = w.try(func(tx store.Tx) (err error) {
		i, err = w.ledger.Declare(tx, m)
		return err
	})
	return i, err
}

func (w *world) declare(node, resource string, state hub.State) *hub.Intent {
	w.fail.Helper()
	i, err := w.tryDeclare(Mutation{Node: node, Resource: resource, State: state, ConfigVersion: w.config, Principal: "ann", CorrelationID: "c-1"})
	if err != nil {
		w.fail.Fatalf("declare: %v", err)
	}
	return i
}

func (w *world) restart(node, resource string) *hub.Intent {
	w.fail.Helper()
	i, err := w.tryDeclare(Mutation{Node: node, Resource: resource, Verb: hub.Restart})
	if err != nil {
		w.fail.Fatalf("restart: %v", err)
	}
	return i
}

func (w *world) cancel(id string) (i *hub.Intent, err error) {
	err = w.try(func(tx store.Tx) (err error) {
		i, err = w.ledger.Cancel(tx, id)
		return err
	})
	return i, err
}

func (w *world) stream(node, resource string) (s *hub.Stream) {
	w.fail.Helper()
	w.view(func(r store.Reader) (err error) {
		s, err = hub.Streams.Get(r, hub.StreamName(node, resource))
		return err
	})
	return s
}

func (w *world) intent(id string) *hub.Intent {
	w.fail.Helper()
	var i *hub.Intent
	w.view(func(r store.Reader) error {
		o, err := hub.Operations.Get(r, id)
		if err == nil {
			i = &o.Status
		}
		return err
	})
	return i
}

// convergence answers "state reason" of a stream.
func (w *world) convergence(node, resource string) string {
	w.fail.Helper()
	c := w.stream(node, resource).Status.Convergence
	if c.Reason == "" {
		return string(c.State)
	}
	return string(c.State) + " " + c.Reason
}

// advanceAll does for each open intent what its time has come for.
func (w *world) advanceAll() {
	w.fail.Helper()
	var names []string
	w.view(func(r store.Reader) error {
		nodes, err := r.List(store.Query{Kind: hub.Nodes.Kind.Name})
		for _, n := range nodes.Objects {
			open, err := r.List(store.Query{Kind: hub.Operations.Kind.Name, Selector: labels.SelectorFromValidatedSet(labels.Set{hub.LabelOpen: n.Name})})
			if err != nil {
				return err
			}
			for _, o := range open.Objects {
				names = append(names, o.Name)
			}
		}
		return err
	})
	for _, n := range names {
		var s Step
		w.view(func(r store.Reader) (err error) {
			s, err = w.ledger.Next(r, n)
			return err
		})
		if s.Advance {
			w.update(func(tx store.Tx) error {
				_, err := w.ledger.Advance(tx, n)
				return err
			})
		}
	}
}

func (w *world) presence(node string, p hub.Presence) {
	w.fail.Helper()
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.SetPresence(tx, node, p)
		return err
	})
}

// taken is what an agent has durably taken over of one stream.
type taken struct {
	desired     agentapi.Command
	state       hub.State
	completed   []string
	interrupted []string
	failure     *hub.Failure
}

// agent behaves as agents must: it takes no lower generation, runs no action twice, and forgets nothing but with its disk.
type agent struct {
	w    *world
	id   string
	cred string
	boot hub.Boot
	seq  int64

	disk    map[string]*taken
	answers map[string]agentapi.AttemptReport
	// ran counts the runs of each action, for ever.
	ran map[string]int
	// broken is how every start fails.
	broken *hub.Failure
}

func (w *world) register(id string) (token string) {
	w.fail.Helper()
	token, e := w.ledger.NewEnrolment(0)
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.RegisterNode(tx, id, nil, e)
		return err
	})
	return token
}

// agent registers and enrols a node, which has not reported yet.
func (w *world) agent(id string) *agent {
	w.fail.Helper()
	a := &agent{w: w, id: id, ran: map[string]int{}}
	a.enrol(w.register(id))
	return a
}

// enrol makes the agent a new one, with nothing on its disk.
func (a *agent) enrol(token string) {
	a.w.fail.Helper()
	a.disk, a.answers = map[string]*taken{}, map[string]agentapi.AttemptReport{}
	a.w.words++
	a.boot, a.seq = hub.Boot{ID: fmt.Sprintf("%s-%d", a.id, a.w.words), Seq: 1}, 0
	a.w.update(func(tx store.Tx) error {
		n, err := a.w.ledger.Enrol(tx, &agentapi.EnrolRequest{
			NodeID: a.id, EnrolmentToken: token, PublicKey: a.boot.ID, BootID: a.boot.ID, BootSeq: a.boot.Seq,
		})
		if err == nil {
			a.cred = n.Status.Credential.ID
		}
		return err
	})
}

// loseDisk enrols the node again, empty.
func (a *agent) loseDisk() {
	a.w.fail.Helper()
	token, e := a.w.ledger.NewEnrolment(0)
	a.w.update(func(tx store.Tx) error {
		_, err := a.w.ledger.RenewEnrolment(tx, a.id, e)
		return err
	})
	a.enrol(token)
}

// reboot starts the agent anew.
func (a *agent) reboot() {
	a.w.fail.Helper()
	a.w.words++
	a.boot, a.seq = hub.Boot{ID: fmt.Sprintf("%s-%d", a.id, a.w.words), Seq: a.boot.Seq + 1}, 0
	a.w.update(func(tx store.Tx) error {
		_, err := a.w.ledger.NewBoot(tx, a.id, a.cred, BootInfo{Boot: a.boot})
		return err
	})
}

// report composes the next report.
func (a *agent) report(full bool) *agentapi.Report {
	a.seq++
	r := &agentapi.Report{BootID: a.boot.ID, BootSeq: a.boot.Seq, ReportSeq: a.seq, Full: full}
	for id, t := range a.disk {
		r.Streams = append(r.Streams, agentapi.StreamReport{
			StreamID: id, State: t.state, Generation: t.desired.Generation, ConfigVersion: t.desired.ConfigVersion,
			CompletedActions: slices.Clone(t.completed), InterruptedActions: slices.Clone(t.interrupted), Error: t.failure,
		})
	}
	for _, answer := range a.answers {
		r.Attempts = append(r.Attempts, answer)
	}
	return r
}

// send delivers a report; what was answered is not told again.
func (a *agent) send(r *agentapi.Report) (out Outcome, err error) {
	err = a.w.try(func(tx store.Tx) (err error) {
		out, err = a.w.ledger.Report(tx, a.id, r)
		return err
	})
	if err == nil {
		for _, told := range r.Attempts {
			if a.answers[told.AttemptID] == told {
				delete(a.answers, told.AttemptID)
			}
		}
	}
	return out, err
}

func (a *agent) tell(full bool) Outcome {
	a.w.fail.Helper()
	out, err := a.send(a.report(full))
	if err != nil {
		a.w.fail.Fatalf("report: %v", err)
	}
	return out
}

// poll fetches commands.
func (a *agent) poll() (commands []agentapi.Command, fullRequired bool) {
	a.w.fail.Helper()
	a.w.update(func(tx store.Tx) (err error) {
		commands, fullRequired, err = a.w.ledger.Dispatch(tx, a.id, a.boot, 100)
		return err
	})
	return commands, fullRequired
}

// take durably takes over a command, or refuses it.
func (a *agent) take(c agentapi.Command) {
	t := a.disk[c.StreamID]
	if t != nil && c.Generation < t.desired.Generation {
		a.answers[c.AttemptID] = agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.AttemptFail, Failure: &hub.Failure{Class: hub.Incompatible, Code: "stale_generation"}}
		return
	}
	if t == nil {
		t = &taken{}
		a.disk[c.StreamID] = t
	}
	t.desired, t.state, t.failure = c, hub.Starting, nil
	a.answers[c.AttemptID] = agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.Acknowledged}
}

// act does what was taken over.
func (a *agent) act() {
	for _, t := range a.disk {
		if t.state != hub.Starting {
			continue
		}
		if id := t.desired.ActionID; id != "" && !slices.Contains(t.completed, id) && !slices.Contains(t.interrupted, id) {
			a.ran[id]++
			t.completed = append(t.completed, id)
		}
		answer := agentapi.AttemptReport{AttemptID: t.desired.AttemptID, State: hub.Succeeded}
		if t.state, t.failure = t.desired.State, nil; a.broken != nil && t.state == hub.Running {
			t.state, t.failure = hub.Failed, a.broken
			answer.State, answer.Failure = hub.AttemptFail, a.broken
		}
		a.answers[t.desired.AttemptID] = answer
	}
}

// work is one round without faults: poll, take, act, report.
func (a *agent) work() {
	a.w.fail.Helper()
	commands, full := a.poll()
	for _, c := range commands {
		a.take(c)
	}
	a.act()
	a.tell(full)
}

// online is an agent that has reported.
func (w *world) online(id string) *agent {
	w.fail.Helper()
	a := w.agent(id)
	a.tell(true)
	return a
}
