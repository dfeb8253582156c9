package api_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// audited renders the audit trail, oldest first, when it has n entries of the filter.
func (p *plane) audited(query string, n int) []string {
	p.t.Helper()
	var lines []string
	p.eventually(fmt.Sprintf("%d audit entries of %s", n, query), func() bool {
		a := p.send("admin", "GET", "/audit?page_size=100&"+query, nil).want(200)
		lines = nil
		items, _ := a.field("items").([]any)
		for _, item := range items {
			o := item.(object)
			if o["address"] != "127.0.0.1" || o["time"] == "" || o["correlation_id"] == "" {
				p.t.Fatalf("%v", o)
			}
			code, _ := o["code"].(string)
			lines = append(lines, fmt.Sprint(o["principal"], " ", o["action"], " ", o["resource"], " ", o["outcome"], " ", code))
		}
		slices.Reverse(lines)
		return len(lines) >= n
	})
	return lines
}

func TestEveryMutationIsAudited(t *testing.T) {
	p := newPlane(t)
	cfg := p.post("/config-versions", object{"engine": "process", "content": "x"}).want(201).text("config_version")
	p.post("/nodes", object{"node_id": "node-a"}).want(201)
	id := p.run("node-a", "orders", cfg).text("intent_id")
	p.put(orders+"/desired-state", object{"state": "running"}, "If-Match", `"generation-1"`, "Idempotency-Key", "k", "X-Correlation-ID", "c-1").want(202)
	p.put(orders+"/desired-state", object{"state": "running"}, "If-Match", `"generation-1"`, "Idempotency-Key", "k").want(202) // a retry is no mutation
	p.post(orders+"/actions/restart", nil).want(202)
	p.delete("/operations/"+id).refused(409, "operation_terminal")
	p.delete("/nodes/node-a").want(202)
	accepted := []string{
		"edit-user publish-config-version config-version/cfg-1 accepted ",
		"edit-user register-node node/node-a accepted ",
		"edit-user set-desired-state stream/node-a/orders accepted ",
		"edit-user set-desired-state stream/node-a/orders accepted ",
		"edit-user restart-stream stream/node-a/orders accepted ",
		"edit-user delete-node node/node-a accepted ",
	}
	if diff := cmp.Diff(accepted, p.audited("outcome=accepted", len(accepted))); diff != "" {
		t.Error(diff)
	}
	a := p.send("admin", "GET", "/audit?correlation_id=c-1", nil).want(200)
	if a.field("total") != 1.0 {
		t.Fatalf("%s", a.body)
	}
	detail := dig(a.field("items").([]any)[0], "detail").(object)
	if detail["generation"] != 2.0 || detail["unconditional"] != nil || detail["state"] != "running" {
		t.Errorf("detail %v", detail)
	}
	first := p.send("admin", "GET", "/audit?action=set-desired-state&page=2&page_size=1", nil).want(200)
	if d := dig(first.field("items").([]any)[0], "detail").(object); d["unconditional"] != true || d["intent_id"] != id {
		t.Errorf("a write without a precondition: %v", d)
	}
}

func TestEveryRefusedMutationIsAudited(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	path := orders + "/desired-state"
	p.send("", "PUT", path, object{"state": "running"}).refused(401, "unauthorized")
	p.send("view", "PUT", path, object{"state": "running"}).refused(403, "forbidden")
	p.put(path, "{").refused(400, "bad_request")
	p.put(path, object{"state": "x"}).refused(422, "validation_failed")
	p.put(path, object{"state": "stopped"}, "If-Match", `"generation-4"`).refused(412, "generation_conflict")
	p.delete("/operations/intent-1-1").refused(404, "not_found")
	p.post("/nodes", object{"node_id": "node-a"}).refused(409, "conflict")
	p.post("/config-versions", object{"engine": "process", "content": "bad"}).refused(422, "validation_failed")
	p.delete("/nodes/node-a?force=true").refused(403, "forbidden")
	p.post("/config-versions/validate", object{}).refused(422, "validation_failed") // changes nothing
	p.get("/nodes/none").refused(404, "not_found")                                  // neither does this
	p.post(orders+"/start", nil).refused(404, "not_found")
	p.post("/nodes/node-a/config/rollback", nil).refused(404, "not_found")
	want := []string{
		" set-desired-state stream/node-a/orders rejected unauthorized",
		"view-user set-desired-state stream/node-a/orders rejected forbidden",
		"edit-user set-desired-state stream/node-a/orders rejected bad_request",
		"edit-user set-desired-state stream/node-a/orders rejected validation_failed",
		"edit-user set-desired-state stream/node-a/orders rejected generation_conflict",
		"edit-user cancel-operation operation/intent-1-1 rejected not_found",
		"edit-user register-node node rejected conflict",
		"edit-user publish-config-version config-version rejected validation_failed",
		"edit-user delete-node node/node-a rejected forbidden",
		"edit-user start-stream stream/node-a/orders rejected not_found",
		"edit-user roll-back-node-config stream/node-a/__configuration__ rejected not_found",
	}
	if diff := cmp.Diff(want, p.audited("outcome=rejected", len(want))); diff != "" {
		t.Error(diff)
	}
}

func TestTheAuditIsForAdmins(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	for role, status := range map[string]int{"view": 403, "edit": 403, "admin": 200} {
		if a := p.send(roleOf(role), "GET", "/audit", nil); a.status != status {
			t.Errorf("%s: %d", role, a.status)
		}
	}
	if a := p.send("", "GET", "/audit", nil); a.status != 401 {
		t.Errorf("%d", a.status)
	}
	for _, query := range []string{"outcome=x", "since=yesterday", "until=x", "page=0", "page_size=0"} {
		if a := p.send("admin", "GET", "/audit?"+query, nil); a.status != 400 {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	for query, n := range map[string]float64{
		"principal=edit-user": 1, "principal=other": 0, "resource=node": 1, "resource=node/node-a": 1, "resource=node/node": 0, "action=register-node": 1,
		"since=2026-05-01T12:00:00Z": 1, "since=2026-05-01T12:00:01Z": 0, "until=2026-05-01T12:00:00Z": 0, "page_size=1000": 1,
	} {
		if got := p.send("admin", "GET", "/audit?"+query, nil).want(200).field("total"); got != n {
			t.Errorf("%s: %v entries", query, got)
		}
	}
}
