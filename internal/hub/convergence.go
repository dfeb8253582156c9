package hub

import "time"

// ConvergenceState compares desired and observed.
type ConvergenceState string

// The convergence states.
const (
	Unknown  ConvergenceState = "unknown"
	Pending  ConvergenceState = "pending"
	Applying ConvergenceState = "applying"
	InSync   ConvergenceState = "in_sync"
	Degraded ConvergenceState = "degraded"
	// ConvergenceBlocked needs the operator.
	ConvergenceBlocked ConvergenceState = "blocked"
)

// Reasons of a convergence, beside the codes of failures and the states that a node may report.
const (
	ReasonNoDesired     = "no_desired_state"
	ReasonNeverObserved = "never_observed"
	ReasonNodeOffline   = "node_offline"
	ReasonCancelled     = "cancelled"
	ReasonAmbiguous     = "ambiguous"
)

// Convergence is computed, never written by hand.
type Convergence struct {
	State ConvergenceState `json:"state"`
	// Reason is a word: one of the reasons, a failure's code, or the observed state; "" when there is nothing to add.
	Reason string `json:"reason,omitempty"`
	// Since is when the state began; another reason does not change it.
	Since time.Time `json:"since"`
}

// Converge compares what is desired of a stream with what was observed. intent is that of the desired generation. previous is
// the comparison before, whose Since stays while the state does.
func Converge(o *Observed, intent *Intent, p Presence, now time.Time, previous Convergence) Convergence {
	c := Convergence{Since: now}
	c.State, c.Reason = compare(o, intent, p)
	if c.State == previous.State {
		c.Since = previous.Since
	}
	return c
}

func compare(o *Observed, intent *Intent, p Presence) (ConvergenceState, string) {
	switch {
	case intent == nil:
		return Unknown, ReasonNoDesired
	case Proves(&intent.Desired, o, intent.ActionDone):
		if p != PresenceOnline {
			return Unknown, ReasonNodeOffline
		}
		return InSync, ""
	}
	switch intent.State {
	case Blocked:
		return ConvergenceBlocked, code(intent.Failure)
	case Cancelled, Superseded:
		return ConvergenceBlocked, ReasonCancelled
	case Retrying:
		return Degraded, code(intent.Failure)
	case Converged:
		return Degraded, trouble(o)
	}
	return underway(o, intent, p)
}

// underway is the comparison for an intent that is accepted or converging.
func underway(o *Observed, intent *Intent, p Presence) (ConvergenceState, string) {
	offline := p != PresenceOnline
	switch {
	case intent.AwaitReport != nil && intent.Attempt.doubtful():
		return Degraded, ReasonAmbiguous
	case intent.Attempt.Active() && offline:
		return Applying, ReasonNodeOffline
	case intent.Attempt.Active():
		return Applying, ""
	case offline && o == nil:
		return Unknown, ReasonNeverObserved
	case offline:
		return Pending, ReasonNodeOffline
	case intent.State == Accepted:
		return Pending, ""
	case o != nil && o.Generation == intent.Generation && o.Settled() && o.Failure != nil:
		return Degraded, trouble(o)
	}
	// The node has taken it over, and is at it.
	return Applying, ""
}

func code(f *Failure) string {
	if f == nil {
		return ""
	}
	return f.Code
}

// trouble says what is wrong with a stream that is not as it was.
func trouble(o *Observed) string {
	switch {
	case o == nil:
		return ReasonNeverObserved
	case o.Settled() && o.Failure != nil:
		return o.Failure.Code
	}
	return string(o.State)
}
