package client

import (
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// HubPage is one page of a collection of the Hub API.
type HubPage[R any] struct {
	Items    []R `json:"items"`
	Page     int `json:"page"`
	PageSize int `json:"page_size"`
	Total    int `json:"total"`
}

// HubNode is a node that streams run on.
type HubNode struct {
	NodeID          string                       `json:"node_id"`
	State           hub.Presence                 `json:"state" enum:"pending,online,offline" doc:"pending: registered, not enrolled yet."`
	Since           time.Time                    `json:"since"`
	Labels          map[string]string            `json:"labels"`
	AgentVersion    string                       `json:"agent_version,omitempty"`
	ProtocolVersion int                          `json:"protocol_version,omitempty"`
	Capabilities    []string                     `json:"capabilities"`
	LastReportAt    *time.Time                   `json:"last_report_at,omitempty" doc:"Known to the server that the node speaks to; not stored."`
	Conditions      []hub.Condition              `json:"conditions"`
	Streams         map[hub.ConvergenceState]int `json:"streams" doc:"The node's streams, counted by convergence, without those that were removed."`
	Deleting        bool                         `json:"deleting"`
	CreatedAt       time.Time                    `json:"created_at"`
}

// NodeRegistration asks for a node.
type NodeRegistration struct {
	NodeID              string            `json:"node_id"`
	Labels              map[string]string `json:"labels,omitempty"`
	EnrolmentTTLSeconds int               `json:"enrolment_ttl_seconds,omitempty"`
}

// NodeEnrolment answers it: the token is shown this once.
type NodeEnrolment struct {
	HubNode
	EnrolmentToken string    `json:"enrolment_token"`
	TokenExpiresAt time.Time `json:"token_expires_at"`
}

// Stream is the authoritative point-in-time view of a stream.
type Stream struct {
	NodeID   string        `json:"node_id"`
	StreamID string        `json:"stream_id"`
	Desired  *hub.Desired  `json:"desired"`
	Observed *hub.Observed `json:"observed"`
	// Convergence compares the two; reason and since belong to it.
	Convergence       hub.ConvergenceState `json:"convergence" enum:"unknown,pending,applying,in_sync,degraded,blocked"`
	ConvergenceReason string               `json:"convergence_reason,omitempty"`
	ConvergenceSince  time.Time            `json:"convergence_since"`
	IntentID          string               `json:"intent_id,omitempty"`
	OperationID       string               `json:"operation_id,omitempty"`
	AttemptID         string               `json:"attempt_id,omitempty"`
	CreatedAt         time.Time            `json:"created_at"`
	UpdatedAt         time.Time            `json:"updated_at"`
}

// DesiredState is the body of the canonical mutation.
type DesiredState struct {
	State         hub.State `json:"state" enum:"running,stopped,absent"`
	ConfigVersion string    `json:"config_version,omitempty" doc:"Left out: the one that the stream has."`
}

// StreamAccepted answers every accepted mutation.
type StreamAccepted struct {
	OperationID   string               `json:"operation_id"`
	IntentID      string               `json:"intent_id"`
	NodeID        string               `json:"node_id"`
	StreamID      string               `json:"stream_id"`
	Generation    int64                `json:"generation"`
	DesiredState  hub.State            `json:"desired_state"`
	ConfigVersion string               `json:"config_version,omitempty"`
	ActionID      string               `json:"action_id,omitempty"`
	Convergence   hub.ConvergenceState `json:"convergence"`
}

// Operation is the record of an intent.
type Operation struct {
	OperationID       string               `json:"operation_id"`
	IntentID          string               `json:"intent_id"`
	NodeID            string               `json:"node_id"`
	ResourceID        string               `json:"resource_id"`
	StreamID          string               `json:"stream_id,omitempty"`
	Operation         hub.Verb             `json:"operation"`
	State             hub.IntentState      `json:"state"`
	Generation        int64                `json:"generation"`
	DesiredState      hub.State            `json:"desired_state"`
	ConfigVersion     string               `json:"config_version,omitempty"`
	ActionID          string               `json:"action_id,omitempty"`
	Convergence       hub.ConvergenceState `json:"convergence"`
	ConvergenceReason string               `json:"convergence_reason,omitempty"`
	AttemptID         string               `json:"attempt_id,omitempty"`
	Attempt           *OperationAttempt    `json:"attempt"`
	Attempts          int                  `json:"attempts"`
	Retry             hub.RetryState       `json:"retry"`
	Failure           *hub.Failure         `json:"failure"`
	Observed          *hub.Observed        `json:"observed"`
	CorrelationID     string               `json:"correlation_id"`
	Principal         string               `json:"principal"`
	CreatedAt         time.Time            `json:"created_at"`
	UpdatedAt         time.Time            `json:"updated_at"`
	FinishedAt        *time.Time           `json:"finished_at"`
}

// OperationAttempt is the latest attempt of an operation.
type OperationAttempt struct {
	State          hub.AttemptState `json:"state"`
	DispatchedAt   *time.Time       `json:"dispatched_at"`
	AcknowledgedAt *time.Time       `json:"acknowledged_at"`
	FinishedAt     *time.Time       `json:"finished_at"`
	LeaseExpiresAt time.Time        `json:"lease_expires_at"`
	Result         *hub.Failure     `json:"result"`
}

// ConfigVersion is immutable content for an engine.
type ConfigVersion struct {
	ConfigVersion string     `json:"config_version"`
	Engine        hub.Engine `json:"engine" enum:"benthos,process,node"`
	Digest        string     `json:"digest"`
	Size          int        `json:"size"`
	Description   string     `json:"description,omitempty"`
	Content       string     `json:"content,omitempty" doc:"Not in lists."`
	Principal     string     `json:"principal"`
	CreatedAt     time.Time  `json:"created_at"`
}

// ConfigContent is what is published or validated.
type ConfigContent struct {
	Engine      hub.Engine `json:"engine" enum:"benthos,process,node"`
	Content     string     `json:"content"`
	Description string     `json:"description,omitempty"`
}

// ConfigPublished answers a publication.
type ConfigPublished struct {
	ConfigVersion string     `json:"config_version"`
	Digest        string     `json:"digest"`
	Engine        hub.Engine `json:"engine"`
}

// StreamLogs is a part of a stream's log, fetched from its node.
type StreamLogs struct {
	Items []agentapi.LogLine `json:"items"`
	// Next is what ?after= takes to go on.
	Next int64 `json:"next"`
}

// StreamMetrics are the counters of a stream's latest report, with rates between its last two.
type StreamMetrics struct {
	NodeID     string     `json:"node_id"`
	StreamID   string     `json:"stream_id"`
	ReportedAt *time.Time `json:"reported_at"`
	agentapi.Metrics
	InputPerSecond  float64 `json:"input_per_second"`
	OutputPerSecond float64 `json:"output_per_second"`
	ErrorsPerSecond float64 `json:"errors_per_second"`
}

// EnrolmentRequest asks for a new enrolment token of a node that exists.
type EnrolmentRequest struct {
	EnrolmentTTLSeconds int `json:"enrolment_ttl_seconds,omitempty"`
}

// NodeDeletion answers the deletion of a node.
type NodeDeletion struct {
	NodeID string `json:"node_id"`
	// Deleted: it is gone. Otherwise it goes when its streams are absent.
	Deleted bool `json:"deleted"`
}

// ConfigReference names a config version to apply.
type ConfigReference struct {
	ConfigVersion string `json:"config_version"`
}

// RestartAction is the body of the restart of a stream.
type RestartAction struct {
	ActionID string `json:"action_id,omitempty" doc:"Names the restart; left out, the server makes one. A stream runs an action once."`
}
