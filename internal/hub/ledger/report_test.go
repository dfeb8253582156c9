package ledger

import (
	"errors"
	"testing"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func (w *world) changes(a *agent, r *agentapi.Report) (changes bool) {
	w.fail.Helper()
	w.view(func(reader store.Reader) (err error) {
		changes, _, err = w.ledger.ReportChanges(reader, a.id, r)
		return err
	})
	return changes
}

func (w *world) revision() (n int64) {
	w.view(func(r store.Reader) error { n = r.Revision(); return nil })
	return n
}

func TestOldAndRepeatedReportsAreRefused(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	delayed := a.report(true)
	a.work()
	var stale *hub.StaleReportError
	if _, err := a.send(delayed); !errors.As(err, &stale) || stale.Cursor.Boot != a.boot || stale.Cursor.ReportSeq != a.seq {
		t.Fatalf("a delayed report: %v", err)
	}
	earlier := a.report(true)
	a.reboot()
	if _, err := a.send(earlier); !errors.As(err, &stale) {
		t.Fatalf("a report of an older boot: %v", err)
	}
	clone := a.report(true)
	clone.BootID = "clone"
	if _, err := a.send(clone); !errors.Is(err, hub.ErrIdentityConflict) {
		t.Fatalf("a report of a clone: %v", err)
	}
	if _, err := (&agent{w: w, id: "other", boot: a.boot}).send(a.report(true)); !errors.Is(err, hub.ErrNotEnrolled) {
		t.Fatalf("a report of no node: %v", err)
	}
	w.expect("n", "orders", "in_sync")
}

func TestHeartbeatsStoreNothing(t *testing.T) {
	w := newWorld(t)
	a := w.agent("n")
	if !w.changes(a, a.report(true)) {
		t.Fatal("the first report is news")
	}
	a.tell(true)
	w.declare("n", "orders", hub.Running)
	commands, _ := a.poll()
	a.take(commands[0])
	r := a.report(false)
	r.Streams = nil
	if !w.changes(a, r) {
		t.Error("an acknowledgement is news")
	}
	a.act()
	a.tell(false)
	a.tell(true)
	before := w.revision()
	for _, full := range []bool{false, true} {
		r := a.report(full)
		r.Attempts = []agentapi.AttemptReport{{AttemptID: commands[0].AttemptID, State: hub.Succeeded}}
		if w.changes(a, r) {
			t.Errorf("the same again (full %v) is news", full)
		}
		if out, err := a.send(r); err != nil || out.Changed {
			t.Errorf("the same again (full %v) was stored: %+v %v", full, out, err)
		}
	}
	if w.revision() != before {
		t.Error("heartbeats took revisions")
	}
	a.disk["orders"].state = hub.Failed
	if !w.changes(a, a.report(false)) {
		t.Error("a failure is news")
	}
	a.disk = nil
	if !w.changes(a, a.report(true)) || w.changes(a, a.report(false)) {
		t.Error("what is missing is news in a full report only")
	}
}

func TestOneNodeCannotAnswerForAnother(t *testing.T) {
	w := newWorld(t)
	a, b := w.online("a"), w.online("b")
	i := w.declare("a", "orders", hub.Running)
	commands, _ := a.poll()
	r := b.report(false)
	for _, id := range []string{commands[0].AttemptID, "attempt-1-1-guess", "attempt-", "attempt-x", "intent-1-1", ""} {
		r.Attempts = append(r.Attempts, agentapi.AttemptReport{AttemptID: id, State: hub.AttemptFail, Failure: &hub.Failure{Class: hub.Permanent}})
	}
	if _, err := b.send(r); err != nil {
		t.Fatal(err)
	}
	if got := w.intent(i.ID); got.State != hub.Converging || got.Attempt.State != hub.Dispatched {
		t.Errorf("it became %+v", got)
	}
}

func TestAFullReportTellsOfStreamsThatItLacks(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	i := w.declare("n", "orders", hub.Running)
	a.work()
	a.disk = map[string]*taken{}
	a.tell(false)
	w.expect("n", "orders", "in_sync")
	a.tell(true)
	w.expect("n", "orders", "pending")
	w.expectState(i.ID, hub.Accepted)
	a.work()
	w.expect("n", "orders", "in_sync")
}

func TestAHubFromABackupLearnsOfANewerBoot(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	a.boot = hub.Boot{ID: "later", Seq: a.boot.Seq + 5}
	if commands, full := a.poll(); len(commands) > 0 || !full {
		t.Fatalf("polled %v, full required %v", commands, full)
	}
	a.tell(true)
	w.view(func(r store.Reader) error {
		n, err := hub.Nodes.Get(r, "n")
		if err == nil && n.Status.Boot != a.boot {
			t.Errorf("the newest boot is %+v", n.Status.Boot)
		}
		return err
	})
}
