package api

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// OperationPath names the operation.
type OperationPath struct {
	Intent string `path:"intent_id" doc:"The intent's id."`
}

type (
	operationList struct {
		rest.Numbered
		Node          string `query:"node_id" doc:"The node."`
		Resource      string `query:"resource_id" doc:"The stream's id, or __configuration__."`
		Operation     string `query:"operation" doc:"set_state, restart, config_apply or config_rollback."`
		State         string `query:"state" doc:"accepted, converging, converged, retrying, blocked, superseded or cancelled."`
		CorrelationID string `query:"correlation_id" doc:"The correlation id of the request that made it."`
	}
	operationOutput struct{ Body client.Operation }
	operationCancel struct {
		OperationPath
		Retriable
	}
)

var (
	verbs  = []hub.Verb{hub.SetState, hub.Restart, hub.ConfigApply, hub.ConfigRollback}
	states = []hub.IntentState{hub.Accepted, hub.Converging, hub.Converged, hub.Retrying, hub.Blocked, hub.Superseded, hub.Cancelled}
)

func (s *service) registerOperations(a *rest.API) {
	tag := op("Operations")
	rest.Register(a, tag.get(operationsPath, "list-operations", "List operations, newest first"), s.listOperations)
	rest.Register(a, tag.get(operationsPath+"/{intent_id}", "get-operation", "Get an operation"), s.getOperation)
	rest.Register(a, tag.write(http.MethodDelete, operationsPath+"/{intent_id}", "cancel-operation", http.StatusOK, "Cancel an intent",
		"Before it was dispatched nothing is sent any more. Afterwards the attempt runs out and shows its outcome: what was done is not undone."), s.cancelOperation)
}

// selector of the stored labels; nil for all.
func (in *operationList) selector() (labels.Selector, error) {
	if in.Operation != "" {
		if err := oneOf("operation", hub.Verb(in.Operation), verbs); err != nil {
			return nil, err
		}
	}
	if in.State != "" {
		if err := oneOf("state", hub.IntentState(in.State), states); err != nil {
			return nil, err
		}
	}
	set := labels.Set{}
	for label, value := range map[string]string{
		hub.LabelNode: in.Node, hub.LabelResource: in.Resource, hub.LabelOperation: in.Operation,
		hub.LabelState: in.State, hub.LabelCorrelation: in.CorrelationID,
	} {
		if value != "" {
			set[label] = value
		}
	}
	return labels.SelectorFromValidatedSet(set), nil
}

func (s *service) listOperations(ctx context.Context, in *operationList) (*page[client.Operation], error) {
	selector, err := in.selector()
	if err != nil {
		return nil, err
	}
	offset, limit := in.Bounds()
	out := &page[client.Operation]{}
	err = s.Store.View(ctx, func(r store.Reader) error {
		found, total, err := hub.Operations.List(r, store.Query{Selector: selector, Offset: offset, Limit: limit, NewestFirst: true})
		if err != nil {
			return err
		}
		out.Body = client.HubPage[client.Operation]{Items: make([]client.Operation, len(found)), Page: in.Page, PageSize: limit, Total: total}
		for i, o := range found {
			if out.Body.Items[i], err = operation(r, &o.Status); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func (s *service) getOperation(ctx context.Context, in *OperationPath) (*operationOutput, error) {
	out := &operationOutput{}
	err := s.Store.View(ctx, func(r store.Reader) error {
		o, err := hub.Operations.Get(r, in.Intent)
		if err != nil {
			return missing(err, "operation", in.Intent)
		}
		out.Body, err = operation(r, &o.Status)
		return err
	})
	return out, err
}

// operation renders an intent beside its stream.
func operation(r store.Reader, i *hub.Intent) (client.Operation, error) {
	st, err := hub.Streams.Get(r, hub.StreamName(i.Node, i.Resource))
	if err != nil && !errors.Is(err, store.ErrNotFound) { // it may have gone with its node
		return client.Operation{}, err
	}
	return wireOperation(i, st), nil
}

func (s *service) cancelOperation(ctx context.Context, in *operationCancel) (*answered[client.Operation], error) {
	m, err := s.begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	return commit(ctx, m, http.StatusOK, func(tx store.Tx) (*change[client.Operation], error) {
		intent, err := s.Ledger.Cancel(tx, in.Intent)
		if err != nil {
			return nil, err
		}
		body, err := operation(tx, intent)
		if err != nil {
			return nil, err
		}
		return &change[client.Operation]{
			body: body, kind: kindOperation, name: intent.ID,
			detail: map[string]any{"node_id": intent.Node, "resource_id": intent.Resource, "generation": intent.Generation},
		}, nil
	})
}
