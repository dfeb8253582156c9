package hub

import (
	"fmt"
	"slices"
	"time"
)

// Evidence is how an observation came to be known.
type Evidence struct {
	// Boot is the id of the boot that reported.
	Boot string
	// Full: the report lists all that the node knows.
	Full bool
	// Jitter in [0,1) spreads retries.
	Jitter float64
}

// Proves tells whether the observation is the proof that the target is reached. actionDone: the restart was proven
// earlier. Of an absent stream the config version is not compared: nothing is left of it.
func Proves(d *Desired, o *Observed, actionDone bool) bool {
	if d == nil || o == nil || o.Generation != d.Generation || o.State != d.State {
		return false
	}
	if d.State != Absent && !sameConfig(d, o) {
		return false
	}
	return d.ActionID == "" || actionDone || slices.Contains(o.CompletedActions, d.ActionID)
}

// sameConfig: a hub that was restored from a backup gives names of config versions out that its nodes know for other
// contents.
func sameConfig(d *Desired, o *Observed) bool {
	return o.ConfigVersion == d.ConfigVersion && (d.ConfigDigest == "" || o.ConfigDigest == "" || o.ConfigDigest == d.ConfigDigest)
}

// Observe takes over what the node reports of the resource. The intent is that of the desired generation: those before
// it learn nothing from reports but their attempts' results. It answers whether anything changed.
func (i *Intent) Observe(now time.Time, o *Observed, e Evidence) bool {
	changed := i.note(now, o)
	switch {
	case i.State == Superseded || i.State == Cancelled:
		return changed
	case Proves(&i.Desired, o, i.ActionDone):
		return i.converge(now) || changed
	case o.Generation > i.Generation:
		return i.overtaken(now, o) || changed
	case o.Generation == i.Generation:
		return i.adopted(now, o, e) || changed
	default:
		return i.behind(now, e) || changed
	}
}

// note keeps the observation, and the proof of the action, for good.
func (i *Intent) note(now time.Time, o *Observed) bool {
	changed := false
	if i.Observed == nil || !i.Observed.Same(o) {
		copied := *o
		i.Observed, changed = &copied, true
	}
	if id := i.Desired.ActionID; id != "" && !i.ActionDone && slices.Contains(o.CompletedActions, id) {
		i.ActionDone, changed = true, true
	}
	if changed {
		i.UpdatedAt = now
	}
	return changed
}

func (i *Intent) converge(now time.Time) bool {
	if i.Attempt.sent() {
		i.Attempt.finish(Succeeded, now, nil)
	} else if i.State == Converged {
		return false
	}
	if i.State != Converged {
		i.State, i.FinishedAt = Converged, &now
	}
	i.Failure, i.AwaitReport, i.Retry.NextAt, i.UpdatedAt = nil, nil, nil, now
	return true
}

// overtaken: the node is at a generation that this hub never declared (the hub was restored from a backup, or the node
// was known under another hub). Only a write with a higher generation helps.
func (i *Intent) overtaken(now time.Time, o *Observed) bool {
	if i.State == Blocked && i.Failure != nil && i.Failure.Code == CodeNodeAhead {
		return false
	}
	i.FinishedAt = nil
	i.block(now, Failure{Incompatible, CodeNodeAhead, fmt.Sprintf(
		"the node is at generation %d, newer than %d, the last known here: declare the state again", o.Generation, i.Generation)})
	return true
}

// CodeNodeAhead is the code of the failure of a node that knows a newer generation than the hub.
const CodeNodeAhead = "node_ahead"

