package api

import (
	"context"
	"encoding/json"
	"time"

	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// auditTable is the append-only table of what must be traceable to a person, keyed by user.
const auditTable = "audit"

type auditEntry struct {
	Time      time.Time `json:"time"`
	User      string    `json:"user"`
	RequestID string    `json:"requestId,omitempty"`
	Action    string    `json:"action"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Detail    any       `json:"detail,omitempty"`
}

// audit records an act in the transaction that does it.
func (s *service) audit(ctx context.Context, tx store.Tx, e auditEntry) error {
	e.Time, e.User, e.RequestID = now(), s.Caller(ctx).User, rest.RequestID(ctx)
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = tx.Append(auditTable, e.User, data)
	return err
}
