package hub

import (
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Verb is what an intent does.
type Verb string

// The verbs.
const (
	SetState       Verb = "set_state"
	Restart        Verb = "restart"
	ConfigApply    Verb = "config_apply"
	ConfigRollback Verb = "config_rollback"
)

// IntentState is where an intent is on its way.
type IntentState string

// The intent states. Superseded and Cancelled are final; Converged is final unless the node forgets (it then goes
// back to Accepted); Blocked waits for the operator's next write.
const (
	Accepted   IntentState = "accepted"
	Converging IntentState = "converging"
	Converged  IntentState = "converged"
	Retrying   IntentState = "retrying"
	Blocked    IntentState = "blocked"
	Superseded IntentState = "superseded"
	Cancelled  IntentState = "cancelled"
)

// AttemptState is where an attempt is on its way.
type AttemptState string

// The attempt states.
const (
	Claimed      AttemptState = "claimed"
	Dispatched   AttemptState = "dispatched"
	Acknowledged AttemptState = "acknowledged"
	Succeeded    AttemptState = "succeeded"
	AttemptFail  AttemptState = "failed"
	Ambiguous    AttemptState = "ambiguous"
	Suppressed   AttemptState = "suppressed"
)

// Class of a failure decides what follows from it.
type Class string

// The classes.
const (
	// NodeUnavailable waits for the node, however long, and costs no budget.
	NodeUnavailable Class = "node_unavailable"
	// Timeout, Transient and Capacity are retried with a growing delay until the budget is spent.
	Timeout   Class = "timeout"
	Transient Class = "transient"
	Capacity  Class = "capacity"
	// Permanent, Incompatible and ConfigRejected block.
	Permanent      Class = "permanent"
	Incompatible   Class = "incompatible"
	ConfigRejected Class = "config_rejected"
	// ClassAmbiguous waits for a fresh full report.
	ClassAmbiguous Class = "ambiguous"
)

// Retry limits.
const (
	RetryMin    = time.Second
	RetryMax    = 5 * time.Minute
	RetryBudget = 10
	// DispatchLease is how long a dispatched attempt may stay unacknowledged, AckLease how long an acknowledged one may
	// stay without a result; each further acknowledgement starts it afresh.
	DispatchLease = 30 * time.Second
	AckLease      = 2 * time.Minute
)

// Failure is why an attempt, or a stream, failed.
type Failure struct {
	Class Class `json:"class"`
	// Code is a word for programs: "invalid_config", "start_failed", "exit_status", "secret_missing", "engine_unknown",
	// "action_interrupted", "disk_full", "budget_spent", …
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Attempt is one try to bring a generation to its node.
type Attempt struct {
	ID             string       `json:"id"`
	State          AttemptState `json:"state"`
	DispatchedAt   *time.Time   `json:"dispatched_at,omitempty"`
	AcknowledgedAt *time.Time   `json:"acknowledged_at,omitempty"`
	FinishedAt     *time.Time   `json:"finished_at,omitempty"`
	LeaseExpiresAt time.Time    `json:"lease_expires_at"`
	// Boot is the id of the boot that it was sent to.
	Boot string `json:"boot_id,omitempty"`
	// Result of an attempt that failed.
	Result *Failure `json:"result,omitempty"`
}

// Active tells whether the attempt may still have an effect that was not answered.
func (a *Attempt) Active() bool {
	return a != nil && (a.State == Claimed || a.State == Dispatched || a.State == Acknowledged)
}

// RetryState counts the tries that cost budget.
type RetryState struct {
	Count  int        `json:"count"`
	Budget int        `json:"budget"`
	NextAt *time.Time `json:"next_retry_at,omitempty"`
}

// Intent is one accepted mutation: the record that operations show.
type Intent struct {
	// ID is "intent-<generation>-<sequence>"; the sequence is unique in the hub.
	ID            string      `json:"id"`
	Sequence      int64       `json:"sequence"`
	Node          string      `json:"node"`
	Resource      string      `json:"resource"`
	Verb          Verb        `json:"operation"`
	Generation    int64       `json:"generation"`
	State         IntentState `json:"state"`
	Desired       Desired     `json:"desired"`
	Attempt       *Attempt    `json:"attempt,omitempty"`
	Attempts      int         `json:"attempts"`
	Retry         RetryState  `json:"retry"`
	Failure       *Failure    `json:"failure,omitempty"`
	Observed      *Observed   `json:"observed,omitempty"`
	CorrelationID string      `json:"correlation_id"`
	Principal     string      `json:"principal"`
	CreatedAt     time.Time   `json:"created_at"`
	UpdatedAt     time.Time   `json:"updated_at"`
	FinishedAt    *time.Time  `json:"finished_at,omitempty"`
	// AwaitReport is since when nothing is sent before a full report has come (an attempt became ambiguous).
	AwaitReport *time.Time `json:"await_report,omitempty"`
	// ActionDone: the node proved the restart. A node that forgot its streams is not asked to run it again.
	ActionDone bool `json:"action_done,omitempty"`
	// Convergence of the stream as this intent saw it last; the current intent's is the stream's.
	Convergence Convergence `json:"convergence"`
}

// Live tells whether the intent is still to be worked on.
func (i *Intent) Live() bool {
	return i.State == Accepted || i.State == Converging || i.State == Retrying
}

// Open tells whether something is still to be done or waited for: the intent is live, or its attempt is active.
func (i *Intent) Open() bool { return i.Live() || i.Attempt.Active() }

// Ended tells whether the intent will not be worked on again, unless a node forgets what converged.
func (i *Intent) Ended() bool { return i.State.Ended() }

// Ended tells whether an intent in this state can no longer be cancelled.
func (s IntentState) Ended() bool { return s == Converged || s == Superseded || s == Cancelled }

// Operations is the kind of intents, named by intent id. The intent is the status; the spec is empty. Labels
// carry what operations are filtered by.
var Operations = store.Type[struct{}, Intent]{Kind: store.Kind{Name: "operation", Version: 1}}

// Labels of stored operations. Their values are not restricted to what Kubernetes allows: select by
// labels.SelectorFromValidatedSet.
const (
	LabelNode        = "node_id"
	LabelResource    = "resource_id"
	LabelOperation   = "operation"
	LabelState       = "state"
	LabelCorrelation = "correlation_id"
	// LabelOpen is the node of an intent that is open, and missing on others.
	LabelOpen = "open"
)

// Labels are those that the stored operation has.
func (i *Intent) Labels() map[string]string {
	l := map[string]string{
		LabelNode: i.Node, LabelResource: i.Resource, LabelOperation: string(i.Verb), LabelState: string(i.State),
	}
	if i.CorrelationID != "" {
		l[LabelCorrelation] = i.CorrelationID
	}
	if i.Open() {
		l[LabelOpen] = i.Node
	}
	return l
}
