package hub

import (
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// NodeSpec is what an operator declares of a node. Its labels are the object's.
type NodeSpec struct{}

// Presence tells whether a node is heard from.
type Presence string

// The presences.
const (
	// PresencePending is a node that was registered and never enrolled.
	PresencePending Presence = "pending"
	PresenceOnline  Presence = "online"
	// PresenceOffline is a node without a report for [OfflineAfter].
	PresenceOffline Presence = "offline"
)

// Timing of the agent protocol.
const (
	// HeartbeatEvery is how often an agent reports when nothing changes.
	HeartbeatEvery = 15 * time.Second
	// FullReportEvery is how often an agent reports fully when nobody asks for it: what a report that came too late made
	// the hub believe is put right then.
	FullReportEvery = 10 * time.Minute
	// OfflineAfter is how long after its last report a node counts as offline.
	OfflineAfter = 45 * time.Second
	// EnrolmentTTL is how long an enrolment token is good for unless asked otherwise.
	EnrolmentTTL = 15 * time.Minute
	// MaxEnrolmentTTL is the longest that can be asked for.
	MaxEnrolmentTTL = 7 * 24 * time.Hour
	// SessionTTL is how long a node's session is good for.
	SessionTTL = time.Hour
)

// NodeStatus is what is known of a node. Heartbeats are not in it: only changes are stored.
type NodeStatus struct {
	Presence Presence  `json:"presence"`
	Since    time.Time `json:"since"`

	AgentVersion    string   `json:"agent_version,omitempty"`
	ProtocolVersion int      `json:"protocol_version,omitempty"`
	Capabilities    []string `json:"capabilities,omitempty"`
	// AgentLabels are those that the agent sent at enrolment; the object's own labels win over them.
	AgentLabels map[string]string `json:"agent_labels,omitempty"`

	// Boot is the newest boot that opened a session.
	Boot Boot `json:"boot"`

	Enrolment *Enrolment `json:"enrolment,omitempty"`
	// Credential ties sessions to the key that the node made at its last enrolment.
	Credential *Credential `json:"credential,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Boot orders the runs of an agent.
type Boot struct {
	// ID is random, made when the agent process starts.
	ID string `json:"boot_id,omitempty"`
	// Seq is a durable counter on the node, raised when the agent process starts.
	Seq int64 `json:"boot_seq,omitempty"`
}

// Enrolment is a token that was handed out.
type Enrolment struct {
	// Hash is the SHA-256 of the token, hexadecimal.
	Hash      string    `json:"hash"`
	ExpiresAt time.Time `json:"expires_at"`
	// UsedBy is the public key that it was used with: it is good for no other.
	UsedBy string `json:"used_by,omitempty"`
}

// Cursor is the newest report of a node.
type Cursor struct {
	Boot      Boot  `json:"boot"`
	ReportSeq int64 `json:"report_seq"`
}

// Credential is the node's key.
type Credential struct {
	// ID changes with each enrolment: refresh credentials of earlier ones are void.
	ID string `json:"id"`
	// PublicKey is an Ed25519 key, base64.
	PublicKey  string    `json:"public_key"`
	EnrolledAt time.Time `json:"enrolled_at"`
}

// Condition is something about a node that an operator should know.
type Condition struct {
	Type    string    `json:"type"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
	// LastSeen is when it was noticed last.
	LastSeen time.Time `json:"last_seen"`
}

// ConditionIdentityConflict tells that two agents use one node's identity (a cloned disk).
const ConditionIdentityConflict = "IdentityConflict"

// Nodes is the kind of nodes, named by node id. A node that is deleted keeps [NodeFinalizer] until its streams are
// absent.
var Nodes = store.Type[NodeSpec, NodeStatus]{Kind: store.Kind{Name: "hubnode", Version: 1}}

// Node is a stored node.
type Node = store.Resource[NodeSpec, NodeStatus]

// NodeFinalizer holds a node until its streams were stopped.
const NodeFinalizer = "freehold.dev/streams"
