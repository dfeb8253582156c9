package client

import (
	"encoding/json"
	"time"
)

// AuditEntry is one request for a change: who asked, from where, and what became of it.
type AuditEntry struct {
	ID            int64           `json:"id"`
	Time          time.Time       `json:"time"`
	Principal     string          `json:"principal" doc:"The user; empty for a caller who was not let in."`
	Action        string          `json:"action" doc:"The operation's id, or a word for what was done."`
	Resource      string          `json:"resource" doc:"A kind and a name: stream/node-a/orders."`
	ResourceUID   string          `json:"resource_uid,omitempty"`
	Address       string          `json:"address,omitempty"`
	CorrelationID string          `json:"correlation_id,omitempty"`
	Outcome       string          `json:"outcome" enum:"accepted,rejected"`
	Code          string          `json:"code,omitempty" doc:"Why it was rejected."`
	Detail        json.RawMessage `json:"detail,omitempty"`
}
