// Package api serves the audit trail to administrators.
package api

import (
	"context"
	"net/http"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type listInput struct {
	rest.Numbered
	Principal     string    `query:"principal" doc:"The user who asked."`
	Action        string    `query:"action" doc:"The operation's id."`
	Resource      string    `query:"resource" doc:"A kind, or a kind and the first parts of a name: stream, stream/node-a, stream/node-a/orders."`
	Outcome       string    `query:"outcome" enum:"accepted,rejected" doc:"What became of the request."`
	CorrelationID string    `query:"correlation_id" doc:"The correlation id of the request."`
	Since         time.Time `query:"since" doc:"The earliest time, RFC 3339."`
	Until         time.Time `query:"until" doc:"The time before which, RFC 3339."`
}

type listOutput struct {
	Body client.HubPage[client.AuditEntry]
}

// Register adds GET /api/v1/audit.
func Register(a *rest.API, s store.Store) {
	rest.Register(a, rest.Operation{
		Method: http.MethodGet, Path: "/api/v1/audit", ID: "list-audit", Access: rest.Admin, Tags: []string{"Audit"},
		Summary: "Who asked for which change",
		Description: "Newest first. total counts to 10000, and pages reach as far; until reaches older entries. Accepted changes are " +
			"recorded with the change; refused ones shortly after their answer, as far as the server keeps up with them.",
	}, func(ctx context.Context, in *listInput) (*listOutput, error) {
		offset, limit := in.Bounds()
		page, err := audit.List(ctx, s, audit.Filter{
			Principal: in.Principal, Action: in.Action, Resource: in.Resource, Outcome: audit.Outcome(in.Outcome),
			CorrelationID: in.CorrelationID, Since: in.Since, Until: in.Until,
		}, offset, limit)
		if err != nil {
			return nil, err
		}
		out := &listOutput{client.HubPage[client.AuditEntry]{
			Items: make([]client.AuditEntry, len(page.Entries)), Page: in.Page, PageSize: limit, Total: page.Total,
		}}
		for i := range page.Entries {
			out.Body.Items[i] = wire(&page.Entries[i])
		}
		return out, nil
	})
}

func wire(e *audit.Entry) client.AuditEntry {
	return client.AuditEntry{
		ID: e.ID, Time: e.Time, Principal: e.Principal, Action: e.Action, Resource: e.Resource(), ResourceUID: e.UID,
		Address: e.Address, CorrelationID: e.CorrelationID, Outcome: string(e.Outcome), Code: e.Code, Detail: e.Detail,
	}
}
