package hub

import (
	"errors"
	"testing"
	"time"
)

// fresh is an intent of generation 4 that was just accepted.
func fresh(action string) *Intent {
	d := want
	d.ActionID = action
	return &Intent{ID: "intent-4-9", Generation: 4, State: Accepted, Desired: d, Retry: RetryState{Budget: RetryBudget}}
}

var boot1, boot2 = Boot{ID: "one", Seq: 1}, Boot{ID: "two", Seq: 2}

// step changes an intent; the tests below read as what happened to it.
type step func(*Intent)

func sent(i *Intent)         { i.Dispatch(noon, "attempt-4-9-x", boot1) }
func acknowledged(i *Intent) { i.Acknowledge(noon) }
func succeeded(i *Intent)    { i.Succeed(noon) }
func expired(i *Intent)      { i.Expire(noon.Add(time.Hour)) }
func superseded(i *Intent)   { i.Supersede(noon) }
func cancelled(i *Intent)    { _ = i.Cancel(noon) }
func enrolledAnew(i *Intent) { i.LoseNode(noon) }
func nodeDeleted(i *Intent)  { i.Abandon(noon) }
func fails(c Class) step {
	return func(i *Intent) { i.Fail(noon, Failure{Class: c, Code: "start_failed"}, 0.5) }
}
func reports(o *Observed) step {
	return func(i *Intent) { i.Observe(noon, o, Evidence{Boot: boot1.ID}) }
}
func reportsFully(o *Observed) step {
	return func(i *Intent) { i.Observe(noon, o, Evidence{Boot: boot1.ID, Full: true}) }
}
func nextBootReports(o *Observed) step {
	return func(i *Intent) { i.Observe(noon, o, Evidence{Boot: boot2.ID, Full: true}) }
}

func withActions(o *Observed, completed, interrupted string) *Observed {
	if completed != "" {
		o.CompletedActions = []string{completed}
	}
	if interrupted != "" {
		o.InterruptedActions = []string{interrupted}
	}
	return o
}

func failing(c Class) *Observed {
	o := seen(Failed, 4, "cfg-2")
	o.Failure = &Failure{Class: c, Code: "start_failed"}
	return o
}

