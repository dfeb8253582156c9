package hub

import (
	"fmt"
	"math"
	"time"
)

// The transitions of an intent and its attempt. Each answers whether it changed something, and does nothing where it
// does not apply: answers come late, twice, and out of order.

// Dispatchable tells whether an attempt is due. A generation that the node is known to have overtaken is not sent:
// [Intent.Observe] has blocked its intent.
func (i *Intent) Dispatchable(now time.Time) bool {
	if i.AwaitReport != nil || i.Attempt.Active() {
		return false
	}
	switch i.State {
	case Accepted:
		return true
	case Retrying:
		return i.Retry.NextAt == nil || due(now, *i.Retry.NextAt, RetryMax)
	}
	return false
}

// due tells whether a stored moment has come. One that is farther away than it was when it was set was set before the
// clock was put back: waiting until the clock is there again could take for ever.
func due(now, at time.Time, farthest time.Duration) bool {
	return !now.Before(at) || at.Sub(now) > farthest
}

// Redeliverable tells whether the attempt should be sent again to the boot, which may have missed it.
func (i *Intent) Redeliverable(now time.Time, boot string) bool {
	a := i.Attempt
	return i.Live() && a != nil && a.State == Dispatched && a.Boot == boot &&
		now.Before(a.LeaseExpiresAt) && !now.Before(a.DispatchedAt.Add(RedeliverAfter))
}

// Dispatch sends a new attempt to a boot. It is for an intent that is [Intent.Dispatchable].
func (i *Intent) Dispatch(now time.Time, attemptID string, boot Boot) {
	i.Attempt = &Attempt{ID: attemptID, State: Dispatched, DispatchedAt: &now, LeaseExpiresAt: now.Add(DispatchLease), Boot: boot.ID}
	i.Attempts++
	i.State = Converging
	i.Retry.NextAt = nil
	i.UpdatedAt = now
}

// Acknowledge notes that the node durably accepted the attempt. One that is ambiguous stays so: a full report decides.
func (i *Intent) Acknowledge(now time.Time) bool {
	a := i.Attempt
	switch {
	case a == nil:
		return false
	case a.State == Dispatched || a.State == Acknowledged:
		a.accepted(now)
	case a.State == Ambiguous && a.AcknowledgedAt == nil:
		a.AcknowledgedAt = &now
	default:
		return false
	}
	i.UpdatedAt = now
	return true
}

// Succeed notes that the node did what the attempt asked for. The intent converges by [Intent.Observe] only; where no
// report has shown its generation yet, a full one is awaited.
func (i *Intent) Succeed(now time.Time) bool {
	if !i.Attempt.sent() {
		return false
	}
	i.Attempt.finish(Succeeded, now, nil)
	i.UpdatedAt = now
	if i.Live() {
		i.State, i.Failure, i.AwaitReport, i.Retry.NextAt = Converging, nil, nil, nil
		if i.Observed == nil || i.Observed.Generation < i.Generation {
			i.AwaitReport = &now
		}
	}
	return true
}

// Fail notes that the attempt failed. jitter in [0,1) spreads the next try.
func (i *Intent) Fail(now time.Time, f Failure, jitter float64) bool {
	if !i.Attempt.sent() {
		return false
	}
	if f.Class == ClassAmbiguous {
		return i.doubt(now, f)
	}
	i.Attempt.finish(AttemptFail, now, &f)
	i.UpdatedAt = now
	if i.Live() {
		i.AwaitReport = nil
		i.failed(now, f, jitter)
	}
	return true
}

// failed decides what follows from a failure of a live intent.
func (i *Intent) failed(now time.Time, f Failure, jitter float64) {
	if f.Class.Blocks() {
		i.block(now, f)
		return
	}
	tries := i.Attempts
	if f.Class != NodeUnavailable {
		i.Retry.Count++
		tries = i.Retry.Count
		if i.Retry.Count >= i.Retry.Budget {
			i.block(now, Failure{f.Class, "budget_spent", fmt.Sprintf("given up after %d tries; the last: %s", i.Retry.Count, f.Message)})
			return
		}
	}
	next := now.Add(RetryDelay(tries, jitter))
	i.State, i.Failure, i.Retry.NextAt = Retrying, &f, &next
}

