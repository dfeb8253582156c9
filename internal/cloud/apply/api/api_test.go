package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/apply/api"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type records map[string][]apply.Apply

func (r records) Applies(_ context.Context, tenant string, limit int) ([]apply.Apply, error) {
	found, ok := r[tenant]
	if !ok {
		return nil, fmt.Errorf("tenant %q: %w", tenant, store.ErrNotFound)
	}
	return found[:min(limit, len(found))], nil
}

func TestAppliesAreListedAsTheClientReadsThem(t *testing.T) {
	began := time.Date(2026, 5, 28, 9, 0, 0, 0, time.UTC)
	ended := began.Add(2 * time.Second)
	mux := http.NewServeMux()
	a := rest.New(mux, rest.Config{
		Title: "test", Version: "v1", Prefixes: []string{"/api/v1"}, Logger: slog.New(slog.DiscardHandler),
		Authenticate: func(r *http.Request) (context.Context, error) { return r.Context(), nil },
		Authorize:    func(context.Context, rest.Access) error { return nil },
	})
	api.Register(a, records{"prod": {
		{ID: "2", Trigger: "retry", Started: ended, Result: apply.Running, Phase: tofu.PhaseApplying},
		{
			ID: "1", Trigger: "first apply", Started: began, Finished: &ended, Seconds: 2, Result: "failed", Error: "refused", Plan: tofu.Summary{Add: 1},
			Resources: []tofu.Resource{{Address: "a.b", Action: "create", State: "failed", Started: began, Duration: time.Second}},
		},
	}})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	c, err := client.New(client.Config{Server: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Applies(t.Context(), "prod", 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []client.Apply{
		{ID: "2", Trigger: "retry", StartedAt: ended, Result: client.ApplyRunning, Phase: "applying"},
		{
			ID: "1", Trigger: "first apply", StartedAt: began, FinishedAt: &ended, Seconds: 2, Result: "failed", Error: "refused", Plan: client.PlanSummary{Add: 1},
			Resources: []client.ApplyResource{{Address: "a.b", Action: "create", State: "failed", StartedAt: began, Seconds: 1}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if one, err := c.Applies(t.Context(), "prod", 1); err != nil || len(one) != 1 {
		t.Errorf("at most one: %d, %v", len(one), err)
	}
	if _, err := c.Applies(t.Context(), "none", 0); !client.IsNotFound(err) {
		t.Errorf("no such tenant: %v", err)
	}
}
