package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func (w *world) next(id string) (s Step) {
	w.fail.Helper()
	w.view(func(r store.Reader) (err error) {
		s, err = w.ledger.Next(r, id)
		return err
	})
	return s
}

func TestWhatAnIntentNeedsNext(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	expect := func(id string, want Step) {
		t.Helper()
		if got := w.next(id); got != want {
			t.Fatalf("it needs %+v, want %+v", got, want)
		}
	}
	expect("intent-9-9", Step{})
	i := w.declare("n", "orders", hub.Running)
	expect(i.ID, Step{Node: "n", WakeNode: true})
	lost, _ := a.poll()
	expect(i.ID, Step{Node: "n", After: hub.RedeliverAfter})
	w.now = w.now.Add(hub.RedeliverAfter)
	expect(i.ID, Step{Node: "n", WakeNode: true, After: hub.RedeliverAfter})
	w.now = w.now.Add(hub.DispatchLease - hub.RedeliverAfter)
	expect(i.ID, Step{Node: "n", Advance: true})
	w.update(func(tx store.Tx) error {
		s, err := w.ledger.Advance(tx, i.ID)
		if want := (Step{Node: "n", FullRequired: true}); s != want {
			t.Errorf("advanced to %+v, want %+v", s, want)
		}
		return err
	})
	expect(i.ID, Step{Node: "n", FullRequired: true})
	a.take(lost[0])
	a.tell(true)
	expect(i.ID, Step{Node: "n", FullRequired: true})
	a.broken = &hub.Failure{Class: hub.Transient, Code: "start_failed"}
	a.act()
	a.tell(false)
	expect(i.ID, Step{Node: "n", After: hub.RetryMin * 3 / 2})
	w.now = w.now.Add(2 * hub.RetryMin)
	expect(i.ID, Step{Node: "n", WakeNode: true})
	again, _ := a.poll()
	a.take(again[0])
	a.tell(false)
	expect(i.ID, Step{Node: "n", After: hub.AckLease})
	a.broken = nil
	a.act()
	a.tell(false)
	expect(i.ID, Step{Node: "n"})
}

func TestASupersededAttemptRunsOut(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	i := w.declare("n", "orders", hub.Running)
	a.poll()
	w.declare("n", "orders", hub.Stopped)
	if s := w.next(i.ID); s.WakeNode || s.After != hub.DispatchLease {
		t.Fatalf("it needs %+v", s)
	}
	w.now = w.now.Add(hub.DispatchLease)
	w.advanceAll()
	if got := w.intent(i.ID); got.State != hub.Superseded || got.Attempt.State != hub.Ambiguous || got.AwaitReport != nil {
		t.Fatalf("it is %+v, attempt %+v", got, got.Attempt)
	}
	if s := w.next(i.ID); s != (Step{Node: "n"}) {
		t.Fatalf("then it needs %+v", s)
	}
}

func (w *world) trim() []string {
	w.fail.Helper()
	var names []string
	w.view(func(r store.Reader) (err error) {
		names, err = w.ledger.Expired(r, 100)
		return err
	})
	w.update(func(tx store.Tx) error {
		n, err := w.ledger.Trim(tx, names)
		if n != len(names) {
			t := w.fail
			t.Fatalf("%d of %v were removed", n, names)
		}
		return err
	})
	slices.Sort(names)
	return names
}

func TestEndedIntentsAreKeptForAMonthTheCurrentOneForEver(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	first := w.declare("n", "orders", hub.Running)
	a.work()
	second := w.declare("n", "orders", hub.Stopped)
	a.work()
	idle := w.declare("n", "idle", hub.Running)
	if got := w.trim(); len(got) > 0 {
		t.Fatalf("fresh ones went: %v", got)
	}
	w.now = w.now.Add(KeepIntents + time.Second)
	third := w.declare("n", "idle", hub.Running)
	if got := w.trim(); !slices.Equal(got, []string{first.ID}) {
		t.Fatalf("%v went, want %s", got, first.ID)
	}
	w.now = w.now.Add(KeepIntents + time.Second)
	if got := w.trim(); !slices.Equal(got, []string{idle.ID}) {
		t.Fatalf("%v went, want %s", got, idle.ID)
	}
	for _, kept := range []string{second.ID, third.ID} {
		w.intent(kept)
	}
	w.delete("n", true)
	w.now = w.now.Add(KeepIntents + time.Second)
	if got := w.trim(); len(got) != 2 {
		t.Fatalf("%v went after their node", got)
	}
}

func TestANodeKeepsSoManyIntentsAtMost(t *testing.T) {
	w := newWorld(t)
	w.online("n")
	const surplus = 7
	current := w.declare("n", "first", hub.Running)
	for batch := range 10 {
		w.update(func(tx store.Tx) error {
			for k := range (MaxIntents + surplus) / 10 {
				if _, err := w.ledger.Declare(tx, Mutation{Node: "n", Resource: "orders", Verb: hub.SetState, State: hub.Stopped, CorrelationID: fmt.Sprint(batch, k)}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	total := 10*((MaxIntents+surplus)/10) + 1
	got := w.trim()
	if len(got) != total-MaxIntents-1 || slices.Contains(got, current.ID) {
		t.Fatalf("%d of %d went: %v", len(got), total, got)
	}
	if again := w.trim(); len(again) > 0 {
		t.Fatalf("then %v", again)
	}
}

func TestTheNameOfAForgottenRestartIsFree(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	named := Mutation{Node: "n", Resource: "orders", Verb: hub.Restart, ActionID: "nightly"}
	if _, err := w.tryDeclare(named); err != nil {
		t.Fatal(err)
	}
	w.declare("n", "orders", hub.Running)
	a.work()
	w.now = w.now.Add(KeepIntents + time.Second)
	w.trim()
	if _, err := w.tryDeclare(named); err != nil {
		t.Fatal(err)
	}
}

func TestTheNameOfARestartOutlivesItsNode(t *testing.T) {
	w := newWorld(t)
	named := Mutation{Node: "n", Resource: "orders", Verb: hub.Restart, ActionID: "nightly"}
	w.online("n")
	w.declare("n", "orders", hub.Running)
	if _, err := w.tryDeclare(named); err != nil {
		t.Fatal(err)
	}
	w.delete("n", true)
	w.online("n")
	w.declare("n", "orders", hub.Running)
	var invalid *hub.ValidationError
	if _, err := w.tryDeclare(named); !errors.As(err, &invalid) {
		t.Fatalf("the machine may have run it: %v", err)
	}
	w.now = w.now.Add(KeepIntents + time.Second)
	w.trim()
	if _, err := w.tryDeclare(named); err != nil {
		t.Fatal(err)
	}
}