// Blocks tells whether a failure of the class waits for the operator. A class that this program does not know is
// retried.
func (c Class) Blocks() bool { return c == Permanent || c == Incompatible || c == ConfigRejected }

// RetryDelay is how long to wait after the n-th failed try: from [RetryMin] to twice that after the first, doubling up to
// [RetryMax], the upper half of it spread by jitter in [0,1).
func RetryDelay(n int, jitter float64) time.Duration {
	d := RetryMax
	if doublings := max(n, 1); doublings < 20 {
		d = min(RetryMin<<doublings, RetryMax)
	}
	return d/2 + time.Duration(math.Max(0, math.Min(jitter, 1))*float64(d/2))
}

// Expire makes an attempt whose lease ran out ambiguous.
func (i *Intent) Expire(now time.Time) bool {
	if !i.Attempt.Expired(now) {
		return false
	}
	return i.doubt(now, Failure{ClassAmbiguous, "no_answer", "the node did not answer in time; its next full report decides"})
}

func (i *Intent) doubt(now time.Time, f Failure) bool {
	if i.Attempt.State == Ambiguous {
		return false
	}
	i.Attempt.finish(Ambiguous, now, &f)
	i.UpdatedAt = now
	if i.Live() {
		i.State, i.Failure, i.AwaitReport = Converging, &f, &now
	}
	return true
}

// Cancel ends the intent for the operator, or answers a [TerminalError].
func (i *Intent) Cancel(now time.Time) error {
	if i.Ended() {
		return &TerminalError{IntentID: i.ID, State: i.State}
	}
	i.end(Cancelled, now)
	return nil
}

// Supersede ends the intent because a newer generation was declared.
func (i *Intent) Supersede(now time.Time) bool {
	if i.Ended() {
		return false
	}
	i.end(Superseded, now)
	return true
}

// end suppresses what was not dispatched; an attempt that was keeps its lease, and may still be answered.
func (i *Intent) end(s IntentState, now time.Time) {
	if i.Attempt != nil && i.Attempt.State == Claimed {
		i.Attempt.finish(Suppressed, now, nil)
	}
	i.State, i.FinishedAt, i.UpdatedAt = s, &now, now
	i.AwaitReport, i.Retry.NextAt = nil, nil
}

// Abandon ends everything of an intent whose node is gone: nobody will answer any more.
func (i *Intent) Abandon(now time.Time) bool {
	changed := false
	if i.Attempt.Active() {
		i.Attempt.finish(Ambiguous, now, &Failure{NodeUnavailable, "node_deleted", "the node was deleted"})
		changed = true
	}
	if !i.Ended() {
		i.end(Cancelled, now)
		changed = true
	}
	if changed {
		i.UpdatedAt = now
	}
	return changed
}

// LoseNode is for a node that was enrolled with another key: what it was told and did not answer is unknown for good. A
// restart that it may have run is blocked rather than run twice.
func (i *Intent) LoseNode(now time.Time) bool {
	if !i.Live() || i.Desired.ActionID == "" || i.ActionDone || i.Attempts == 0 {
		return false
	}
	if i.Attempt.Active() {
		i.Attempt.finish(Ambiguous, now, &Failure{ClassAmbiguous, "node_enrolled_anew", "the node was enrolled with another key"})
	}
	i.block(now, interrupted)
	return true
}

func (i *Intent) block(now time.Time, f Failure) {
	i.State, i.Failure, i.UpdatedAt = Blocked, &f, now
	i.AwaitReport, i.Retry.NextAt = nil, nil
}

// interrupted blocks a restart of which nobody can prove whether it ran.
var interrupted = Failure{Permanent, "action_interrupted", "the node cannot prove whether the restart ran; it is not run a second time: ask for another"}
