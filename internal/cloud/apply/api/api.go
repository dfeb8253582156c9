// Package api serves the records of applies over HTTP.
package api

import (
	"context"
	"errors"
	"net/http"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// Applies lists a tenant's applies, newest first, at most limit, one that is running among them. An error that wraps
// [store.ErrNotFound] means that there is no such tenant. [apply.Service] is one.
type Applies interface {
	Applies(ctx context.Context, tenant string, limit int) ([]apply.Apply, error)
}

type listInput struct {
	Name  string `path:"name" doc:"The tenant's name."`
	Limit int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many applies to answer at most."`
}

type listOutput struct{ Body ApplyList }

// ApplyList are a tenant's latest applies.
type ApplyList struct {
	Items []client.Apply `json:"items"`
}

// Register adds the list of a tenant's applies to an API that owns /api/v1.
func Register(a *rest.API, applies Applies) {
	rest.Register(a, rest.Operation{
		Method: http.MethodGet, Path: "/api/v1/tenants/{name}/applies", ID: "list-applies", Access: rest.View,
		Summary: "List a tenant's latest applies", Tags: []string{"Tenants"},
		Description: "Newest first, with what was planned, how each resource went, how long it took, and the first error. One that is running is among them, as far as it has come.",
	}, func(ctx context.Context, in *listInput) (*listOutput, error) {
		found, err := applies.Applies(ctx, in.Name, in.Limit)
		if errors.Is(err, store.ErrNotFound) {
			return nil, rest.NotFound("tenant %q not found", in.Name)
		}
		if err != nil {
			return nil, err
		}
		out := &listOutput{ApplyList{Items: make([]client.Apply, len(found))}}
		for i := range found {
			out.Body.Items[i] = wire(&found[i])
		}
		return out, nil
	})
}

func wire(a *apply.Apply) client.Apply {
	w := client.Apply{
		ID: a.ID, Trigger: a.Trigger, Destroy: a.Destroy, StartedAt: a.Started, FinishedAt: a.Finished, Seconds: a.Seconds,
		Result: a.Result, Error: a.Error, Blocked: a.Blocked, Phase: string(a.Phase),
		Plan: client.PlanSummary{Add: a.Plan.Add, Change: a.Plan.Change, Destroy: a.Plan.Destroy},
	}
	for _, r := range a.Resources {
		w.Resources = append(w.Resources, client.ApplyResource{
			Address: r.Address, Action: r.Action, State: r.State, StartedAt: r.Started, Seconds: r.Duration.Seconds(),
		})
	}
	return w
}
