package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

func TestOperationsAreListedNewestFirstByEveryFilter(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	p.node("node-b")
	cfg := p.config("command: one")
	declare := func(node, stream string, header ...string) string {
		t.Helper()
		return p.put("/nodes/"+node+"/streams/"+stream+"/desired-state", object{"state": "running", "config_version": cfg}, header...).want(202).text("intent_id")
	}
	a1 := declare("node-a", "orders", "X-Correlation-ID", "c.1")
	a2 := declare("node-a", "orders", "X-Correlation-ID", "c.1")
	b1 := declare("node-b", "orders")
	a3 := declare("node-a", "invoices")
	p.obey("node-a")
	r := p.post(orders+"/actions/restart", nil).want(202).text("intent_id")
	list := func(query string) []string {
		t.Helper()
		return p.get("/operations?" + query).want(200).column("intent_id")
	}
	for query, want := range map[string][]string{
		"":                                      {r, a3, b1, a2, a1},
		"node_id=node-a":                        {r, a3, a2, a1},
		"resource_id=orders":                    {r, b1, a2, a1},
		"resource_id=orders&node_id=node-b":     {b1},
		"operation=restart":                     {r},
		"operation=set_state":                   {a3, b1, a2, a1},
		"state=superseded":                      {a1},
		"state=accepted":                        {r, b1},
		"state=converged":                       {a3, a2},
		"correlation_id=c.1":                    {a2, a1},
		"correlation_id=c.1&state=superseded":   {a1},
		"node_id=none":                          {},
		"page=2&page_size=2":                    {b1, a2},
		"page=2&page_size=2&resource_id=orders": {a2, a1},
	} {
		if diff := cmp.Diff(want, list(query)); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
	a := p.get("/operations?page_size=2&node_id=node-a")
	if a.field("total") != 4.0 || a.field("page") != 1.0 || a.field("page_size") != 2.0 {
		t.Errorf("%s", a.body)
	}
	p.get("/operations?state=done").refused(422, "validation_failed", "state")
	p.get("/operations?operation=delete").refused(422, "validation_failed", "operation")
	p.get("/operations/intent-9-9").refused(404, "not_found")
	p.delete("/operations/intent-9-9").refused(404, "not_found")
}

func TestAnOperationShowsItsAttempt(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	id := p.run("node-a", "orders", cfg).text("intent_id")
	get := func() *answer { t.Helper(); return p.get("/operations/" + id).want(200) }
	a := get()
	var keys []string
	for key := range a.object() {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	want := []string{
		"attempt", "attempts", "config_version", "convergence", "correlation_id", "created_at", "desired_state", "failure", "finished_at",
		"generation", "intent_id", "node_id", "observed", "operation", "operation_id", "principal", "resource_id", "retry", "state", "stream_id", "updated_at",
	}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Error(diff)
	}
	if a.field("attempt") != nil || a.field("attempts") != 0.0 || a.field("retry.budget") != float64(hub.RetryBudget) || a.field("retry.count") != 0.0 {
		t.Errorf("%s", a.body)
	}
	commands := p.poll("node-a")
	if a = get(); a.text("attempt_id") != commands[0].AttemptID || a.text("attempt.state") != "dispatched" || a.text("attempt.dispatched_at") == "" || a.text("convergence") != "applying" {
		t.Errorf("%s", a.body)
	}
	p.report("node-a", &agentapi.Report{Attempts: []agentapi.AttemptReport{{AttemptID: commands[0].AttemptID, State: hub.Acknowledged}}})
	if a = get(); a.text("attempt.state") != "acknowledged" || a.text("attempt.acknowledged_at") == "" {
		t.Errorf("%s", a.body)
	}
	p.report("node-a", &agentapi.Report{Attempts: []agentapi.AttemptReport{{AttemptID: commands[0].AttemptID, State: hub.AttemptFail,
		Failure: &hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config", Message: "no such input"}}}})
	a = get()
	failure := object{"class": "config_rejected", "code": "invalid_config", "message": "no such input"}
	if diff := cmp.Diff(any(failure), a.field("failure")); diff != "" || a.text("state") != "blocked" || a.text("convergence") != "blocked" || a.text("attempt.state") != "failed" {
		t.Errorf("%s %s", diff, a.body)
	}
	if diff := cmp.Diff(any(failure), a.field("attempt.result")); diff != "" {
		t.Error(diff)
	}
}

func TestCancellationBeforeDispatchSuppressesTheWork(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	id := p.run("node-a", "orders", cfg).text("intent_id")
	a := p.delete("/operations/"+id, "X-Correlation-ID", "stop-it").want(200)
	if a.text("state") != "cancelled" || a.text("convergence") != "blocked" || a.text("intent_id") != id {
		t.Errorf("%s", a.body)
	}
	if commands := p.poll("node-a"); len(commands) != 0 {
		t.Errorf("sent all the same: %v", commands)
	}
	s := p.get(orders)
	if s.text("convergence") != "blocked" || s.text("convergence_reason") != "cancelled" || s.text("desired.state") != "running" {
		t.Errorf("%s", s.body)
	}
	again := p.delete("/operations/"+id).refused(409, "operation_terminal")
	if again.text("details.state") != "cancelled" {
		t.Errorf("%s", again.body)
	}
	// The next write goes on.
	p.run("node-a", "orders", cfg)
	p.obey("node-a")
	if s := p.get(orders); s.text("convergence") != "in_sync" || s.field("desired.generation") != 2.0 {
		t.Errorf("%s", s.body)
	}
}

func TestCancellationAfterDispatchShowsTheOutcome(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	id := p.run("node-a", "orders", cfg).text("intent_id")
	commands := p.poll("node-a")
	a := p.delete("/operations/" + id).want(200)
	if a.text("state") != "cancelled" || a.text("attempt.state") != "dispatched" || a.text("attempt_id") != commands[0].AttemptID {
		t.Errorf("%s", a.body)
	}
	p.report("node-a", &agentapi.Report{
		Streams:  []agentapi.StreamReport{{StreamID: "orders", State: hub.Running, Generation: 1, ConfigVersion: cfg}},
		Attempts: []agentapi.AttemptReport{{AttemptID: commands[0].AttemptID, State: hub.Succeeded}},
	})
	a = p.get("/operations/" + id).want(200)
	if a.text("attempt.state") != "succeeded" || a.text("state") != "cancelled" {
		t.Errorf("the outcome: %s", a.body)
	}
	// Nothing claims that it was undone: the stream shows what it is.
	if s := p.get(orders); s.text("observed.state") != "running" || s.text("convergence") != "in_sync" {
		t.Errorf("%s", s.body)
	}
}

func TestEndedOperationsCannotBeCancelled(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	first := p.run("node-a", "orders", cfg).text("intent_id")
	second := p.run("node-a", "orders", cfg).text("intent_id")
	p.obey("node-a")
	for id, state := range map[string]string{first: "superseded", second: "converged"} {
		a := p.delete("/operations/"+id).refused(409, "operation_terminal")
		if a.text("details.state") != state || a.text("details.intent_id") != id {
			t.Errorf("%s", a.body)
		}
	}
}

func TestOperationsOutliveTheirNode(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	id := p.run("node-a", "orders", p.config("command: one")).text("intent_id")
	p.send("admin", "DELETE", "/nodes/node-a?force=true", nil).want(202)
	a := p.get("/operations/" + id).want(200)
	if state := a.text("state"); state == "accepted" || a.text("node_id") != "node-a" {
		t.Errorf("%s", a.body)
	}
	if n := len(p.get("/operations?node_id=node-a").column("intent_id")); n != 1 {
		t.Errorf("%d operations", n)
	}
}

func TestOperationsAreInAStableOrder(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	var want []string
	for i := range 25 {
		want = append(want, p.run("node-a", fmt.Sprintf("s%d", i%3), cfg).text("intent_id"))
	}
	slices.Reverse(want)
	var got []string
	for page := 1; page <= 5; page++ {
		a := p.get(fmt.Sprintf("/operations?page_size=6&page=%d", page))
		var items struct {
			Items []struct {
				ID string `json:"operation_id"`
			}
		}
		if err := json.Unmarshal(a.body, &items); err != nil {
			t.Fatal(err)
		}
		for _, i := range items.Items {
			got = append(got, i.ID)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
