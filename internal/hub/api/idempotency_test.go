package api_test

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/hub/idempotency"
	"freehold.dev/freehold/internal/kernel/store"
)

// same checks that a retry was answered byte for byte as the first request was.
func same(t *testing.T, first, again *answer) {
	t.Helper()
	if again.status != first.status || !bytes.Equal(again.body, first.body) {
		t.Errorf("%s: %d %q, first %d %q", again.what, again.status, again.body, first.status, first.body)
	}
	for _, name := range []string{"Location", "ETag", "Content-Type", "Content-Length"} {
		if diff := cmp.Diff(first.header.Values(name), again.header.Values(name)); diff != "" {
			t.Errorf("%s: %s: %s", again.what, name, diff)
		}
	}
	if first.header.Get("Idempotency-Replayed") != "" || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%s: Idempotency-Replayed %q, then %q", again.what, first.header.Get("Idempotency-Replayed"), again.header.Get("Idempotency-Replayed"))
	}
}

func TestARetryIsAnsweredByteForByteAndChangesNothing(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	path, body := orders+"/desired-state", object{"state": "running", "config_version": cfg}
	first := p.put(path, body, "Idempotency-Key", "k 1 ~!", "If-Match", `"generation-0"`).want(202)
	p.put(path, body).want(202)
	// The key is looked at before the generation, and before what is in the header.
	again := p.put(path, body, "Idempotency-Key", "k 1 ~!", "If-Match", `"generation-0"`, "X-Correlation-ID", "second")
	same(t, first, again)
	if again.header.Get("X-Correlation-ID") != "second" {
		t.Errorf("headers %v", again.header)
	}
	same(t, first, p.put(path, body, "Idempotency-Key", "k 1 ~!", "If-Match", "nonsense"))
	// Spelled in another way it is the same body.
	same(t, first, p.put(path, ` { "config_version": "`+cfg+`", "state": "running" }`, "Idempotency-Key", "k 1 ~!"))
	if g := p.get(orders).field("desired.generation"); g != 2.0 {
		t.Errorf("generation %v", g)
	}
	p.put(path, object{"state": "stopped"}, "Idempotency-Key", "k 1 ~!").refused(409, "idempotency_key_reused")

	// Another principal, resource or method has keys of its own.
	p.send("admin", "PUT", "/api/v1"+path, body, "Idempotency-Key", "k 1 ~!").want(202)
	p.put("/nodes/node-a/streams/other/desired-state", body, "Idempotency-Key", "k 1 ~!").want(202)
	if g := p.get(orders).field("desired.generation"); g != 3.0 {
		t.Errorf("generation %v", g)
	}
	// A refused mutation leaves nothing: its key may be used for what is then accepted.
	p.put(path, body, "Idempotency-Key", "k2", "If-Match", `"generation-9"`).refused(412, "generation_conflict")
	p.put(path, body, "Idempotency-Key", "k2", "If-Match", `"generation-3"`).want(202)

	p.clock.advance(idempotency.Kept - time.Second)
	same(t, first, p.put(path, body, "Idempotency-Key", "k 1 ~!"))
	p.clock.advance(time.Second)
	p.put(path, body, "Idempotency-Key", "k 1 ~!").want(202)
	if g := p.get(orders).field("desired.generation"); g != 5.0 {
		t.Errorf("after a day: generation %v", g)
	}
}

func TestEveryMutationTakesAnIdempotencyKey(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	own := p.post("/config-versions", object{"engine": "node", "content": "a"}).text("config_version")
	p.run("node-a", "orders", cfg)
	p.obey("node-a")
	intent := p.run("node-a", "pending", cfg).text("intent_id")
	for i, c := range []struct {
		method, path string
		body         any
	}{
		{"POST", "/nodes", object{"node_id": "node-b"}},
		{"POST", "/nodes/node-a/enrolment", nil},
		{"POST", "/config-versions", object{"engine": "process", "content": "command: two"}},
		{"POST", orders + "/actions/restart", nil},
		{"POST", orders + "/restart", object{}},
		{"POST", orders + "/start", nil},
		{"POST", orders + "/stop", nil},
		{"POST", orders + "/config/apply", object{"config_version": cfg}},
		{"POST", "/nodes/node-a/config/apply", object{"config_version": own}},
		{"DELETE", "/operations/" + intent, nil},
		{"DELETE", "/nodes/node-b", nil},
		{"DELETE", "/nodes/node-a", nil},
	} {
		key := []string{"Idempotency-Key", strings.Repeat("k", i+1)}
		first := p.send("edit", c.method, c.path, c.body, key...)
		if first.status >= 300 {
			t.Fatalf("%s: %d %s", first.what, first.status, first.body)
		}
		same(t, first, p.send("edit", c.method, c.path, c.body, key...))
	}
}

func TestATokenThatIsKeptForRetriesIsSealed(t *testing.T) {
	p := newPlane(t)
	token := p.post("/nodes", object{"node_id": "node-b"}, "Idempotency-Key", "k").want(201).text("enrolment_token")
	if token == "" {
		t.Fatal("no token")
	}
	if err := p.store.Store.View(t.Context(), func(r store.Reader) error {
		rows, err := r.Scan("idempotency", store.Scan{})
		if len(rows) != 1 {
			t.Errorf("%d records", len(rows))
		}
		for _, row := range rows {
			if bytes.Contains(row.Data, []byte(token)) || bytes.Contains(row.Data, []byte("node-b")) {
				t.Errorf("a record in the clear: %s", row.Data)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestKeysThatCannotBeUsed(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	path, body := orders+"/desired-state", object{"state": "running", "config_version": cfg}
	for _, key := range []string{"", strings.Repeat("k", 256), "ké", "a\tb"} {
		p.put(path, body, "Idempotency-Key", key).refused(400, "bad_request", "Idempotency-Key")
	}
	p.put(path, body, "Idempotency-Key", "a", "Idempotency-Key", "b").refused(400, "bad_request", "Idempotency-Key")
	p.put(path, body, "Idempotency-Key", strings.Repeat("k", 255)).want(202)
}

func TestOfConcurrentRetriesOneChangesAnything(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	answers := make([]*answer, 8)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() {
			answers[i] = p.put(orders+"/desired-state", object{"state": "running", "config_version": cfg}, "Idempotency-Key", "k")
		})
	}
	group.Wait()
	replayed := 0
	for _, a := range answers {
		if a.status != http.StatusAccepted || !bytes.Equal(a.body, answers[0].body) {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a.header.Get("Idempotency-Replayed") == "true" {
			replayed++
		}
	}
	if replayed != len(answers)-1 {
		t.Errorf("%d of %d were replayed", replayed, len(answers))
	}
	if g := p.get(orders).field("desired.generation"); g != 1.0 {
		t.Errorf("generation %v", g)
	}
}
