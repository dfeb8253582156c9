package client

import (
	"context"
	"net/http"
	"net/url"
)

// OperationFilter restricts a list of operations. Empty fields do not.
type OperationFilter struct {
	Node, Resource, Operation, State, CorrelationID string
}

func (f OperationFilter) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"node_id": f.Node, "resource_id": f.Resource, "operation": f.Operation, "state": f.State, "correlation_id": f.CorrelationID,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// Operations lists operations, newest first, at most limit (0: all that are kept).
func (h Hub) Operations(ctx context.Context, f OperationFilter, limit int) ([]Operation, error) {
	return pages(ctx, h, api+"/operations", f.query(), limit, func(o Operation) string { return o.IntentID })
}

// Operation answers the record of an intent.
func (h Hub) Operation(ctx context.Context, intent string) (*Operation, error) {
	return fetch[Operation](ctx, h, api+"/operations/"+url.PathEscape(intent), nil)
}

// CancelOperation cancels an intent: what was not sent to the node is not sent any more. What was sent may have an
// effect all the same, which the operation goes on to show.
func (h Hub) CancelOperation(ctx context.Context, intent string, o MutationOptions) (*Operation, error) {
	return mutate[Operation](ctx, h, http.MethodDelete, api+"/operations/"+url.PathEscape(intent), nil, o)
}
