package ledger

import (
	"errors"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func (w *world) node(id string) (n *hub.Node) {
	w.fail.Helper()
	w.view(func(r store.Reader) (err error) {
		n, err = hub.Nodes.Get(r, id)
		return err
	})
	return n
}

func (w *world) exists(kind, name string) (found bool) {
	w.fail.Helper()
	w.view(func(r store.Reader) error {
		_, err := r.Get(kind, name)
		found = err == nil
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	return found
}

func (w *world) tryEnrol(token, key string, boot hub.Boot) (n *hub.Node, err error) {
	err = w.try(func(tx store.Tx) (err error) {
		n, err = w.ledger.Enrol(tx, &agentapi.EnrolRequest{NodeID: "n", EnrolmentToken: token, PublicKey: key, BootID: boot.ID, BootSeq: boot.Seq})
		return err
	})
	return n, err
}

func TestEnrolmentTakesTheTokenOnceForOneKey(t *testing.T) {
	w := newWorld(t)
	if _, err := w.tryEnrol("guess", "key", hub.Boot{ID: "b", Seq: 1}); !errors.Is(err, hub.ErrEnrolment) {
		t.Fatalf("no node: %v", err)
	}
	token := w.register("n")
	if n := w.node("n"); n.Status.Presence != hub.PresencePending {
		t.Fatalf("registered as %+v", n.Status)
	}
	if _, err := w.tryEnrol("guess", "key", hub.Boot{ID: "b", Seq: 1}); !errors.Is(err, hub.ErrEnrolment) {
		t.Fatalf("a guess: %v", err)
	}
	first, err := w.tryEnrol(token, "key", hub.Boot{ID: "b", Seq: 1})
	if err != nil || first.Status.Presence != hub.PresenceOffline {
		t.Fatalf("%+v %v", first, err)
	}
	again, err := w.tryEnrol(token, "key", hub.Boot{ID: "c", Seq: 2})
	if err != nil || again.Status.Credential.ID != first.Status.Credential.ID || again.Status.Boot.Seq != 2 {
		t.Fatalf("again: %+v %v", again, err)
	}
	if _, err := w.tryEnrol(token, "another", hub.Boot{ID: "d", Seq: 1}); !errors.Is(err, hub.ErrEnrolment) {
		t.Fatalf("another key: %v", err)
	}
	w.now = w.now.Add(hub.EnrolmentTTL)
	if _, err := w.tryEnrol(token, "key", hub.Boot{ID: "c", Seq: 2}); !errors.Is(err, hub.ErrEnrolment) {
		t.Fatalf("expired: %v", err)
	}
	err = w.try(func(tx store.Tx) error {
		_, err := w.ledger.RegisterNode(tx, "n", nil, hub.Enrolment{})
		return err
	})
	if !errors.Is(err, hub.ErrNodeExists) {
		t.Fatalf("registered twice: %v", err)
	}
	var invalid *hub.ValidationError
	if err := w.try(func(tx store.Tx) error {
		_, err := w.ledger.RegisterNode(tx, "__n", nil, hub.Enrolment{})
		return err
	}); !errors.As(err, &invalid) {
		t.Fatalf("a bad name: %v", err)
	}
}

func TestANewEnrolmentVoidsTheOldCredentialAndStartsAfresh(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	a.work()
	old := *a
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.NoteConflict(tx, "n", "two agents")
		return err
	})
	a.loseDisk()
	w.expect("n", "orders", "unknown node_offline")
	if n := w.node("n"); len(n.Status.Conditions) > 0 {
		t.Errorf("conditions %+v", n.Status.Conditions)
	}
	err := w.try(func(tx store.Tx) error {
		_, err := w.ledger.NewBoot(tx, "n", old.cred, BootInfo{Boot: hub.Boot{ID: "x", Seq: 9}})
		return err
	})
	if !errors.Is(err, hub.ErrNotEnrolled) {
		t.Errorf("a session of the old credential: %v", err)
	}
	if _, err := a.send(a.report(false)); !errors.Is(err, hub.ErrFullReportRequired) {
		t.Errorf("a partial first report: %v", err)
	}
	a.tell(true)
	a.work()
	w.expect("n", "orders", "in_sync")
}

func TestTheNewestBootWins(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	boot := func(id string, seq int64) error {
		return w.try(func(tx store.Tx) error {
			_, err := w.ledger.NewBoot(tx, "n", a.cred, BootInfo{Boot: hub.Boot{ID: id, Seq: seq}, AgentVersion: "1.2.3"})
			return err
		})
	}
	if err := boot(a.boot.ID, 1); err != nil {
		t.Fatalf("the same boot: %v", err)
	}
	if err := boot("two", 2); err != nil {
		t.Fatalf("the next boot: %v", err)
	}
	if err := boot(a.boot.ID, 1); !errors.Is(err, hub.ErrSessionSuperseded) {
		t.Fatalf("the older boot: %v", err)
	}
	if err := boot("clone", 2); !errors.Is(err, hub.ErrIdentityConflict) {
		t.Fatalf("another agent: %v", err)
	}
	if n := w.node("n"); n.Status.Boot.ID != "two" || n.Status.AgentVersion != "1.2.3" || n.Status.Presence != hub.PresenceOnline {
		t.Fatalf("the node is %+v", n.Status)
	}
	err := w.try(func(tx store.Tx) error {
		_, _, err := w.ledger.Dispatch(tx, "n", a.boot, 10)
		return err
	})
	if !errors.Is(err, hub.ErrSessionSuperseded) {
		t.Fatalf("a poll of the older boot: %v", err)
	}
}

func TestAConflictIsNotedUntilItIsQuiet(t *testing.T) {
	w := newWorld(t)
	w.online("n")
	note := func(message string) (came bool) {
		w.update(func(tx store.Tx) (err error) {
			came, err = w.ledger.NoteConflict(tx, "n", message)
			return err
		})
		return came
	}
	clearAfter := func(quiet time.Duration) (went bool) {
		w.update(func(tx store.Tx) (err error) {
			went, err = w.ledger.ClearConflict(tx, "n", quiet)
			return err
		})
		return went
	}
	if !note("first") || note("second") {
		t.Fatal("it comes once")
	}
	w.now = w.now.Add(time.Minute)
	note("third")
	c := w.node("n").Status.Conditions
	if len(c) != 1 || c[0].Message != "third" || c[0].LastSeen.Sub(c[0].Since) != time.Minute {
		t.Fatalf("conditions %+v", c)
	}
	w.now = w.now.Add(9 * time.Minute)
	if clearAfter(10 * time.Minute) {
		t.Fatal("it went early")
	}
	w.now = w.now.Add(time.Minute)
	if !clearAfter(10*time.Minute) || clearAfter(0) || len(w.node("n").Status.Conditions) > 0 {
		t.Fatal("it goes once")
	}
}

func (w *world) delete(node string, force bool) (gone bool) {
	w.fail.Helper()
	w.update(func(tx store.Tx) (err error) {
		gone, err = w.ledger.DeleteNode(tx, Deletion{Node: node, Force: force, Principal: "ann"})
		return err
	})
	return gone
}

func (w *world) finish(node string) (gone bool) {
	w.fail.Helper()
	w.update(func(tx store.Tx) (err error) {
		gone, err = w.ledger.FinishNode(tx, node)
		return err
	})
	return gone
}

func TestANodeGoesWhenItsStreamsAreAbsent(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	a.disk["stray"] = &taken{desired: agentapi.Command{Generation: 2}, state: hub.Running}
	a.work()
	if w.finish("n") || w.delete("n", false) {
		t.Fatal("it went with its streams running")
	}
	if _, err := w.tryDeclare(Mutation{Node: "n", Resource: "orders", State: hub.Running}); !errors.Is(err, hub.ErrNodeDeleting) {
		t.Fatalf("a write meanwhile: %v", err)
	}
	if w.delete("n", false) || w.finish("n") {
		t.Fatal("it went before the node has told")
	}
	leaving := w.stream("n", "orders").Spec
	if leaving.Desired.State != hub.Absent || leaving.Desired.Generation != 2 || w.stream("n", "stray").Spec.Desired.Generation != 3 {
		t.Fatalf("declared %+v", leaving.Desired)
	}
	if _, err := w.cancel(leaving.IntentID); err != nil {
		t.Fatal(err)
	}
	if w.finish("n") || w.stream("n", "orders").Spec.Desired.Generation != 3 {
		t.Fatal("what was cancelled meanwhile is declared absent again")
	}
	a.work()
	for range 2 {
		if !w.finish("n") {
			t.Fatal("it stays")
		}
	}
	for _, s := range []string{"n/orders", "n/stray"} {
		if w.exists(hub.Streams.Kind.Name, s) {
			t.Errorf("%s stayed", s)
		}
	}
	if w.exists(hub.Nodes.Kind.Name, "n") || w.intent(leaving.IntentID).State != hub.Cancelled {
		t.Error("the node goes, its operations stay")
	}
	if _, err := a.send(a.report(true)); !errors.Is(err, hub.ErrNotEnrolled) {
		t.Errorf("its agent: %v", err)
	}
}

func TestWhatHasNothingToStopGoesAtOnce(t *testing.T) {
	w := newWorld(t)
	w.register("pending")
	i := w.declare("pending", "orders", hub.Running)
	w.online("idle")
	if !w.delete("pending", false) || !w.delete("idle", false) {
		t.Fatal("they stay")
	}
	w.expectState(i.ID, hub.Cancelled)
	var missing *hub.NotFoundError
	if err := w.try(func(tx store.Tx) error {
		_, err := w.ledger.DeleteNode(tx, Deletion{Node: "idle"})
		return err
	}); !errors.As(err, &missing) {
		t.Fatalf("again: %v", err)
	}
}

func TestForceRemovesANodeThatWillNotAnswer(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	a.work()
	i := w.restart("n", "orders")
	a.poll()
	if w.delete("n", false) || !w.delete("n", true) {
		t.Fatal("only force removes it")
	}
	got := w.intent(i.ID)
	if got.State != hub.Superseded || got.Attempt.State != hub.Ambiguous || got.Open() {
		t.Errorf("what was on its way is %s, attempt %+v", got.State, got.Attempt)
	}
	b := w.online("n")
	w.declare("n", "orders", hub.Running)
	b.work()
	w.expect("n", "orders", "in_sync")
}
