// Package agentapi is the protocol between a node's agent and the hub (/agent/v1): its messages and its client.
package agentapi

import (
	"time"

	"freehold.dev/freehold/internal/hub"
)

// ProtocolVersion is the version that this program speaks; MinProtocolVersion the oldest that its hub accepts.
const (
	ProtocolVersion    = 1
	MinProtocolVersion = 1
)

// EnrolRequest makes a node known with the key that it made (POST /agent/v1/enroll). It is repeatable with the same
// token and key until the token expires, so that a lost answer loses nothing.
type EnrolRequest struct {
	NodeID          string            `json:"node_id"`
	EnrolmentToken  string            `json:"enrolment_token"`
	ProtocolVersion int               `json:"protocol_version"`
	AgentVersion    string            `json:"agent_version"`
	PublicKey       string            `json:"public_key" doc:"Ed25519, base64."`
	Labels          map[string]string `json:"labels,omitempty"`
	Capabilities    []string          `json:"capabilities,omitempty" doc:"Engines and limits: \"benthos\", \"process\", \"cgroup\"."`
	BootID          string            `json:"boot_id"`
	BootSeq         int64             `json:"boot_seq"`
}

// EnrolAnswer hands out the credentials.
type EnrolAnswer struct {
	Session
	RefreshCredential string `json:"refresh_credential" doc:"Good together with the node's key, until the node is enrolled again or deleted."`
}

// Session is what every other request carries as bearer token.
type Session struct {
	SessionToken string    `json:"session_token"`
	ExpiresAt    time.Time `json:"expires_at"`
	// ExpiresIn is in seconds, for nodes whose clock is wrong.
	ExpiresIn int `json:"expires_in"`
}

// SessionRequest renews a session (POST /agent/v1/session). Without Challenge and Signature the answer is 401 with
// a challenge in details.challenge; Signature is the key's, over [SessionStatement], base64.
type SessionRequest struct {
	NodeID            string   `json:"node_id"`
	RefreshCredential string   `json:"refresh_credential"`
	BootID            string   `json:"boot_id"`
	BootSeq           int64    `json:"boot_seq"`
	ProtocolVersion   int      `json:"protocol_version"`
	AgentVersion      string   `json:"agent_version"`
	Capabilities      []string `json:"capabilities,omitempty"`
	Challenge         string   `json:"challenge,omitempty"`
	Signature         string   `json:"signature,omitempty"`
}

// Report tells what the node observes (POST /agent/v1/reports). Reports of one boot carry rising ReportSeq; a full
// one lists every stream that the node knows, tombstones included; another lists those that changed. The first of a
// boot is full. A heartbeat lists none, or their metrics only.
type Report struct {
	BootID    string          `json:"boot_id"`
	BootSeq   int64           `json:"boot_seq"`
	ReportSeq int64           `json:"report_seq"`
	Full      bool            `json:"full,omitempty"`
	Streams   []StreamReport  `json:"streams,omitempty"`
	Attempts  []AttemptReport `json:"attempts,omitempty"`
}

// StreamReport is the state of one stream.
type StreamReport struct {
	StreamID           string       `json:"stream_id"`
	State              hub.State    `json:"state"`
	Generation         int64        `json:"generation"`
	ConfigVersion      string       `json:"config_version,omitempty"`
	ConfigDigest       string       `json:"config_digest,omitempty" doc:"Of the config version's content: a hub that was restored from a backup may give a name to another one."`
	CompletedActions   []string     `json:"completed_actions,omitempty"`
	InterruptedActions []string     `json:"interrupted_actions,omitempty"`
	Error              *hub.Failure `json:"error,omitempty"`
	Metrics            *Metrics     `json:"metrics,omitempty"`
}

// Metrics of a stream since its engine started, but Restarts: since the agent started.
type Metrics struct {
	InputMessages  int64 `json:"input_messages"`
	OutputMessages int64 `json:"output_messages"`
	Errors         int64 `json:"errors"`
	// LagMessages is what the input knows to be waiting, -1 when it cannot tell.
	LagMessages int64 `json:"lag_messages"`
	Restarts    int64 `json:"restarts"`
	// UptimeSeconds of the running engine.
	UptimeSeconds float64 `json:"uptime_seconds"`
	// CPUSeconds and MemoryBytes of the engine's processes.
	CPUSeconds  float64 `json:"cpu_seconds"`
	MemoryBytes int64   `json:"memory_bytes"`
}

