package api_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func TestANodeIsRegisteredWithATokenThatIsShownOnce(t *testing.T) {
	p := newPlane(t)
	a := p.post("/nodes", object{"node_id": "node-a", "labels": object{"site": "north"}, "enrolment_ttl_seconds": 60}).want(201)
	if a.header.Get("Location") != "/api/v1/nodes/node-a" || a.text("enrolment_token") == "" || a.text("token_expires_at") != "2026-05-01T12:01:00Z" {
		t.Errorf("%s %v", a.body, a.header)
	}
	n := p.get("/nodes/node-a").want(200)
	want := object{"node_id": "node-a", "state": "pending", "labels": object{"site": "north"}, "capabilities": []any{}, "conditions": []any{}, "streams": object{}, "deleting": false}
	got := n.object()
	for _, k := range []string{"since", "created_at"} {
		if got[k] == nil {
			t.Errorf("no %s", k)
		}
		delete(got, k)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p.post("/nodes", object{"node_id": "node-a"}).refused(409, "conflict")
	again := p.post("/nodes/node-a/enrolment", object{"enrolment_ttl_seconds": 5}).want(201)
	if again.text("enrolment_token") == a.text("enrolment_token") || again.text("token_expires_at") != "2026-05-01T12:00:05Z" {
		t.Errorf("%s", again.body)
	}
	if b := p.post("/nodes/node-a/enrolment", nil).want(201); b.text("token_expires_at") != "2026-05-01T12:15:00Z" {
		t.Errorf("%s", b.body)
	}
	p.post("/nodes/none/enrolment", nil).refused(404, "not_found")
	p.get("/nodes/none").refused(404, "not_found")
	p.delete("/nodes/none").refused(404, "not_found")
	for body, fields := range map[string][]string{
		`{}`: {"node_id"}, `{"node_id":"a/b"}`: {"node_id"}, `{"node_id":".a"}`: {"node_id"}, `{"node_id":"__a"}`: {"node_id"},
		`{"node_id":"x","enrolment_ttl_seconds":-1}`:     {"enrolment_ttl_seconds"},
		`{"node_id":"x","enrolment_ttl_seconds":604801}`: {"enrolment_ttl_seconds"},
		`{"node_id":"x","labels":{"a b":"c"}}`:           {"labels[a b]"},
	} {
		p.post("/nodes", body).refused(422, "validation_failed", fields...)
	}
	p.post("/nodes", `{"id":"x"}`).refused(400, "bad_request", "id")
	p.post("/nodes/node-a/enrolment", object{"enrolment_ttl_seconds": 604801}).refused(422, "validation_failed", "enrolment_ttl_seconds")
}

func TestNodesTellWhatIsKnownOfThem(t *testing.T) {
	p := newPlane(t)
	p.node("node-b")
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "one", cfg)
	p.run("node-a", "two", cfg)
	p.obey("node-a")
	p.run("node-a", "two", cfg)
	p.live.reported["node-a"] = time.Date(2026, 5, 1, 12, 3, 4, 0, time.FixedZone("x", 3600))
	a := p.get("/nodes").want(200)
	if diff := cmp.Diff([]string{"node-a", "node-b"}, a.column("node_id")); diff != "" || a.field("total") != 2.0 || a.field("page") != 1.0 || a.field("page_size") != 50.0 {
		t.Errorf("%s %s", diff, a.body)
	}
	n := a.field("items").([]any)[0].(object)
	if diff := cmp.Diff(object{"in_sync": 1.0, "pending": 1.0}, n["streams"]); diff != "" {
		t.Error(diff)
	}
	if n["state"] != "online" || n["agent_version"] != "1.0" || n["last_report_at"] != "2026-05-01T11:03:04Z" || dig(n, "labels.arch") != "amd64" {
		t.Errorf("%v", n)
	}
	if diff := cmp.Diff([]string{"node-b"}, p.get("/nodes?page=2&page_size=1").column("node_id")); diff != "" {
		t.Error(diff)
	}
}

