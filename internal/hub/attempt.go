package hub

import "time"

// RedeliverAfter is how long after it was sent an unacknowledged attempt may be sent again to the same boot.
const RedeliverAfter = 2 * time.Second

// sent tells whether the attempt may have reached its node, and its outcome is not known.
func (a *Attempt) sent() bool {
	return a != nil && (a.State == Dispatched || a.State == Acknowledged || a.State == Ambiguous)
}

// doubtful tells whether nobody answered the attempt in time.
func (a *Attempt) doubtful() bool { return a != nil && a.State == Ambiguous }

// Expired tells whether the lease of an active attempt has run out.
func (a *Attempt) Expired(now time.Time) bool {
	return a.Active() && due(now, a.LeaseExpiresAt, AckLease)
}

// accepted notes that the node has the attempt, and starts its lease afresh.
func (a *Attempt) accepted(now time.Time) {
	a.State = Acknowledged
	if a.AcknowledgedAt == nil {
		a.AcknowledgedAt = &now
	}
	a.LeaseExpiresAt = now.Add(AckLease)
}

func (a *Attempt) finish(s AttemptState, now time.Time, result *Failure) {
	a.State, a.Result, a.FinishedAt = s, result, &now
}
