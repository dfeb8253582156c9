package hub

import (
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// State of a stream: what is desired of it, or what was observed.
type State string

// The states. Desired are the first three only.
const (
	Running State = "running"
	Stopped State = "stopped"
	// Absent: stopped, and forgotten by the node but for its generation.
	Absent State = "absent"

	// Starting and Stopping are on their way.
	Starting State = "starting"
	Stopping State = "stopping"
	// Failed: the engine ended by itself, or could not start. The agent tries again by itself, with a growing delay.
	Failed State = "failed"
)

// NodeConfig is the reserved resource under which the node-wide configuration is declared.
const NodeConfig = "__configuration__"

// Desired is the operator's target.
type Desired struct {
	State State `json:"state"`
	// Generation grows by one with every accepted mutation. It starts at 1.
	Generation int64 `json:"generation"`
	// ConfigVersion is "cfg-N", or "" for a stream that was never given one.
	ConfigVersion string `json:"config_version,omitempty"`
	// ConfigDigest is of the config version's content.
	ConfigDigest string `json:"config_digest,omitempty"`
	// ActionID is the restart that this generation asks for, or "".
	ActionID string `json:"action_id,omitempty"`
}

// Observed is the latest report of the node.
type Observed struct {
	State         State  `json:"state"`
	Generation    int64  `json:"generation"`
	ConfigVersion string `json:"config_version,omitempty"`
	// ConfigDigest is of the content that the node has under this name, "" when it did not tell.
	ConfigDigest string `json:"config_digest,omitempty"`
	// CompletedActions are the restarts that the node proved finished, latest last (a bounded list).
	CompletedActions []string `json:"completed_actions,omitempty"`
	// InterruptedActions are those that it began and cannot prove finished.
	InterruptedActions []string `json:"interrupted_actions,omitempty"`
	Failure            *Failure `json:"failure,omitempty"`
	// ReportedAt is when the hub stored this; a report that says the same again does not change it.
	ReportedAt time.Time `json:"reported_at"`
}

// StreamSpec is the stored declaration. Desired is nil for a stream that a node reported and nobody declared.
type StreamSpec struct {
	Desired *Desired `json:"desired,omitempty"`
	// IntentID is the intent of the desired generation.
	IntentID string `json:"intent_id,omitempty"`
	// LastConverged is the config version that converged last while running: where rollback goes to.
	// It is moved when a generation with another version converges; PreviousConverged is the one before.
	LastConverged     string `json:"last_converged,omitempty"`
	PreviousConverged string `json:"previous_converged,omitempty"`
}

// StreamStatus is what was observed, and the comparison, recomputed whenever something it depends on changes.
type StreamStatus struct {
	Observed    *Observed   `json:"observed,omitempty"`
	Convergence Convergence `json:"convergence"`
	// AttemptID is the active attempt, or "".
	AttemptID string `json:"attempt_id,omitempty"`
	// IntentState is that of the intent of the desired generation.
	IntentState IntentState `json:"intent_state,omitempty"`
}

// Streams is the kind of streams, named "NODE/RESOURCE" ([StreamName]). They are found by their labels.
var Streams = store.Type[StreamSpec, StreamStatus]{Kind: store.Kind{Name: "stream", Version: 1}}

// Labels of a stored stream.
const (
	// LabelConvergence is its convergence.
	LabelConvergence = "convergence"
	// LabelRemoved is there, and "true", for a stream that was removed ([Removed]).
	LabelRemoved = "removed"
)

// StreamLabels are those of a stored stream.
func StreamLabels(spec *StreamSpec, status *StreamStatus) map[string]string {
	l := map[string]string{LabelConvergence: string(status.Convergence.State)}
	if Removed(spec.Desired, status.Convergence.State) {
		l[LabelRemoved] = "true"
	}
	return l
}

// Removed tells of a stream that is to be absent and, as far as is known, is: what is left of it is its generation.
func Removed(d *Desired, c ConvergenceState) bool {
	return d != nil && d.State == Absent && (c == InSync || c == Unknown)
}

// Stream is a stored stream.
type Stream = store.Resource[StreamSpec, StreamStatus]

// Generation is the desired generation, 0 for a stream that was never declared. It is what preconditions compare.
func (s *StreamSpec) Generation() int64 {
	if s.Desired == nil {
		return 0
	}
	return s.Desired.Generation
}

// RollbackTarget is the config version that a rollback goes to: the last that converged, or, when that is the
// desired one, the one that converged before it. "" when there is none.
func (s *StreamSpec) RollbackTarget() string {
	if s.Desired != nil && s.Desired.ConfigVersion != s.LastConverged {
		return s.LastConverged
	}
	return s.PreviousConverged
}

// StreamName is a stream's stored name.
func StreamName(node, resource string) string { return node + "/" + resource }