func TestWhatBecomesOfAnIntent(t *testing.T) {
	rejected := seen(Running, 4, "cfg-1")
	rejected.Failure = &Failure{Class: ConfigRejected, Code: "invalid_config"}
	finished := seen(Stopped, 4, "cfg-2")
	finished.Failure = &Failure{Class: Permanent, Code: "finished"}
	away := seen(Stopping, 4, "cfg-2")
	away.Failure = &Failure{Class: Permanent, Code: "old_trouble"}
	older, reached, gone := seen(Running, 3, "cfg-1"), seen(Running, 4, "cfg-2"), seen(Absent, 0, "")
	starting, ahead := seen(Starting, 4, "cfg-2"), seen(Running, 7, "cfg-2")
	for _, c := range []struct {
		name    string
		action  string
		steps   []step
		state   IntentState
		attempt AttemptState
		failure string
		awaits  bool
		due     bool
	}{
		{name: "accepted", state: Accepted, due: true},
		{name: "sent", steps: []step{sent}, state: Converging, attempt: Dispatched},
		{name: "acknowledgement is transport only", steps: []step{sent, acknowledged}, state: Converging, attempt: Acknowledged},
		{name: "a proof converges", steps: []step{sent, acknowledged, reports(reached)}, state: Converged, attempt: Succeeded},
		{name: "a proof needs no acknowledgement", steps: []step{sent, reports(reached)}, state: Converged, attempt: Succeeded},
		{name: "success alone is no proof", steps: []step{sent, reports(starting), succeeded}, state: Converging, attempt: Succeeded},
		{name: "success without any report of the generation asks for one", steps: []step{sent, succeeded}, state: Converging, attempt: Succeeded, awaits: true},
		{name: "success that a full report does not show is retried", steps: []step{sent, succeeded, reportsFully(older)}, state: Retrying, attempt: Succeeded, failure: "not_kept"},
		{name: "the older generation while sent decides nothing", steps: []step{sent, reportsFully(older)}, state: Converging, attempt: Dispatched},
		{name: "a node that has the generation has accepted it", steps: []step{sent, reports(starting)}, state: Converging, attempt: Acknowledged},
		{name: "a transient failure is retried", steps: []step{sent, fails(Transient)}, state: Retrying, attempt: AttemptFail, failure: "start_failed"},
		{name: "an unknown class is retried", steps: []step{sent, fails("quantum")}, state: Retrying, attempt: AttemptFail, failure: "start_failed"},
		{name: "a permanent failure blocks", steps: []step{sent, fails(Permanent)}, state: Blocked, attempt: AttemptFail, failure: "start_failed"},
		{name: "a rejected config blocks", steps: []step{sent, fails(ConfigRejected)}, state: Blocked, attempt: AttemptFail, failure: "start_failed"},
		{name: "an incompatible command blocks", steps: []step{sent, fails(Incompatible)}, state: Blocked, attempt: AttemptFail, failure: "start_failed"},
		{name: "a blocked intent converges by proof", steps: []step{sent, fails(Permanent), reports(reached)}, state: Converged, attempt: AttemptFail},
		{name: "a retrying intent converges by proof", steps: []step{sent, fails(Timeout), reports(reached)}, state: Converged, attempt: AttemptFail},
		{name: "a lease that ran out is ambiguous", steps: []step{sent, expired}, state: Converging, attempt: Ambiguous, failure: "no_answer", awaits: true},
		{name: "a node that says it cannot tell is ambiguous", steps: []step{sent, fails(ClassAmbiguous)}, state: Converging, attempt: Ambiguous, failure: "start_failed", awaits: true},
		{name: "a partial report does not decide", steps: []step{sent, expired, reports(older)}, state: Converging, attempt: Ambiguous, failure: "no_answer", awaits: true},
		{name: "a full report without it: send again", steps: []step{sent, expired, reportsFully(older)}, state: Accepted, attempt: Ambiguous, due: true},
		{name: "a report with it: wait", steps: []step{sent, expired, reports(starting)}, state: Converging, attempt: Ambiguous, awaits: true, failure: "no_answer"},
		{name: "a report that proves it", steps: []step{sent, expired, reports(reached)}, state: Converged, attempt: Succeeded},
		{name: "a late acknowledgement does not decide", steps: []step{sent, expired, acknowledged}, state: Converging, attempt: Ambiguous, failure: "no_answer", awaits: true},
		{name: "a late failure does", steps: []step{sent, expired, fails(Transient)}, state: Retrying, attempt: AttemptFail, failure: "start_failed"},
		{name: "a late success is looked for", steps: []step{sent, expired, reportsFully(older), succeeded}, state: Converging, attempt: Succeeded, awaits: true},
		{name: "the next boot does not have it: send again", steps: []step{sent, nextBootReports(older)}, state: Accepted, attempt: AttemptFail, due: true},
		{name: "the next boot has it", steps: []step{sent, nextBootReports(starting)}, state: Converging, attempt: Acknowledged},
		{name: "the next boot lost what was acknowledged", steps: []step{sent, acknowledged, nextBootReports(gone)}, state: Accepted, attempt: AttemptFail, due: true},
		{name: "a node that forgets what converged gets it again", steps: []step{sent, reports(reached), reportsFully(gone)}, state: Accepted, attempt: Succeeded, due: true},
		{name: "a crash after it converged is the agent's", steps: []step{sent, reports(reached), reports(failing(Transient))}, state: Converged, attempt: Succeeded},
		{name: "a node that is ahead blocks", steps: []step{reportsFully(ahead)}, state: Blocked, failure: CodeNodeAhead},
		{name: "a node that is ahead of what converged blocks", steps: []step{sent, reports(reached), reportsFully(ahead)}, state: Blocked, attempt: Succeeded, failure: CodeNodeAhead},
		{name: "a node that was ahead and forgot", steps: []step{reportsFully(ahead), reportsFully(gone)}, state: Accepted, due: true},
		{name: "nobody answered, and the node has the generation", steps: []step{sent, expired, reports(starting)}, state: Converging, attempt: Ambiguous, awaits: true, failure: "no_answer"},
		{name: "and is on its way", steps: []step{sent, expired, reportsFully(starting)}, state: Converging, attempt: Ambiguous, awaits: true, failure: "no_answer"},
		{name: "or rests: it is asked again, for it may have another target of that number", steps: []step{sent, expired, reportsFully(seen(Stopped, 4, "cfg-1"))}, state: Accepted, attempt: Ambiguous, due: true},
		{name: "but not for a restart", action: "r1", steps: []step{sent, expired, reportsFully(seen(Running, 4, "cfg-2"))}, state: Blocked, attempt: Ambiguous, failure: "action_interrupted"},
		{name: "an observed failure waits for the attempt's result", steps: []step{sent, reports(failing(Permanent))}, state: Converging, attempt: Acknowledged},
		{name: "an observed permanent failure blocks", steps: []step{sent, reports(starting), succeeded, reports(failing(Permanent))}, state: Blocked, attempt: Succeeded, failure: "start_failed"},
		{name: "an observed transient failure is the agent's", steps: []step{sent, reports(starting), succeeded, reports(failing(Transient))}, state: Converging, attempt: Succeeded, failure: "start_failed"},

		{name: "a rejected config blocks, while the one before runs on", steps: []step{sent, reports(starting), succeeded, reports(rejected)}, state: Blocked, attempt: Succeeded, failure: "invalid_config"},
		{name: "what finished before it was seen running blocks", steps: []step{sent, reports(starting), succeeded, reports(finished)}, state: Blocked, attempt: Succeeded, failure: "finished"},
		{name: "what finished after it converged does not", steps: []step{sent, reports(reached), reports(finished)}, state: Converged, attempt: Succeeded},
		{name: "what is on its way is not judged", steps: []step{sent, reports(starting), succeeded, reports(away)}, state: Converging, attempt: Succeeded},

		{name: "running proves no restart", action: "r1", steps: []step{sent, reports(reached)}, state: Converging, attempt: Acknowledged},
		{name: "a completed restart and running", action: "r1", steps: []step{sent, reports(withActions(seen(Running, 4, "cfg-2"), "r1", ""))}, state: Converged, attempt: Succeeded},
		{name: "a completed restart, not running yet", action: "r1", steps: []step{sent, reports(withActions(seen(Starting, 4, "cfg-2"), "r1", "")), reports(reached)}, state: Converged, attempt: Succeeded},
		{name: "an interrupted restart blocks", action: "r1", steps: []step{sent, reports(withActions(seen(Running, 4, "cfg-2"), "", "r1"))}, state: Blocked, attempt: Dispatched, failure: "action_interrupted"},
		{name: "a restart that was not taken is sent again", action: "r1", steps: []step{sent, nextBootReports(older)}, state: Accepted, attempt: AttemptFail, due: true},
		{name: "a restart that was taken and forgotten is not", action: "r1", steps: []step{sent, acknowledged, nextBootReports(gone)}, state: Blocked, attempt: AttemptFail, failure: "action_interrupted"},
		{name: "nor one that was adopted, and forgotten", action: "r1", steps: []step{sent, expired, reports(reached), reportsFully(gone)}, state: Blocked, attempt: Ambiguous, failure: "action_interrupted"},
		{name: "nor one that succeeded, and was forgotten", action: "r1", steps: []step{sent, reports(starting), succeeded, reportsFully(gone)}, state: Blocked, attempt: Succeeded, failure: "action_interrupted"},
		{name: "nor one on its way to a node that was enrolled anew", action: "r1", steps: []step{sent, enrolledAnew}, state: Blocked, attempt: Ambiguous, failure: "action_interrupted"},
		{name: "a restart not sent yet outlives an enrolment", action: "r1", steps: []step{enrolledAnew}, state: Accepted, due: true},
		{name: "a state outlives an enrolment", steps: []step{sent, enrolledAnew}, state: Converging, attempt: Dispatched},

		{name: "superseded before it was sent", steps: []step{superseded}, state: Superseded},
		{name: "superseded after it was sent", steps: []step{sent, superseded}, state: Superseded, attempt: Dispatched},
		{name: "the late result is the attempt's only", steps: []step{sent, superseded, fails(Permanent)}, state: Superseded, attempt: AttemptFail},
		{name: "the late lease too", steps: []step{sent, superseded, expired}, state: Superseded, attempt: Ambiguous},
		{name: "what converged is not superseded", steps: []step{sent, reports(reached), superseded}, state: Converged, attempt: Succeeded},
		{name: "cancelled before it was sent", steps: []step{cancelled}, state: Cancelled},
		{name: "cancelled after it was sent, outcome shown", steps: []step{sent, cancelled, acknowledged, succeeded}, state: Cancelled, attempt: Succeeded},
		{name: "cancelled while ambiguous", steps: []step{sent, expired, cancelled}, state: Cancelled, attempt: Ambiguous, failure: "no_answer"},
		{name: "blocked can be cancelled", steps: []step{sent, fails(Permanent), cancelled}, state: Cancelled, attempt: AttemptFail, failure: "start_failed"},
		{name: "cancelled stays cancelled", steps: []step{cancelled, reports(reached)}, state: Cancelled},
		{name: "the node was deleted", steps: []step{sent, nodeDeleted}, state: Cancelled, attempt: Ambiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := fresh(c.action)
			for _, s := range c.steps {
				s(i)
			}
			var attempt AttemptState
			if i.Attempt != nil {
				attempt = i.Attempt.State
			}
			if i.State != c.state || attempt != c.attempt || code(i.Failure) != c.failure {
				t.Errorf("got intent %s, attempt %q, failure %q", i.State, attempt, code(i.Failure))
			}
			if (i.AwaitReport != nil) != c.awaits || i.Dispatchable(noon) != c.due {
				t.Errorf("awaits a report: %v, due: %v", i.AwaitReport != nil, i.Dispatchable(noon))
			}
			if i.Ended() != (i.FinishedAt != nil) {
				t.Errorf("state %s, finished at %v", i.State, i.FinishedAt)
			}
		})
	}
}

