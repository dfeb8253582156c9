package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"freehold.dev/freehold/internal/kernel/store"
)

// testProperties walks a store at random: transactions, restarts, compactions, lists, and watchers that come, lag,
// resume and go. After each step the store must be what the model is, and a watcher's next batch must be the next
// difference that the model has for it: no change missed, repeated, split or out of order.
func testProperties(t *testing.T, b Backend) {
	rapid.Check(t, func(rt *rapid.T) {
		folder, err := os.MkdirTemp(t.TempDir(), "walk")
		if err != nil {
			rt.Fatal(err)
		}
		w := &walk{t: rt, fixture: &fixture{t: t, backend: b, folder: folder, kinds: testedKinds()}}
		w.open()
		defer func() {
			_ = w.Close()
			_ = os.RemoveAll(folder)
		}()
		w.model = model{states: map[int64]state{}}
		w.model.commit(w.revision(), state{})
		rt.Repeat(map[string]func(*rapid.T){
			"transact": w.transact,
			"more":     w.transact,
			"watch":    w.startWatcher,
			"follow":   w.followWatcher,
			"drain":    w.drainWatcher,
			"list":     w.checkList,
			"compact":  w.compact,
			"restart":  w.restart,
			"":         w.checkState,
		})
		for len(w.watchers) > 0 {
			w.drainWatcher(rt)
			w.watchers = w.watchers[1:]
		}
	})
}

// walk is a random walk.
type walk struct {
	t *rapid.T
	*fixture
	model    model
	watchers []*follower
}

// follower is a watcher with what it should report next.
type follower struct {
	store.Watcher
	queries []store.Query
	// seen is the revision up to which it reported; 0: its snapshot is to come.
	seen int64
}

var (
	drawName  = rapid.SampledFrom([]string{"a", "a/1", "a/2", "b", "b/1"})
	drawKind  = rapid.SampledFrom([]string{"machine", "machine", "tenant"})
	drawZone  = rapid.SampledFrom([]string{"x", "y", ""})
	drawOwner = rapid.SampledFrom([]string{"", "p", "q", "p q"})
)

func drawQuery(t *rapid.T) store.Query {
	q := store.Query{Kind: drawKind.Draw(t, "kind")}
	if rapid.Bool().Draw(t, "by label") {
		text := rapid.SampledFrom([]string{"zone=x", "zone!=x", "zone in (x,y)", "!zone", "zone", "zone=x,rack=1", "rack>0"}).Draw(t, "selector")
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		q.Selector = selector
	}
	if rapid.IntRange(0, 3).Draw(t, "by prefix") == 0 {
		q.Prefix = rapid.SampledFrom([]string{"a", "a/", "c"}).Draw(t, "prefix")
	}
	if q.Kind == "machine" && rapid.IntRange(0, 3).Draw(t, "by index") == 0 {
		q.Index, q.Value = "owner", rapid.SampledFrom([]string{"p", "q"}).Draw(t, "owner")
	}
	return q
}

// transact makes some random changes, and commits them or not.
func (w *walk) transact(t *rapid.T) {
	steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 4).Draw(t, "steps")
	refuse := rapid.IntRange(0, 5).Draw(t, "refuse") == 0
	var next state
	var revision int64
	err := w.Update(ctx, func(tx store.Tx) error {
		next, revision = w.model.present(), 0
		for _, s := range steps {
			if err := s.run(tx, next); err != nil {
				return err
			}
		}
		if refuse {
			return errRefused
		}
		return nil
	})
	switch {
	case refuse && errors.Is(err, errRefused):
		return
	case err != nil:
		t.Fatalf("update: %v", err)
	}
	revision = w.model.last
	for _, o := range next {
		revision = max(revision, o.Revision)
	}
	if now := w.fixture.revision(); now > revision {
		// A transaction that only removed objects shows its revision nowhere else.
		revision = now
	}
	switch unchanged := cmp.Equal(next, w.model.states[w.model.last], cmpopts.EquateEmpty()); {
	case unchanged && revision != w.model.last:
		t.Fatalf("a transaction that changed nothing took revision %d after %d", revision, w.model.last)
	case !unchanged && revision != w.model.last+1:
		t.Fatalf("a transaction took revision %d after %d", revision, w.model.last)
	case !unchanged:
		w.model.commit(revision, next)
	}
}

// step is one write inside a transaction.
type step struct {
	key
	remove      bool
	zone, owner string
	finalizers  []string
	spec        int
}

func drawStep(t *rapid.T) step {
	s := step{
		key:    key{drawKind.Draw(t, "kind"), drawName.Draw(t, "name")},
		remove: rapid.IntRange(0, 3).Draw(t, "remove") == 0,
		zone:   drawZone.Draw(t, "zone"),
		owner:  drawOwner.Draw(t, "owner"),
		spec:   rapid.IntRange(0, 2).Draw(t, "spec"),
	}
	if rapid.IntRange(0, 3).Draw(t, "hold") == 0 {
		s.finalizers = []string{"hold"}
	}
	return s
}

