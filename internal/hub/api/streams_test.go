package api_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

const orders = "/nodes/node-a/streams/orders"

func TestTheCanonicalMutation(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	for range 3 {
		p.run("node-a", "orders", cfg)
	}
	a := p.put(orders+"/desired-state", object{"state": "running", "config_version": cfg},
		"If-Match", `"generation-3"`, "Idempotency-Key", "orders-desired-4", "X-Correlation-ID", "request-123").want(202)
	id := a.text("intent_id")
	if !regexp.MustCompile(`^intent-4-\d+$`).MatchString(id) {
		t.Errorf("intent id %q", id)
	}
	want := object{
		"operation_id": id, "intent_id": id, "node_id": "node-a", "stream_id": "orders", "generation": 4.0,
		"desired_state": "running", "config_version": cfg, "convergence": "pending",
	}
	if diff := cmp.Diff(want, a.object()); diff != "" {
		t.Error(diff)
	}
	for name, value := range map[string]string{
		"Location": "/api/v1/operations/" + id, "Etag": `"generation-4"`, "X-Correlation-Id": "request-123", "Idempotency-Replayed": "",
		"Content-Type": "application/json",
	} {
		if got := a.header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	op := p.get(a.header.Get("Location")).want(200)
	if op.text("correlation_id") != "request-123" || op.text("principal") != "edit-user" || op.text("state") != "accepted" || op.text("operation") != "set_state" {
		t.Errorf("operation %s", op.body)
	}
}

func TestAStreamHasThreeViews(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	accepted := p.run("node-a", "orders", cfg)
	views := func() (desired, observed any, convergence string) {
		t.Helper()
		a := p.get(orders).want(200)
		if a.header.Get("ETag") != `"generation-1"` {
			t.Errorf("ETag %q", a.header.Get("ETag"))
		}
		if a.text("node_id") != "node-a" || a.text("stream_id") != "orders" || a.text("intent_id") != accepted.text("intent_id") || a.text("convergence_since") == "" {
			t.Errorf("%s", a.body)
		}
		return a.field("desired"), a.field("observed"), a.text("convergence")
	}
	want := object{
		"state": "running", "generation": 1.0, "config_version": cfg,
		"config_digest": p.get("/api/v1/config-versions/" + cfg).want(200).text("digest"),
	}
	desired, observed, convergence := views()
	if diff := cmp.Diff(any(want), desired); diff != "" || observed != nil || convergence != "pending" {
		t.Errorf("declared: %s observed %v, %s", diff, observed, convergence)
	}
	p.poll("node-a")
	if _, _, convergence := views(); convergence != "applying" {
		t.Errorf("dispatched: %s", convergence)
	}
	p.report("node-a", &agentapi.Report{Streams: []agentapi.StreamReport{{
		StreamID: "orders", State: hub.Running, Generation: 1, ConfigVersion: cfg, ConfigDigest: want["config_digest"].(string),
	}}})
	desired, observed, convergence = views()
	o, _ := observed.(object)
	delete(o, "reported_at")
	if diff := cmp.Diff(any(want), any(o)); diff != "" || convergence != "in_sync" {
		t.Errorf("reported: %s, %s, %v", diff, convergence, desired)
	}
}

func TestIfMatchGuardsTheGeneration(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	body := object{"state": "running", "config_version": cfg}
	path := orders + "/desired-state"
	p.put(path, body, "If-Match", `"generation-1"`).refused(412, "generation_conflict")
	p.put(path, body, "If-Match", `*`).refused(412, "generation_conflict")
	p.put(path, body, "If-Match", `"generation-0"`).want(202)
	p.put(path, body, "If-Match", `"generation-0"`).refused(412, "generation_conflict")
	p.put(path, body, "If-None-Match", `*`).refused(412, "generation_conflict")
	p.put("/nodes/node-a/streams/other/desired-state", body, "If-None-Match", `*`).want(202)
	p.put(path, body, "If-Match", `"generation-1"`).want(202)
	p.put(path, body, "If-Match", `"generation-9", "generation-2"`).want(202)
	p.put(path, body, "If-Match", `"generation-9"`, "If-Match", `"generation-3"`).want(202)
	p.put(path, body, "If-Match", `*`).want(202)
	p.put(path, body).want(202)

	a := p.put(path, body, "If-Match", `"generation-3"`).refused(412, "generation_conflict")
	want := object{"expected_generation": 3.0, "current_generation": 6.0, "resource": object{"node_id": "node-a", "stream_id": "orders"}}
	if diff := cmp.Diff(any(want), a.field("details")); diff != "" {
		t.Error(diff)
	}
	if got := a.text("message"); got != "Expected generation 3, current generation 6" {
		t.Errorf("message %q", got)
	}
	for _, bad := range []string{"generation-6", `"generation-"`, `"generation-06"`, `"generation--1"`, `W/"generation-6"`, `"6"`, "6", `""`, "", `"generation-6",`, `*, "generation-6"`} {
		p.put(path, body, "If-Match", bad).refused(400, "bad_request")
	}
	p.put(path, body, "If-None-Match", `"generation-6"`).refused(400, "bad_request")
	p.put(path, body, "If-Match", `"generation-6"`, "If-None-Match", "*").refused(400, "bad_request")
	if g := p.get(orders).field("desired.generation"); g != 6.0 {
		t.Errorf("generation %v", g)
	}
	// The other mutations of a stream are guarded, too.
	for _, route := range []string{"/actions/restart", "/restart", "/start", "/stop", "/config/rollback"} {
		p.post(orders+route, nil, "If-Match", `"generation-1"`).refused(412, "generation_conflict")
		p.post(orders+route, nil, "If-Match", `1`).refused(400, "bad_request")
	}
	p.post(orders+"/config/apply", object{"config_version": cfg}, "If-Match", `"generation-1"`).refused(412, "generation_conflict")
}

func TestMalformedBodiesAndImpossibleTargets(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.post("/config-versions", object{"engine": "node", "content": "labels: {}"}).want(201)
	path := orders + "/desired-state"
	for body, fields := range map[string][]string{
		``: nil, `{`: nil, `[]`: nil, `null`: nil, `{"state":"running"} {}`: nil,
		`{"state":1}`: {"state"}, `{"stat":"running"}`: {"stat"}, `{"state":"running","state":"stopped"}`: {"state"},
		`{"state":"running","config_version":7,"x":1}`: {"config_version", "x"},
	} {
		p.put(path, body).refused(400, "bad_request", fields...)
	}
	for body, fields := range map[string][]string{
		`{}`: {"state"}, `{"state":"failed"}`: {"state"}, `{"state":"RUNNING"}`: {"state"},
		`{"state":"running"}`:                            {"config_version"},
		`{"state":"running","config_version":"cfg-99"}`:  {"config_version"},
		`{"state":"running","config_version":"cfg-2"}`:   {"config_version"}, // of engine node
		`{"state":"stopped","config_version":"nothing"}`: {"config_version"},
	} {
		p.put(path, body).refused(422, "validation_failed", fields...)
	}
	good := object{"state": "running", "config_version": cfg}
	for _, id := range []string{".orders", "__orders", "__configuration__", "or%20ders", "orders%C3%A9", strings.Repeat("x", 129)} {
		p.put("/nodes/node-a/streams/"+id+"/desired-state", good).refused(422, "validation_failed", "stream_id")
	}
	p.put("/nodes/node-a/streams/a%2Fb/desired-state", good).refused(404, "not_found")
	p.put("/nodes/node-a/streams/"+strings.Repeat("x", 128)+"/desired-state", good).want(202)
	p.put("/nodes/node-b/streams/orders/desired-state", good).refused(404, "not_found")
	p.get(orders).refused(404, "not_found")
}

func TestAnOfflineNodeRefusesNoWrite(t *testing.T) {
	p := newPlane(t)
	p.post("/nodes", object{"node_id": "node-a"}).want(201)
	cfg := p.config("command: one")
	if a := p.run("node-a", "orders", cfg); a.text("convergence") != "unknown" {
		t.Errorf("%s", a.body)
	}
	p.put(orders+"/desired-state", object{"state": "stopped"}).want(202)
	a := p.get(orders).want(200)
	if a.field("desired.generation") != 2.0 || a.text("desired.config_version") != cfg || a.text("desired.state") != "stopped" {
		t.Errorf("%s", a.body)
	}
}

func TestRestartConvergesByItsAction(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.post(orders+"/actions/restart", nil).refused(404, "not_found")
	p.run("node-a", "orders", cfg)
	p.obey("node-a")

	made := p.post(orders+"/actions/restart", nil).want(202)
	if made.text("action_id") == "" || made.field("generation") != 2.0 || made.header.Get("ETag") != `"generation-2"` || made.text("desired_state") != "running" {
		t.Errorf("%s", made.body)
	}
	named := p.post(orders+"/actions/restart", object{"action_id": "nightly-1"}).want(202)
	if named.text("action_id") != "nightly-1" {
		t.Errorf("%s", named.body)
	}
	// Running at the new generation proves nothing.
	p.report("node-a", &agentapi.Report{Streams: []agentapi.StreamReport{{StreamID: "orders", State: hub.Running, Generation: 3, ConfigVersion: cfg}}})
	if op := p.get(named.header.Get("Location")); op.text("state") == "converged" || op.text("action_id") != "nightly-1" || op.text("operation") != "restart" {
		t.Errorf("%s", op.body)
	}
	p.report("node-a", &agentapi.Report{Streams: []agentapi.StreamReport{{StreamID: "orders", State: hub.Running, Generation: 3, ConfigVersion: cfg, CompletedActions: []string{"nightly-1"}}}})
	if op := p.get(named.header.Get("Location")); op.text("state") != "converged" || op.text("convergence") != "in_sync" {
		t.Errorf("%s", op.body)
	}
	p.post(orders+"/actions/restart", object{"action_id": "nightly-1"}).refused(422, "validation_failed", "action_id")
	p.post(orders+"/actions/restart", object{"action_id": ".."}).refused(422, "validation_failed", "action_id")
	p.post(orders+"/actions/restart", object{"id": "x"}).refused(400, "bad_request", "id")
	p.put(orders+"/desired-state", object{"state": "stopped"}).want(202)
	p.post(orders+"/actions/restart", nil).refused(409, "stream_not_running")
	p.post(orders+"/restart", nil).refused(409, "stream_not_running")
}

func TestLegacyRoutesMakeTheSameIntents(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	one, two := p.config("command: one"), p.config("command: two")
	for _, route := range []string{"/start", "/stop", "/restart", "/config/rollback"} {
		p.post(orders+route, nil).refused(404, "not_found")
		p.post("/nodes/none/streams/orders"+route, nil).refused(404, "not_found")
	}
	check := func(a *answer, generation int, verb, state, config string) {
		t.Helper()
		a.want(202)
		if a.field("generation") != float64(generation) || a.header.Get("ETag") != fmt.Sprintf(`"generation-%d"`, generation) ||
			a.text("desired_state") != state || a.text("config_version") != config || a.header.Get("Location") != "/api/v1/operations/"+a.text("intent_id") {
			t.Errorf("%s: %s %v", a.what, a.body, a.header)
		}
		if op := p.get(a.header.Get("Location")); op.text("operation") != verb {
			t.Errorf("%s made %s", a.what, op.body)
		}
	}
	check(p.post(orders+"/config/apply", object{"config_version": one}), 1, "config_apply", "running", one)
	p.obey("node-a")
	check(p.post(orders+"/stop", nil), 2, "set_state", "stopped", one)
	check(p.post(orders+"/start", object{}), 3, "set_state", "running", one)
	p.obey("node-a")
	p.post(orders+"/config/rollback", nil).refused(409, "conflict")
	check(p.post(orders+"/config/apply", object{"config_version": two}), 4, "config_apply", "running", two)
	check(p.post(orders+"/config/rollback", object{}), 5, "config_rollback", "running", one)
	p.obey("node-a")
	check(p.post(orders+"/restart", nil), 6, "restart", "running", one)
	p.post(orders+"/config/apply", object{}).refused(422, "validation_failed", "config_version")
	p.post(orders+"/config/apply", object{"config_version": "cfg-77"}).refused(422, "validation_failed", "config_version")
	p.post(orders+"/config/apply", nil).refused(400, "bad_request")
	p.post(orders+"/start", object{"now": true}).refused(400, "bad_request", "now")
	p.post("/nodes/node-a/streams/__x/start", nil).refused(422, "validation_failed", "stream_id")
}

func TestTheNodesOwnConfigurationIsAResource(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	own := p.post("/config-versions", object{"engine": "node", "content": "log: debug"}).want(201).text("config_version")
	other := p.config("command: one")
	p.post("/nodes/node-a/config/rollback", nil).refused(404, "not_found")
	a := p.post("/nodes/node-a/config/apply", object{"config_version": own}).want(202)
	op := p.get(a.header.Get("Location")).want(200)
	if op.text("resource_id") != "__configuration__" || op.field("stream_id") != nil || op.text("operation") != "config_apply" {
		t.Errorf("%s", op.body)
	}
	p.post("/nodes/node-a/config/apply", object{"config_version": other}).refused(422, "validation_failed", "config_version")
	p.post("/nodes/none/config/apply", object{"config_version": own}).refused(404, "not_found")
	p.post("/nodes/node-a/config/rollback", nil).refused(409, "conflict")
	if got := p.get("/nodes/node-a/streams/__configuration__").want(200).text("desired.config_version"); got != own {
		t.Errorf("config version %q", got)
	}
}

func TestStreamsAreListedByPages(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	p.node("node-ab")
	cfg := p.config("command: one")
	for i := range 7 {
		p.run("node-a", fmt.Sprintf("s%d", i), cfg)
	}
	p.run("node-ab", "other", cfg)
	a := p.get("/nodes/node-a/streams").want(200)
	var page map[string]json.RawMessage
	if err := json.Unmarshal(a.body, &page); err != nil || len(page) != 4 {
		t.Errorf("%s", a.body)
	}
	if a.field("page") != 1.0 || a.field("page_size") != 50.0 || a.field("total") != 7.0 || len(a.column("stream_id")) != 7 {
		t.Errorf("%s", a.body)
	}
	a = p.get("/nodes/node-a/streams?page=3&page_size=3").want(200)
	if diff := cmp.Diff([]string{"s6"}, a.column("stream_id")); diff != "" || a.field("page") != 3.0 || a.field("page_size") != 3.0 || a.field("total") != 7.0 {
		t.Errorf("%s %s", diff, a.body)
	}
	if a := p.get("/nodes/node-a/streams?page_size=1000").want(200); a.field("page_size") != 100.0 {
		t.Errorf("%s", a.body)
	}
	if a := p.get("/nodes/node-a/streams?page=900").want(200); string(mustField(t, a, "items")) != "[]" || a.field("total") != 7.0 {
		t.Errorf("%s", a.body)
	}
	p.obey("node-a")
	p.run("node-a", "s3", cfg)
	if diff := cmp.Diff([]string{"s3"}, p.get("/nodes/node-a/streams?convergence=pending").column("stream_id")); diff != "" {
		t.Error(diff)
	}
	if n := len(p.get("/nodes/node-a/streams?convergence=in_sync").column("stream_id")); n != 6 {
		t.Errorf("%d are in sync", n)
	}
	p.get("/nodes/node-a/streams?convergence=some").refused(422, "validation_failed", "convergence")
	for _, q := range []string{"page=0", "page=-1", "page=x", "page_size=0", "page_size=x", "page_size=-5", "page=99999999999999999999"} {
		p.get("/nodes/node-a/streams?"+q).refused(400, "bad_request", strings.SplitN(q, "=", 2)[0])
	}
	p.get("/nodes/none/streams").refused(404, "not_found")
}

func TestTheStreamsOfAllNodes(t *testing.T) {
	p := newPlane(t)
	cfg := p.config("command: one")
	for _, node := range []string{"node-a", "node-b"} {
		p.node(node)
		p.run(node, "orders", cfg)
	}
	p.run("node-b", "bills", cfg)
	p.obey("node-a")
	all := p.get("/streams").want(200)
	if diff := cmp.Diff([]string{"node-a", "node-b", "node-b"}, all.column("node_id")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"orders", "bills", "orders"}, all.column("stream_id")); diff != "" {
		t.Error(diff)
	}
	if all.field("page") != 1.0 || all.field("page_size") != 50.0 || all.field("total") != 3.0 {
		t.Errorf("%s", all.body)
	}
	// What filters select, the node's own list has in the same words.
	for query, same := range map[string]string{
		"node_id=node-b": "/nodes/node-b/streams", "node_id=node-b&page=2&page_size=1": "/nodes/node-b/streams?page=2&page_size=1",
		"convergence=in_sync": "/nodes/node-a/streams", "node_id=node-b&convergence=pending": "/nodes/node-b/streams?convergence=pending",
		"node_id=node-a&convergence=pending": "/nodes/node-a/streams?convergence=pending",
	} {
		if diff := cmp.Diff(p.get(same).want(200).object(), p.get("/streams?"+query).want(200).object()); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
	if a := p.get("/streams?node_id=node").want(200); string(mustField(t, a, "items")) != "[]" || a.field("total") != 0.0 {
		t.Errorf("%s", a.body)
	}
	p.get("/streams?convergence=some").refused(422, "validation_failed", "convergence")
	p.get("/streams?page_size=0").refused(400, "bad_request", "page_size")
	p.send("", "GET", "/streams", nil).refused(401, "unauthorized")
}

func mustField(t *testing.T, a *answer, name string) json.RawMessage {
	t.Helper()
	var o map[string]json.RawMessage
	if err := json.Unmarshal(a.body, &o); err != nil {
		t.Fatal(err)
	}
	return o[name]
}