// adopted: the node has the generation, and is not there yet.
func (i *Intent) adopted(now time.Time, o *Observed, e Evidence) bool {
	if i.State == Converged {
		// It was there: the agent brings it back by itself.
		return false
	}
	if id := i.Desired.ActionID; id != "" && !i.ActionDone && slices.Contains(o.InterruptedActions, id) {
		if i.State == Blocked {
			return false
		}
		i.block(now, interrupted)
		return true
	}
	changed := false
	switch a := i.Attempt; {
	case a == nil:
	case a.State == Dispatched:
		a.accepted(now)
		changed = true
	case a.State == Ambiguous && a.AcknowledgedAt == nil:
		a.AcknowledgedAt, changed = &now, true
	}
	// Nobody answered, and a full report is the answer: the node has the generation, and is not there.
	again := i.AwaitReport != nil && i.Attempt.doubtful() && e.Full && o.Settled()
	if i.AwaitReport != nil && (again || !i.Attempt.doubtful()) {
		i.AwaitReport, i.Failure, changed = nil, nil, true
	}
	if f := o.Failure; f != nil && o.Settled() && !i.Attempt.Active() && (i.State == Converging || i.State == Retrying) {
		switch {
		case f.Class.Blocks():
			i.block(now, *f)
			changed = true
		case i.State == Converging && (i.Failure == nil || *i.Failure != *f):
			copied := *f
			i.Failure, changed = &copied, true
		}
	}
	if again && i.State == Converging {
		// Asked again, a node that has the target changes nothing; one that has another under this number (the hub was
		// restored from a backup) says so. A restart that it does not tell of is not asked for twice.
		i.notTaken(now, true)
	}
	if changed {
		i.UpdatedAt = now
	}
	return changed
}

// behind: the node does not have the generation.
func (i *Intent) behind(now time.Time, e Evidence) bool {
	a := i.Attempt
	switch {
	case i.State == Converged:
		// It had: it lost its disk. An action that was proven is not asked for again, and the way back has a budget of its own.
		i.Retry.Count = 0
		i.reopen(now)
	case i.State == Blocked && i.Failure != nil && i.Failure.Code == CodeNodeAhead:
		i.reopen(now)
	case i.State != Converging:
		return false
	case a.Active():
		if !e.Full || a.Boot == e.Boot {
			// The report and the command may have crossed.
			return false
		}
		a.finish(AttemptFail, now, &Failure{NodeUnavailable, "node_restarted", "the agent was started anew before it had taken over the command"})
		i.notTaken(now, a.AcknowledgedAt != nil)
	case !e.Full:
		return false
	case a != nil && a.State == Succeeded:
		i.AwaitReport = nil
		if i.actionPending() {
			i.block(now, interrupted)
			break
		}
		i.failed(now, Failure{Transient, "not_kept", "the node reported success, and then a full report without this generation"}, e.Jitter)
	default:
		i.notTaken(now, a != nil && a.AcknowledgedAt != nil)
	}
	i.UpdatedAt = now
	return true
}

// notTaken: a full report shows that the node does not have what it was sent. wasTaken: it once said that it did. An
// unproven restart that it may have begun is not sent again.
func (i *Intent) notTaken(now time.Time, wasTaken bool) {
	if wasTaken && i.actionPending() {
		i.block(now, interrupted)
		return
	}
	i.reopen(now)
}

func (i *Intent) reopen(now time.Time) {
	i.State, i.UpdatedAt = Accepted, now
	i.Failure, i.AwaitReport, i.FinishedAt, i.Retry.NextAt = nil, nil, nil, nil
}

func (i *Intent) actionPending() bool { return i.Desired.ActionID != "" && !i.ActionDone }

// Settled tells whether the stream is not on its way: a failure that is reported with it is why it is not as desired (it is
// failed; it runs on with the config version before, because the new one was rejected; it stopped, because its input ended).
func (o *Observed) Settled() bool { return o.State != Starting && o.State != Stopping }

// Same tells whether two observations say the same, whenever they were made.
func (o *Observed) Same(p *Observed) bool {
	if o.State != p.State || o.Generation != p.Generation || o.ConfigVersion != p.ConfigVersion || o.ConfigDigest != p.ConfigDigest {
		return false
	}
	if !slices.Equal(o.CompletedActions, p.CompletedActions) || !slices.Equal(o.InterruptedActions, p.InterruptedActions) {
		return false
	}
	if o.Failure == nil || p.Failure == nil {
		return o.Failure == p.Failure
	}
	return *o.Failure == *p.Failure
}