// run does the step to the store and to the model.
func (s step) run(tx store.Tx, model state) error {
	have := model[s.key]
	stored, err := tx.Get(s.kind, s.name)
	if errors.Is(err, store.ErrNotFound) != (have == nil) {
		return fmt.Errorf("get %v: %w, the model has %+v", s.key, err, have)
	}
	if have != nil {
		if d := diff(have, stored); d != "" {
			return fmt.Errorf("%v (-model +store):\n%s", s.key, d)
		}
	}
	switch {
	case s.remove && have == nil:
		return nil
	case s.remove:
		o, err := tx.Delete(s.kind, s.name, have.Revision)
		if err != nil {
			return err
		}
		if len(have.Finalizers) == 0 {
			delete(model, s.key)
		} else {
			model[s.key] = o.Clone()
		}
		return nil
	}
	o := &store.Object{Kind: s.kind, Name: s.name}
	if have != nil {
		o = have.Clone()
	}
	o.Labels = map[string]string{"rack": fmt.Sprint(s.spec)}
	if s.zone != "" {
		o.Labels["zone"] = s.zone
	}
	o.Annotations = map[string]string{"owners": s.owner}
	o.Finalizers = s.finalizers
	o.Spec = json.RawMessage(fmt.Sprint(s.spec))
	if have == nil {
		err = tx.Create(o)
	} else {
		err = tx.Update(o)
	}
	if err != nil {
		return err
	}
	if o.Deleting() && len(o.Finalizers) == 0 {
		delete(model, s.key)
	} else {
		model[s.key] = o.Clone()
	}
	return nil
}

func (w *walk) startWatcher(t *rapid.T) {
	if len(w.watchers) > 4 {
		w.watchers[0].Close()
		w.watchers = w.watchers[1:]
	}
	f := &follower{queries: rapid.SliceOfN(rapid.Custom(drawQuery), 1, 3).Draw(t, "queries")}
	if rapid.Bool().Draw(t, "resume") {
		f.seen = rapid.Int64Range(1, w.model.last).Draw(t, "since")
	}
	w.start(t, f)
}

// start starts the follower's watcher where it stands, or from a snapshot if that may be.
func (w *walk) start(t *rapid.T, f *follower) {
	watcher, err := w.Watch(ctx, f.seen, f.queries...)
	if errors.Is(err, store.ErrCompacted) && f.seen != 0 && f.seen < w.model.compacted {
		f.seen = 0
		watcher, err = w.Watch(ctx, 0, f.queries...)
	}
	if err != nil {
		t.Fatalf("watch after %d, compacted to %d: %v", f.seen, w.model.compacted, err)
	}
	f.Watcher = watcher
	w.watchers = append(w.watchers, f)
}

// followWatcher reads one batch of a watcher, if the model has one for it.
func (w *walk) followWatcher(t *rapid.T) {
	if len(w.watchers) == 0 {
		t.Skip("no watcher")
	}
	w.step(t, rapid.SampledFrom(w.watchers).Draw(t, "watcher"))
}

// drainWatcher reads all that the model has for a watcher.
func (w *walk) drainWatcher(t *rapid.T) {
	if len(w.watchers) == 0 {
		t.Skip("no watcher")
	}
	for w.step(t, w.watchers[0]) {
	}
}

func (w *walk) step(t *rapid.T, f *follower) (more bool) {
	expectedAt, expected := w.expected(f)
	if expectedAt == 0 {
		return false
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	batch, err := f.Next(patient)
	if errors.Is(err, store.ErrCompacted) && f.seen != 0 && f.seen < w.model.compacted {
		f.seen = 0
		f.Close()
		if f.Watcher, err = w.Watch(ctx, 0, f.queries...); err != nil {
			t.Fatalf("watch anew: %v", err)
		}
		return true
	}
	if err != nil {
		t.Fatalf("next after %d, compacted to %d: %v", f.seen, w.model.compacted, err)
	}
	if batch.Revision != expectedAt || batch.Initial != (f.seen == 0) {
		t.Fatalf("after %d came revision %d (initial %v), want %d", f.seen, batch.Revision, batch.Initial, expectedAt)
	}
	if d := cmp.Diff(expected, eventsOf(batch), cmp.AllowUnexported(event{}), cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("after %d, revision %d of %+v (-model +watcher):\n%s", f.seen, batch.Revision, f.queries, d)
	}
	f.seen = batch.Revision
	return true
}

// expected is the follower's next batch by the model; revision 0: there is none.
func (w *walk) expected(f *follower) (revision int64, events []event) {
	if f.seen == 0 {
		return w.model.last, between(state{}, w.model.present().selected(f.queries))
	}
	for r := f.seen + 1; r <= w.model.last; r++ {
		events := between(w.model.states[r-1].selected(f.queries), w.model.states[r].selected(f.queries))
		if len(events) > 0 {
			return r, events
		}
	}
	return 0, nil
}

func (w *walk) checkList(t *rapid.T) {
	q := drawQuery(t)
	want := w.model.present().selected([]store.Query{q})
	got := state{}
	for _, o := range w.list(q).Objects {
		got[key{o.Kind, o.Name}] = o
	}
	if d := diff(want, got); d != "" {
		t.Fatalf("list %+v (-model +store):\n%s", q, d)
	}
}

func (w *walk) compact(t *rapid.T) {
	keep := rapid.IntRange(0, 6).Draw(t, "keep")
	if err := w.Compact(ctx, -time.Hour, keep); err != nil {
		t.Fatalf("compact: %v", err)
	}
	w.model.compacted = max(w.model.compacted, w.model.last-int64(keep))
}

func (w *walk) restart(t *rapid.T) {
	followers := w.watchers
	w.watchers = nil
	for _, f := range followers {
		f.Close()
	}
	w.reopen()
	for _, f := range followers {
		w.start(t, f)
	}
}

func (w *walk) checkState(t *rapid.T) {
	if got := w.fixture.revision(); got != w.model.last {
		t.Fatalf("the store is at %d, the model at %d", got, w.model.last)
	}
	got := state{}
	for _, kind := range []string{"tenant", "machine"} {
		for _, o := range w.list(store.Query{Kind: kind}).Objects {
			got[key{o.Kind, o.Name}] = o
		}
	}
	if d := diff(w.model.present(), got); d != "" {
		t.Fatalf("state (-model +store):\n%s", d)
	}
}
