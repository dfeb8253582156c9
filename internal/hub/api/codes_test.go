package api_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/internal/hub/api"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/store"
)

// operations lists what the document says is served below the Hub's paths: method, path, access.
func (p *plane) operations() (out [][3]string) {
	for path, item := range p.rest.OpenAPI().Paths {
		for method, op := range map[string]*huma.Operation{"GET": item.Get, "PUT": item.Put, "POST": item.Post, "PATCH": item.Patch, "DELETE": item.Delete} {
			if op != nil && path != "/api/v1/audit" {
				access, _ := op.Extensions["x-access"].(string)
				out = append(out, [3]string{method, path, access})
			}
		}
	}
	return out
}

func TestViewReadsAndEditWrites(t *testing.T) {
	p := newPlane(t)
	rank := map[string]int{"view": 1, "edit": 2, "admin": 3}
	all := p.operations()
	if len(all) != 27 {
		t.Errorf("%d operations", len(all))
	}
	for _, op := range all {
		method, path, access := op[0], op[1], op[2]
		if reads := method == "GET" || strings.HasSuffix(path, "/validate"); (access == "view") != reads || access == "admin" {
			t.Errorf("%s %s needs %s", method, path, access)
		}
		path = strings.NewReplacer("{node_id}", "none", "{stream_id}", "none", "{intent_id}", "none", "{config_version}", "none").Replace(path)
		p.send("", method, path, nil).refused(401, "unauthorized")
		p.send("", method, path, nil, "Authorization", "Bearer nonsense").refused(401, "unauthorized")
		for role := range rank {
			a := p.send(identity.Role(role), method, path, nil)
			if rank[role] < rank[access] {
				a.refused(403, "forbidden")
			} else if a.status == 401 || a.status == 403 {
				t.Errorf("%s %s as %s: %d", method, path, role, a.status)
			}
		}
	}
}

func TestUnknownPathsAndMethodsHaveTheHubsEnvelope(t *testing.T) {
	p := newPlane(t)
	for _, path := range []string{
		"/nodes/a/b", "/nodes/a/streams/b/c", "/nodes/", "/streams/", "/streams/x", "/operations/a/b", "/config-versions/a/b", "/nodes//x", "/nodes/a/../b",
	} {
		p.get(path).refused(404, "not_found")
	}
	a := p.send("edit", "PATCH", "/nodes/a", nil).refused(405, "method_not_allowed")
	if got := a.header.Get("Allow"); got != "DELETE, GET, HEAD, OPTIONS" {
		t.Errorf("Allow %q", got)
	}
	p.send("edit", "DELETE", "/streams/events", nil).refused(405, "method_not_allowed")
}

func TestTheCorrelationIdIsEchoedOrReplaced(t *testing.T) {
	p := newPlane(t)
	for _, id := range []string{"request-123", "A.b_c-9", strings.Repeat("x", 128)} {
		if got := p.send("view", "GET", "/nodes", nil, "X-Correlation-ID", id).want(200).header.Get("X-Correlation-ID"); got != id {
			t.Errorf("%q was replaced by %q", id, got)
		}
		if a := p.send("view", "GET", "/nodes/none", nil, "X-Correlation-ID", id).refused(404, "not_found"); a.text("correlation_id") != id {
			t.Errorf("%s", a.body)
		}
	}
	seen := map[string]bool{}
	for _, id := range []string{"", "a b", `a"b`, "a/b", "é", "<script>", strings.Repeat("x", 129)} {
		a := p.send("view", "GET", "/nodes/none", nil, "X-Correlation-ID", id).refused(404, "not_found")
		got := a.text("correlation_id")
		if got == id || len(got) != 32 || seen[got] {
			t.Errorf("%q was replaced by %q", id, got)
		}
		seen[got] = true
	}
}

func TestAFullOrClosedStoreIsToldAndNothingIsHalfWritten(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "orders", cfg)
	for _, cause := range []error{store.ErrFull, store.ErrClosed} {
		p.store.update.Store(&cause)
		key := []string{"Idempotency-Key", "k-" + cause.Error()}
		p.put(orders+"/desired-state", object{"state": "stopped"}, key...).refused(503, "repository_unavailable")
		p.post("/nodes", object{"node_id": "node-b"}).refused(503, "repository_unavailable")
		p.post("/config-versions", object{"engine": "process", "content": "x"}).refused(503, "repository_unavailable")
		p.delete("/nodes/node-a").refused(503, "repository_unavailable")
		p.delete("/operations/intent-1-1").refused(503, "repository_unavailable")
		p.get(orders).want(200)
		p.store.update.Store(nil)
		p.put(orders+"/desired-state", object{"state": "stopped"}, key...).want(202)
	}
	if g := p.get(orders).field("desired.generation"); g != 3.0 {
		t.Errorf("generation %v", g)
	}
	closed := store.ErrClosed
	p.store.view.Store(&closed)
	for _, path := range []string{"/nodes", "/nodes/node-a", orders, "/operations", "/config-versions", "/config-versions/cfg-1", "/streams", "/streams/events"} {
		p.get(path).refused(503, "repository_unavailable")
	}
}

func TestTheServersOwnFaultsAreNotTold(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	fault := errors.New("the disk said: secret=hunter2")
	p.store.update.Store(&fault)
	p.store.view.Store(&fault)
	for _, a := range []*answer{p.put(orders+"/desired-state", object{"state": "stopped"}), p.get(orders)} {
		if a.refused(500, "internal"); strings.Contains(string(a.body), "hunter2") {
			t.Errorf("%s", a.body)
		}
	}
}

func TestMutationsOfAPrincipalAreLimited(t *testing.T) {
	p := newPlane(t, func(c *api.Config) { c.Limit = api.Limit{Burst: 3, PerSecond: 0.5} })
	for range 3 {
		p.post("/nodes", object{}).refused(422, "validation_failed", "node_id")
	}
	a := p.post("/nodes", object{}).refused(429, "rate_limited")
	if got := a.header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After %q", got)
	}
	p.get("/nodes").want(200)
	p.send("admin", "POST", "/nodes", object{}).refused(422, "validation_failed")
	p.clock.advance(2 * time.Second)
	p.post("/nodes", object{"node_id": "a"}).want(201)
	p.post("/nodes", object{"node_id": "b"}).refused(429, "rate_limited")
	p.post("/config-versions/validate", object{"engine": "process", "content": "x"}).want(200)
}

func TestTheMediaTypeOfABodyIsChecked(t *testing.T) {
	p := newPlane(t)
	req, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/api/v1/nodes", strings.NewReader(`{"node_id":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.tokens["edit"])
	req.Header.Set("Content-Type", "text/plain")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 400 {
		t.Errorf("status %d", resp.StatusCode)
	}
}
