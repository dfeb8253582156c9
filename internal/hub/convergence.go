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

// Convergence is computed, never written by hand.
type Convergence struct {
	State ConvergenceState `json:"state"`
	// Reason is a word from a fixed vocabulary ("node_offline", "never_observed", "no_desired_state", "cancelled", …,
	// or the failure's code), "" when there is nothing to add.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}
