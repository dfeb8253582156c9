package api_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub/api"
)

func TestLogsAreFetchedFromTheNode(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	p.get(orders+"/logs").refused(404, "not_found")
	p.run("node-a", "orders", p.config("command: one"))
	a := p.get(orders+"/logs").refused(503, "node_unavailable")
	if a.text("details.node_id") != "node-a" {
		t.Errorf("%s", a.body)
	}
	var asked []api.LogQuery
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	p.live.logs = func(_ context.Context, node, stream string, q api.LogQuery) (agentapi.LogAnswer, error) {
		asked = append(asked, q)
		switch {
		case node != "node-a" || stream != "orders":
			t.Errorf("asked for %s/%s", node, stream)
		case q.After == 9:
			return agentapi.LogAnswer{Next: 9}, nil
		case q.After == 10:
			return agentapi.LogAnswer{}, api.ErrNoLog
		}
		return agentapi.LogAnswer{Lines: []agentapi.LogLine{{Time: at, Source: "stdout", Text: "<hello>"}}, Next: 9}, nil
	}
	want := `{"items":[{"time":"2026-05-01T12:00:00Z","source":"stdout","text":"<hello>"}],"next":9}` + "\n"
	if diff := cmp.Diff(want, string(p.get(orders+"/logs").want(200).body)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(`{"items":[],"next":9}`+"\n", string(p.get(orders+"/logs?after=9&limit=5000&wait=10s").want(200).body)); diff != "" {
		t.Error(diff)
	}
	p.get(orders+"/logs?after=10&limit=7").refused(404, "not_found")
	if diff := cmp.Diff([]api.LogQuery{{Limit: 100}, {After: 9, Limit: 1000, Wait: 10 * time.Second}, {After: 10, Limit: 7}}, asked); diff != "" {
		t.Error(diff)
	}
	for _, wait := range []string{"x", "-1s", "31s", "5"} {
		p.get(orders+"/logs?wait="+wait).refused(422, "validation_failed", "wait")
	}
	p.get(orders+"/logs?after=-1").refused(400, "bad_request", "after")
	p.get(orders+"/logs?limit=0").refused(400, "bad_request", "limit")
	p.get("/nodes/none/streams/orders/logs").refused(404, "not_found")
}

func TestMetricsHaveRatesBetweenTheLastTwoReports(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	p.get(orders+"/metrics").refused(404, "not_found")
	p.run("node-a", "orders", p.config("command: one"))
	a := p.get(orders + "/metrics").want(200)
	if a.field("reported_at") != nil || a.field("lag_messages") != -1.0 || a.field("input_per_second") != 0.0 || a.text("stream_id") != "orders" {
		t.Errorf("%s", a.body)
	}
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	m := api.StreamMetrics{
		ReportedAt: at, Counters: agentapi.Metrics{InputMessages: 300, OutputMessages: 20, Errors: 7, LagMessages: 4},
		BeforeAt: at.Add(-10 * time.Second), Before: agentapi.Metrics{InputMessages: 200, OutputMessages: 70, Errors: 7},
	}
	p.live.metrics["node-a/orders"] = m
	a = p.get(orders + "/metrics").want(200)
	// The output counter fell: its engine started anew, and counted from 0.
	for field, want := range map[string]any{
		"input_per_second": 10.0, "output_per_second": 2.0, "errors_per_second": 0.0, "input_messages": 300.0, "lag_messages": 4.0,
		"reported_at": "2026-05-01T12:00:00Z", "node_id": "node-a",
	} {
		if got := a.field(field); got != want {
			t.Errorf("%s: %v, want %v", field, got, want)
		}
	}
	m.BeforeAt = time.Time{}
	p.live.metrics["node-a/orders"] = m
	if a := p.get(orders + "/metrics"); a.field("input_per_second") != 0.0 {
		t.Errorf("%s", a.body)
	}
}
