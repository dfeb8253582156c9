package api_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/hub"
)

func TestAConfigVersionIsPublishedOnce(t *testing.T) {
	p := newPlane(t)
	const content = "input:\n  <b>: \"x & y\"\n"
	body := object{"engine": "benthos", "content": content, "description": "first"}
	a := p.post("/config-versions", body).want(201)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))
	if diff := cmp.Diff(object{"config_version": "cfg-1", "digest": digest, "engine": "benthos"}, a.object()); diff != "" || a.header.Get("Location") != "/api/v1/config-versions/cfg-1" {
		t.Errorf("%s %v", diff, a.header)
	}
	again := p.post("/config-versions", object{"engine": "benthos", "content": content}).want(200)
	if again.text("config_version") != "cfg-1" {
		t.Errorf("%s", again.body)
	}
	// Another engine's is another version.
	p.post("/config-versions", object{"engine": "process", "content": content}).want(201)
	got := p.get("/config-versions/cfg-1").want(200)
	if got.text("content") != content || got.text("description") != "first" || got.text("principal") != "edit-user" || got.field("size") != float64(len(content)) || got.text("created_at") == "" {
		t.Errorf("%s", got.body)
	}
	list := p.get("/config-versions").want(200)
	if diff := cmp.Diff([]string{"cfg-2", "cfg-1"}, list.column("config_version")); diff != "" || strings.Contains(string(list.body), `"content"`) {
		t.Errorf("%s %s", diff, list.body)
	}
	if diff := cmp.Diff([]string{"cfg-1"}, p.get("/config-versions?engine=benthos").column("config_version")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"cfg-1"}, p.get("/config-versions?page_size=1&page=2").column("config_version")); diff != "" {
		t.Error(diff)
	}
	p.get("/config-versions?engine=none").refused(422, "validation_failed", "engine")
	p.get("/config-versions/cfg-3").refused(404, "not_found")
}

func TestContentWithFaultsIsRefusedWithTheirPlaces(t *testing.T) {
	p := newPlane(t)
	body := object{"engine": "benthos", "content": "a: bad"}
	want := []any{object{"line": 2.0, "column": 3.0, "message": "bad is not recognised"}, object{"line": 4.0, "column": 1.0, "message": "worse"}}
	a := p.post("/config-versions", body).refused(422, "validation_failed")
	if diff := cmp.Diff(any(want), a.field("details.lints")); diff != "" || !strings.Contains(a.text("message"), "line 2, column 3") {
		t.Errorf("%s %s", diff, a.body)
	}
	v := p.send("view", "POST", "/config-versions/validate", body).want(200)
	if diff := cmp.Diff(object{"valid": false, "lints": want}, v.object()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(object{"valid": true, "lints": []any{}}, p.post("/config-versions/validate", object{"engine": "process", "content": "ok"}).want(200).object()); diff != "" {
		t.Error(diff)
	}
	for _, path := range []string{"/config-versions", "/config-versions/validate"} {
		p.post(path, object{"engine": "process", "content": "broken"}).refused(500, "internal")
		p.post(path, object{}).refused(422, "validation_failed", "engine", "content")
		p.post(path, object{"engine": "x", "content": "y", "description": strings.Repeat("d", 1025)}).refused(422, "validation_failed", "engine", "description")
		p.post(path, object{"engine": "process", "content": strings.Repeat("x", hub.MaxConfig+1)}).refused(422, "validation_failed", "content")
		p.post(path, object{"engine": "process", "content": 1}).refused(400, "bad_request", "content")
		p.post(path, object{"engine": "process", "content": strings.Repeat("\"", 4*hub.MaxConfig)}).refused(413, "payload_too_large")
	}
	p.post("/config-versions", object{"engine": "process", "content": strings.Repeat("\x01", hub.MaxConfig)}).want(201)
	if n := p.get("/config-versions").field("total"); n != 1.0 {
		t.Errorf("%v versions", n)
	}
}