func TestEndedIntentsCannotBeCancelled(t *testing.T) {
	for _, end := range []step{superseded, cancelled, func(i *Intent) { sent(i); reports(seen(Running, 4, "cfg-2"))(i) }} {
		i := fresh("")
		end(i)
		var terminal *TerminalError
		if err := i.Cancel(noon); !errors.As(err, &terminal) || terminal.State != i.State {
			t.Errorf("cancel of a %s intent: %v", i.State, err)
		}
	}
}

func TestRetriesGrowUntilTheBudgetIsSpent(t *testing.T) {
	i, now := fresh(""), noon
	for try := 1; i.State != Blocked; try++ {
		if try > RetryBudget {
			t.Fatal("the budget was overdrawn")
		}
		i.Dispatch(now, "a", boot1)
		i.Fail(now, Failure{Class: Capacity, Code: "disk_full", Message: "no space"}, 0.999)
		if i.State == Retrying {
			if i.Dispatchable(now) {
				t.Fatalf("try %d is followed by another at once", try)
			}
			now = *i.Retry.NextAt
			if !i.Dispatchable(now) {
				t.Fatalf("try %d is not followed by another", try)
			}
		}
	}
	if i.Retry.Count != RetryBudget || code(i.Failure) != "budget_spent" || i.Failure.Class != Capacity {
		t.Errorf("blocked after %d: %+v", i.Retry.Count, i.Failure)
	}
	if waited := now.Sub(noon); waited < 4*time.Minute || waited > 20*time.Minute {
		t.Errorf("all tries took %v", waited)
	}
}

