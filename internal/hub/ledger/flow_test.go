package ledger

import (
	"errors"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func (w *world) expect(node, resource, convergence string) {
	w.fail.Helper()
	if got := w.convergence(node, resource); got != convergence {
		w.fail.Fatalf("convergence is %q, want %q", got, convergence)
	}
}

func (w *world) expectState(id string, s hub.IntentState) {
	w.fail.Helper()
	if i := w.intent(id); i.State != s {
		w.fail.Fatalf("%s is %s, want %s (%+v)", id, i.State, s, i.Failure)
	}
}

func TestAStreamConverges(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	i := w.declare("n", "orders", hub.Running)
	if i.ID != "intent-1-1" || i.Generation != 1 || i.Convergence.State != hub.Pending || i.CorrelationID != "c-1" {
		t.Fatalf("accepted as %+v", i)
	}
	commands, full := a.poll()
	if len(commands) != 1 || full {
		t.Fatalf("polled %+v, full %v", commands, full)
	}
	c := commands[0]
	if c.IntentID != i.ID || c.Generation != 1 || c.State != hub.Running || c.ConfigVersion != w.config || c.Digest == "" || c.ExpiresInMS != hub.DispatchLease.Milliseconds() {
		t.Fatalf("command %+v", c)
	}
	w.expect("n", "orders", "applying")
	if s := w.stream("n", "orders"); s.Status.AttemptID != c.AttemptID {
		t.Fatalf("the active attempt is %q", s.Status.AttemptID)
	}
	a.take(c)
	a.tell(false)
	w.expect("n", "orders", "applying")
	w.expectState(i.ID, hub.Converging)
	a.act()
	a.tell(false)
	w.expect("n", "orders", "in_sync")
	w.expectState(i.ID, hub.Converged)
	s := w.stream("n", "orders")
	if s.Status.AttemptID != "" || s.Spec.LastConverged != w.config {
		t.Fatalf("stream %+v %+v", s.Spec, s.Status)
	}
	w.view(func(r store.Reader) error {
		if _, err := r.Claimed(claimAttempt, "n/orders"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the claim outlived its attempt: %v", err)
		}
		return nil
	})
}

func TestAnOfflineNodeDoesNotRejectAWriteAndGetsTheLatestOnly(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.presence("n", hub.PresenceOffline)
	first := w.declare("n", "orders", hub.Running)
	w.expect("n", "orders", "unknown never_observed")
	second := w.declare("n", "orders", hub.Stopped)
	third := w.declare("n", "orders", hub.Running)
	w.now = w.now.Add(24 * time.Hour)
	w.advanceAll()
	if commands, full := a.poll(); len(commands) > 0 || !full {
		t.Fatalf("an offline node got %v before its report", commands)
	}
	a.tell(true)
	commands, _ := a.poll()
	if len(commands) != 1 || commands[0].Generation != 3 {
		t.Fatalf("it got %+v", commands)
	}
	w.expectState(first.ID, hub.Superseded)
	w.expectState(second.ID, hub.Superseded)
	a.take(commands[0])
	a.act()
	a.tell(false)
	w.expectState(third.ID, hub.Converged)
}

func TestNothingIsSentBeforeTheFirstFullReportOfABoot(t *testing.T) {
	w := newWorld(t)
	a := w.agent("n")
	w.declare("n", "orders", hub.Running)
	if commands, full := a.poll(); len(commands) > 0 || !full {
		t.Fatalf("got %v, full required %v", commands, full)
	}
	if _, err := a.send(a.report(false)); !errors.Is(err, hub.ErrFullReportRequired) {
		t.Fatalf("a partial first report: %v", err)
	}
	a.tell(true)
	if commands, _ := a.poll(); len(commands) != 1 {
		t.Fatalf("got %v", commands)
	}
	a.reboot()
	if commands, full := a.poll(); len(commands) > 0 || !full {
		t.Fatalf("the next boot got %v, full required %v", commands, full)
	}
}

func TestALostAnswerIsSentAgain(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	lost, _ := a.poll()
	if again, _ := a.poll(); len(again) > 0 {
		t.Fatal("it is sent again at once")
	}
	w.now = w.now.Add(hub.RedeliverAfter)
	again, _ := a.poll()
	if len(again) != 1 || again[0].AttemptID != lost[0].AttemptID || again[0].ExpiresInMS != (hub.DispatchLease-hub.RedeliverAfter).Milliseconds() {
		t.Fatalf("sent again: %+v", again)
	}
	a.take(lost[0])
	a.take(again[0])
	a.act()
	a.tell(false)
	w.expect("n", "orders", "in_sync")
}

func TestAnAmbiguousAttemptWaitsForAFullReport(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	i := w.declare("n", "orders", hub.Running)
	lost, _ := a.poll()
	w.now = w.now.Add(hub.DispatchLease)
	w.advanceAll()
	w.expect("n", "orders", "degraded ambiguous")
	if commands, full := a.poll(); len(commands) > 0 || !full {
		t.Fatalf("got %v, full required %v", commands, full)
	}
	if out := a.tell(false); !out.FullRequired {
		t.Fatal("a partial report settled it")
	}
	if out := a.tell(true); out.FullRequired || !out.Wake {
		t.Fatalf("after the full report: %+v", out)
	}
	commands, _ := a.poll()
	if len(commands) != 1 || commands[0].AttemptID == lost[0].AttemptID || commands[0].Generation != 1 {
		t.Fatalf("then it got %+v", commands)
	}
	a.take(commands[0])
	a.take(lost[0])
	a.act()
	a.tell(false)
	w.expectState(i.ID, hub.Converged)
}

func TestANewerGenerationNeedNotWaitForTheOlderAttempt(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	older := w.declare("n", "orders", hub.Running)
	first, _ := a.poll()
	newer := w.declare("n", "orders", hub.Stopped)
	second, _ := a.poll()
	if len(second) != 1 || second[0].Generation != 2 {
		t.Fatalf("got %+v", second)
	}
	a.take(second[0])
	a.take(first[0])
	a.act()
	a.tell(false)
	w.expectState(newer.ID, hub.Converged)
	w.expect("n", "orders", "in_sync")
	old := w.intent(older.ID)
	if old.State != hub.Superseded || old.Attempt.State != hub.AttemptFail || old.Attempt.Result.Code != "stale_generation" {
		t.Errorf("the older is %s, its attempt %+v", old.State, old.Attempt)
	}
}

func TestALateResultOfASupersededAttemptChangesItsOwnRecordOnly(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	older := w.declare("n", "orders", hub.Running)
	first, _ := a.poll()
	w.declare("n", "orders", hub.Stopped)
	second, _ := a.poll()
	before := w.stream("n", "orders")
	r := a.report(false)
	r.Attempts = []agentapi.AttemptReport{{AttemptID: first[0].AttemptID, State: hub.AttemptFail, Failure: &hub.Failure{Class: hub.Permanent, Code: "late"}}}
	if _, err := a.send(r); err != nil {
		t.Fatal(err)
	}
	after := w.stream("n", "orders")
	if after.Revision != before.Revision || after.Status.AttemptID != second[0].AttemptID {
		t.Errorf("the stream became %+v", after.Status)
	}
	if old := w.intent(older.ID); old.State != hub.Superseded || old.Attempt.Result.Code != "late" {
		t.Errorf("the older is %+v", old)
	}
	w.view(func(r store.Reader) error {
		owner, err := r.Claimed(claimAttempt, "n/orders")
		if err != nil || owner != second[0].AttemptID {
			t.Errorf("the claim is %q's: %v", owner, err)
		}
		return nil
	})
}

func TestSupersededBeforeDispatchIsNeverSent(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	older := w.declare("n", "orders", hub.Running)
	w.declare("n", "orders", hub.Stopped)
	commands, _ := a.poll()
	if len(commands) != 1 || commands[0].Generation != 2 {
		t.Fatalf("got %+v", commands)
	}
	if old := w.intent(older.ID); old.Attempt != nil || old.State != hub.Superseded {
		t.Errorf("the older is %+v", old)
	}
}

func TestCancelBeforeDispatchSuppresses(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	i := w.declare("n", "orders", hub.Running)
	if _, err := w.cancel(i.ID); err != nil {
		t.Fatal(err)
	}
	w.expect("n", "orders", "blocked cancelled")
	if commands, _ := a.poll(); len(commands) > 0 {
		t.Fatalf("got %v", commands)
	}
	if s := w.stream("n", "orders"); s.Spec.Desired.Generation != 1 || s.Spec.Desired.State != hub.Running {
		t.Fatalf("the target is %+v", s.Spec.Desired)
	}
	var terminal *hub.TerminalError
	if _, err := w.cancel(i.ID); !errors.As(err, &terminal) {
		t.Fatalf("again: %v", err)
	}
	var missing *hub.NotFoundError
	if _, err := w.cancel("intent-9-9"); !errors.As(err, &missing) {
		t.Fatalf("of nothing: %v", err)
	}
	next := w.declare("n", "orders", hub.Running)
	a.work()
	w.expectState(next.ID, hub.Converged)
	w.expectState(i.ID, hub.Cancelled)
}

func TestCancelAfterDispatchShowsTheOutcome(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	i := w.declare("n", "orders", hub.Running)
	commands, _ := a.poll()
	if _, err := w.cancel(i.ID); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(hub.RedeliverAfter)
	if again, _ := a.poll(); len(again) > 0 {
		t.Fatal("what was cancelled is sent again")
	}
	a.take(commands[0])
	a.act()
	a.tell(false)
	got := w.intent(i.ID)
	if got.State != hub.Cancelled || got.Attempt.State != hub.Succeeded || got.Observed.State != hub.Running {
		t.Fatalf("it is %+v, attempt %+v", got, got.Attempt)
	}
	w.expect("n", "orders", "in_sync")
}

func TestARestartConvergesByItsActionOnly(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	a.work()
	i := w.restart("n", "orders")
	if i.Generation != 2 || i.Desired.ActionID == "" || i.Desired.ConfigVersion != w.config {
		t.Fatalf("accepted as %+v", i)
	}
	commands, _ := a.poll()
	a.take(commands[0])
	a.disk["orders"].state = hub.Running
	a.tell(false)
	w.expectState(i.ID, hub.Converging)
	a.disk["orders"].state = hub.Starting
	a.act()
	a.tell(false)
	w.expectState(i.ID, hub.Converged)
	if a.ran[i.Desired.ActionID] != 1 {
		t.Fatalf("it ran %d times", a.ran[i.Desired.ActionID])
	}
}

func TestOnlyWhatIsDesiredRunningIsRestarted(t *testing.T) {
	w := newWorld(t)
	w.online("n")
	var missing *hub.NotFoundError
	if _, err := w.tryDeclare(Mutation{Node: "n", Resource: "orders", Verb: hub.Restart}); !errors.As(err, &missing) || missing.Kind != "stream" {
		t.Fatalf("restart of nothing: %v", err)
	}
	w.declare("n", "orders", hub.Stopped)
	if _, err := w.tryDeclare(Mutation{Node: "n", Resource: "orders", Verb: hub.Restart}); !errors.Is(err, hub.ErrNotRunning) {
		t.Fatalf("restart of a stopped one: %v", err)
	}
}

func TestANameOfARestartIsUsedOnce(t *testing.T) {
	w := newWorld(t)
	w.online("n")
	w.declare("n", "orders", hub.Running)
	named := Mutation{Node: "n", Resource: "orders", Verb: hub.Restart, ActionID: "nightly"}
	if _, err := w.tryDeclare(named); err != nil {
		t.Fatal(err)
	}
	var invalid *hub.ValidationError
	if _, err := w.tryDeclare(named); !errors.As(err, &invalid) || invalid.Fields[0].Field != "action_id" {
		t.Fatalf("again: %v", err)
	}
	w.declare("n", "payments", hub.Running)
	named.Resource = "payments"
	if _, err := w.tryDeclare(named); err != nil {
		t.Fatalf("for another stream: %v", err)
	}
}

func TestANodeThatLostItsDiskGetsEverythingAgainButNoActionTwice(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	w.declare("n", "payments", hub.Running)
	a.work()
	restart := w.restart("n", "orders")
	a.work()
	w.expectState(restart.ID, hub.Converged)
	on := w.restart("n", "payments")
	commands, _ := a.poll()
	a.take(commands[0])
	a.tell(false)
	a.act()
	a.loseDisk()
	w.expectState(on.ID, hub.Blocked)
	a.tell(true)
	for range 3 {
		a.work()
	}
	w.expect("n", "orders", "in_sync")
	w.expect("n", "payments", "blocked action_interrupted")
	for _, i := range []*hub.Intent{restart, on} {
		if a.ran[i.Desired.ActionID] != 1 {
			t.Errorf("the restart %s ran %d times", i.ID, a.ran[i.Desired.ActionID])
		}
	}
	w.declare("n", "payments", hub.Running)
	a.work()
	w.expect("n", "payments", "in_sync")
}

func TestANodeAheadOfTheHubIsNotSentALowerGeneration(t *testing.T) {
	w := newWorld(t)
	a := w.agent("n")
	a.disk["orders"] = &taken{desired: agentapi.Command{Generation: 7, ConfigVersion: w.config}, state: hub.Running}
	w.declare("n", "orders", hub.Running)
	a.tell(true)
	w.expect("n", "orders", "blocked node_ahead")
	if commands, _ := a.poll(); len(commands) > 0 {
		t.Fatalf("it got %+v", commands)
	}
	if i := w.declare("n", "orders", hub.Running); i.Generation != 8 {
		t.Fatalf("the next generation is %d", i.Generation)
	}
	a.work()
	w.expect("n", "orders", "in_sync")
}

func TestAReportedStreamThatNobodyDeclaredIsShown(t *testing.T) {
	w := newWorld(t)
	a := w.agent("n")
	a.disk["old"] = &taken{desired: agentapi.Command{Generation: 3, ConfigVersion: "cfg-9"}, state: hub.Running}
	a.tell(true)
	w.expect("n", "old", "unknown no_desired_state")
	if s := w.stream("n", "old"); s.Spec.Desired != nil || s.Status.Observed.Generation != 3 {
		t.Fatalf("it is %+v", s)
	}
	if _, err := w.tryDeclare(Mutation{Node: "n", Resource: "old", State: hub.Absent, Match: hub.Match{Generations: []int64{0}}}); err != nil {
		t.Fatal(err)
	}
	a.work()
	w.expect("n", "old", "in_sync")
	if got := w.stream("n", "old").Spec.Generation(); got != 4 {
		t.Errorf("generation %d", got)
	}
	delete(a.disk, "old")
	a.disk["odd"] = &taken{desired: agentapi.Command{Generation: 1}, state: hub.Running}
	a.tell(true)
	delete(a.disk, "odd")
	a.tell(true)
	w.view(func(r store.Reader) error {
		if _, err := hub.Streams.Get(r, "n/odd"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("what nobody declared and the node does not know is still there: %v", err)
		}
		return nil
	})
}

func TestFailuresAreRetriedOrBlock(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	a.broken = &hub.Failure{Class: hub.Transient, Code: "start_failed", Message: "no"}
	i := w.declare("n", "orders", hub.Running)
	a.work()
	w.expect("n", "orders", "degraded start_failed")
	if commands, _ := a.poll(); len(commands) > 0 {
		t.Fatal("it is tried again at once")
	}
	w.now = w.now.Add(2 * hub.RetryMin)
	a.work()
	if got := w.intent(i.ID); got.State != hub.Retrying || got.Retry.Count != 2 || got.Attempts != 2 {
		t.Fatalf("it is %+v", got)
	}
	a.broken = &hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config", Message: "no such input"}
	w.now = w.now.Add(hub.RetryMax)
	a.work()
	w.expect("n", "orders", "blocked invalid_config")
	a.broken = nil
	good := w.publish(hub.EngineProcess, "command: true")
	if _, err := w.tryDeclare(Mutation{Node: "n", Resource: "orders", Verb: hub.ConfigApply, ConfigVersion: good}); err != nil {
		t.Fatal(err)
	}
	a.work()
	w.expect("n", "orders", "in_sync")
}

func TestPresenceIsPartOfConvergence(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	a.work()
	before := w.stream("n", "orders")
	w.presence("n", hub.PresenceOffline)
	w.expect("n", "orders", "unknown node_offline")
	a.tell(false)
	w.expect("n", "orders", "in_sync")
	w.presence("n", hub.PresenceOnline)
	if w.stream("n", "orders").Revision == before.Revision {
		t.Error("the changes were not stored")
	}
}
