package api

import (
	"context"

	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/kernel/store"
)

// auditEntry is an act that must be traceable to a person.
type auditEntry struct {
	Action string
	Kind   string
	Name   string
	UID    string
	Detail any
}

// audit records an act in the transaction that does it.
func (s *service) audit(ctx context.Context, tx store.Tx, act auditEntry) error {
	e, err := audit.Of(ctx, s.Caller(ctx).User).WithDetail(act.Detail)
	if err != nil {
		return err
	}
	e.Time, e.Action, e.Kind, e.Name, e.UID = now(), act.Action, act.Kind, act.Name, act.UID
	return audit.Append(tx, e)
}