// AttemptReport tells what became of a command: acknowledged (durably accepted; repeated while it goes on),
// succeeded or failed. What is told of an attempt already ended is ignored.
type AttemptReport struct {
	AttemptID string           `json:"attempt_id"`
	State     hub.AttemptState `json:"state"`
	Failure   *hub.Failure     `json:"failure,omitempty"`
}

// ReportAnswer acknowledges a report. 409 with code stale_report and details {boot_seq, report_seq} answers one that
// is not newer than the newest.
type ReportAnswer struct {
	AcceptedSeq  int64 `json:"accepted_seq"`
	FullRequired bool  `json:"full_required"`
}

// Commands answers the long poll (GET /agent/v1/commands?wait=30s).
type Commands struct {
	Commands     []Command `json:"commands"`
	FullRequired bool      `json:"full_required"`
	Requests     []Request `json:"requests,omitempty"`
}

// Command asks the node to take over a generation.
type Command struct {
	AttemptID     string    `json:"attempt_id"`
	IntentID      string    `json:"intent_id"`
	StreamID      string    `json:"stream_id"`
	Generation    int64     `json:"generation"`
	State         hub.State `json:"state"`
	ConfigVersion string    `json:"config_version,omitempty"`
	// Digest of the config version's content.
	Digest string `json:"digest,omitempty"`
	// ActionID asks for a restart, which runs at most once on the node.
	ActionID  string    `json:"action_id,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
	// ExpiresInMS counts from the answer's arrival, on the node's own monotonic clock.
	ExpiresInMS int64 `json:"expires_in_ms"`
}

// Request asks the node for something that is not stored in the hub. It is answered by POST
// /agent/v1/requests/{request_id} with a [LogAnswer], or not at all.
type Request struct {
	RequestID string `json:"request_id"`
	// Kind is "logs".
	Kind     string `json:"kind"`
	StreamID string `json:"stream_id"`
	// After is the cursor to go on from; 0: the last Limit lines.
	After int64 `json:"after"`
	Limit int   `json:"limit"`
	// WaitMS is how long to wait for a line when there is none.
	WaitMS int64 `json:"wait_ms"`
}

// LogAnswer is a part of a stream's log.
type LogAnswer struct {
	Lines []LogLine `json:"lines"`
	// Next is the cursor behind the last line. Cursors are not used twice for a stream, across restarts of the agent too.
	Next int64 `json:"next"`
	// Error when the node cannot tell ("there is no such stream").
	Error string `json:"error,omitempty"`
}

// LogLine is one line of a stream's log.
type LogLine struct {
	Time time.Time `json:"time"`
	// Source is "stdout", "stderr" (of a process), "engine" or "agent".
	Source string `json:"source"`
	Text   string `json:"text"`
}

// ConfigContent answers GET /agent/v1/config-versions/{id}.
type ConfigContent struct {
	ConfigVersion string     `json:"config_version"`
	Engine        hub.Engine `json:"engine"`
	Digest        string     `json:"digest"`
	Content       string     `json:"content"`
}

// Codes of refusals that an agent acts upon, beside those of the operator API.
const (
	CodeStaleReport         = "stale_report"
	CodeFullReportRequired  = "full_report_required" // a boot's first report was not full
	CodeSessionExpired      = "session_expired"      // renew
	CodeSessionSuperseded   = "session_superseded"   // a newer boot of this node exists
	CodeIdentityConflict    = "identity_conflict"    // another agent uses this node's identity
	CodeNotEnrolled         = "not_enrolled"         // the node was deleted, or enrolled anew elsewhere: enrol again
	CodeProtocolUnsupported = "protocol_unsupported"
	CodeChallenge           = "challenge_required"
)

// SessionStatement is what a node signs to renew its session.
func SessionStatement(nodeID, bootID, challenge string) []byte {
	return []byte("freehold agent session\n" + nodeID + "\n" + bootID + "\n" + challenge)
}