func TestDeletingANodeStopsItsStreamsFirst(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "orders", cfg)
	p.obey("node-a")
	a := p.delete("/nodes/node-a").want(202)
	if diff := cmp.Diff(object{"node_id": "node-a", "deleted": false}, a.object()); diff != "" {
		t.Error(diff)
	}
	if n := p.get("/nodes/node-a").want(200); n.field("deleting") != true {
		t.Errorf("%s", n.body)
	}
	if s := p.get(orders); s.text("desired.state") != "absent" {
		t.Errorf("%s", s.body)
	}
	p.put(orders+"/desired-state", object{"state": "running", "config_version": cfg}).refused(409, "node_deleting")
	p.post(orders+"/actions/restart", nil).refused(409, "node_deleting")
	p.post(orders+"/start", nil).refused(409, "node_deleting")
	p.post("/nodes/node-a/enrolment", nil).refused(409, "node_deleting")
	p.delete("/nodes/node-a").want(202)
	p.obey("node-a")
	p.update(func(tx store.Tx) error { _, err := p.ledger.FinishNode(tx, "node-a"); return err })
	p.get("/nodes/node-a").refused(404, "not_found")
	p.get(orders).refused(404, "not_found")
}

func TestANodesStreamsAreCountedWithoutThoseThatWereRemoved(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "orders", cfg)
	p.run("node-a", "bills", cfg)
	own := p.post("/config-versions", object{"engine": "node", "content": "labels: {}"}).want(201).text("config_version")
	p.post("/nodes/node-a/config/apply", object{"config_version": own}).want(202)
	counts := func(want object) {
		t.Helper()
		if diff := cmp.Diff(any(want), p.get("/nodes/node-a").want(200).field("streams")); diff != "" {
			t.Error(diff)
		}
	}
	counts(object{"pending": 2.0})
	p.obey("node-a")
	counts(object{"in_sync": 2.0})
	p.put(orders+"/desired-state", object{"state": "absent"}).want(202)
	counts(object{"in_sync": 1.0, "pending": 1.0}) // it is not gone yet
	p.obey("node-a")
	counts(object{"in_sync": 1.0})
	p.run("node-a", "orders", cfg)
	p.obey("node-a")
	counts(object{"in_sync": 2.0})
}

func TestANodeWithNothingToStopGoesAtOnce(t *testing.T) {
	p := newPlane(t)
	p.post("/nodes", object{"node_id": "new"}).want(201)
	p.run("new", "orders", p.config("command: one"))
	p.node("idle")
	for _, node := range []string{"new", "idle"} {
		if a := p.delete("/nodes/" + node).want(202); a.field("deleted") != true {
			t.Errorf("%s", a.body)
		}
		p.get("/nodes/"+node).refused(404, "not_found")
	}
}

func TestForceIsForAdmins(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	p.run("node-a", "orders", p.config("command: one"))
	p.obey("node-a")
	p.delete("/nodes/node-a?force=true").refused(403, "forbidden")
	p.get("/nodes/node-a").want(200)
	p.delete("/nodes/node-a?force=perhaps").refused(400, "bad_request", "force")
	if a := p.send("admin", "DELETE", "/nodes/node-a?force=true", nil).want(202); a.field("deleted") != true {
		t.Errorf("%s", a.body)
	}
	p.get("/nodes/node-a").refused(404, "not_found")
}

func TestAStreamThatNobodyDeclaredIsShown(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	p.report("node-a", &agentapi.Report{Full: true, Streams: []agentapi.StreamReport{{StreamID: "stray", State: hub.Running, Generation: 7, ConfigVersion: "cfg-9"}}})
	a := p.get("/nodes/node-a/streams/stray").want(200)
	if a.field("desired") != nil || a.text("convergence") != "unknown" || a.text("convergence_reason") != "no_desired_state" || a.header.Get("ETag") != `"generation-0"` {
		t.Errorf("%s %v", a.body, a.header)
	}
	p.post("/nodes/node-a/streams/stray/stop", nil).refused(404, "not_found")
	b := p.put("/nodes/node-a/streams/stray/desired-state", object{"state": "absent"}, "If-Match", `"generation-0"`).want(202)
	if b.field("generation") != 8.0 {
		t.Errorf("%s", b.body)
	}
}