func TestAnUnavailableNodeCostsNoBudget(t *testing.T) {
	i, now := fresh(""), noon
	for range 3 * RetryBudget {
		i.Dispatch(now, "a", boot1)
		i.Fail(now, Failure{Class: NodeUnavailable, Code: "shutting_down"}, 0)
		if i.State != Retrying {
			t.Fatalf("it is %s", i.State)
		}
		now = *i.Retry.NextAt
	}
	if i.Retry.Count != 0 {
		t.Errorf("it cost %d", i.Retry.Count)
	}
}

func TestANodeThatForgetsHasTheWholeBudgetAgain(t *testing.T) {
	i := fresh("")
	for range RetryBudget - 1 {
		i.Dispatch(noon, "attempt", Boot{ID: "boot"})
		i.Fail(noon, Failure{Class: Transient, Code: "start_failed"}, 0)
	}
	i.Dispatch(noon, "attempt", Boot{ID: "boot"})
	i.Observe(noon, seen(Running, 4, "cfg-2"), Evidence{Boot: "boot"})
	if i.State != Converged || i.Retry.Count != RetryBudget-1 {
		t.Fatalf("it is %s after %d tries", i.State, i.Retry.Count)
	}
	i.Observe(noon, seen(Absent, 0, ""), Evidence{Boot: "boot", Full: true})
	i.Dispatch(noon, "attempt", Boot{ID: "boot"})
	i.Fail(noon, Failure{Class: Transient, Code: "start_failed"}, 0)
	if i.State != Retrying || i.Retry.Count != 1 {
		t.Errorf("it is %s after %d tries: what it took months ago is of another failure", i.State, i.Retry.Count)
	}
}

func TestRetryDelayIsBounded(t *testing.T) {
	for n := range 100 {
		for _, jitter := range []float64{-1, 0, 0.5, 0.999, 2} {
			if d := RetryDelay(n, jitter); d < RetryMin || d > RetryMax {
				t.Errorf("RetryDelay(%d, %v) = %v", n, jitter, d)
			}
		}
	}
	if RetryDelay(1, 0) != RetryMin || RetryDelay(1, 1) != 2*RetryMin || RetryDelay(2, 0) != 2*RetryMin || RetryDelay(64, 1) != RetryMax {
		t.Errorf("from %v, %v, %v to %v", RetryDelay(1, 0), RetryDelay(1, 1), RetryDelay(2, 0), RetryDelay(64, 1))
	}
}

func TestAnUnacknowledgedAttemptIsSentAgainToItsBootOnly(t *testing.T) {
	i := fresh("")
	sent(i)
	soon, late := noon.Add(RedeliverAfter), noon.Add(DispatchLease)
	if i.Redeliverable(noon, boot1.ID) || !i.Redeliverable(soon, boot1.ID) || i.Redeliverable(soon, boot2.ID) || i.Redeliverable(late, boot1.ID) {
		t.Error("it is sent again to the same boot, after a while, within its lease")
	}
	acknowledged(i)
	if i.Redeliverable(soon, boot1.ID) {
		t.Error("what was acknowledged is not sent again")
	}
	j := fresh("")
	sent(j)
	superseded(j)
	if j.Redeliverable(soon, boot1.ID) {
		t.Error("what was superseded is not sent again")
	}
}

func TestEachAcknowledgementStartsTheLeaseAfresh(t *testing.T) {
	i := fresh("")
	sent(i)
	i.Acknowledge(noon.Add(time.Second))
	i.Acknowledge(noon.Add(time.Minute))
	if want := noon.Add(time.Minute + AckLease); !i.Attempt.LeaseExpiresAt.Equal(want) || !i.Attempt.AcknowledgedAt.Equal(noon.Add(time.Second)) {
		t.Errorf("lease until %v, acknowledged at %v", i.Attempt.LeaseExpiresAt, i.Attempt.AcknowledgedAt)
	}
	if i.Expire(noon.Add(AckLease)) || !i.Expire(noon.Add(time.Minute+AckLease)) {
		t.Error("it expires at the end of its lease, not before")
	}
}

func TestRepeatedNewsChangeNothing(t *testing.T) {
	i := fresh("")
	sent(i)
	succeeded(i)
	for name, again := range map[string]bool{
		"success": i.Succeed(noon), "failure": i.Fail(noon, Failure{Class: Permanent}, 0), "acknowledgement": i.Acknowledge(noon), "expiry": i.Expire(noon.Add(time.Hour)),
	} {
		if again {
			t.Errorf("%s after success changed something", name)
		}
	}
	o := seen(Running, 4, "cfg-2")
	e := Evidence{Boot: boot1.ID, Full: true}
	if !i.Observe(noon, o, e) || i.Observe(noon.Add(time.Second), o, e) {
		t.Error("the proof changes the intent once")
	}
}

func TestAClockThatWasPutBackHoldsNothingUp(t *testing.T) {
	set := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	back := set.Add(-2 * time.Hour)
	next := set.Add(RetryMin)
	i := &Intent{State: Retrying, Generation: 1, Retry: RetryState{Count: 1, Budget: RetryBudget, NextAt: &next}}
	if i.Dispatchable(set) || !i.Dispatchable(next) || !i.Dispatchable(back) {
		t.Error("a retry is due when its time has come, or when that is farther away than it can have been set")
	}
	i.Dispatch(set, "attempt", Boot{ID: "boot", Seq: 1})
	if i.Expire(set) || i.Expire(set.Add(DispatchLease-time.Second)) {
		t.Error("the lease has not run out")
	}
	if !i.Expire(back) || i.Attempt.State != Ambiguous {
		t.Error("nobody knows how long ago an attempt was sent that was sent in the future")
	}
}
