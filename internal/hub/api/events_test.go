package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/store"
)

func roleOf(name string) identity.Role { return identity.Role(name) }

// stream is a watch in progress.
type stream struct {
	t     testing.TB
	lines chan string
}

func (p *plane) watch(query string, header ...string) *stream {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	resp := p.open(ctx, "view", "GET", "/streams/events?watch=true&"+query, nil, header...)
	if resp.StatusCode != 200 {
		p.t.Fatalf("%s: %s", query, resp.Status)
	}
	s := &stream{t: p.t, lines: make(chan string, 1000)}
	p.t.Cleanup(func() { cancel(); resp.Body.Close() })
	go func() {
		defer close(s.lines)
		r := bufio.NewReader(resp.Body)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			s.lines <- strings.TrimSuffix(line, "\n")
		}
	}()
	return s
}

func (s *stream) line() string {
	s.t.Helper()
	select {
	case l, ok := <-s.lines:
		if !ok {
			s.t.Fatal("the stream ended")
		}
		return l
	case <-time.After(patience):
		s.t.Fatal("nothing came")
	}
	return ""
}

// told renders an event as "TYPE node/stream convergence".
func told(t testing.TB, text string) string {
	t.Helper()
	var e struct {
		Type   string
		Object object
	}
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	if e.Type == "BOOKMARK" {
		return e.Type
	}
	return fmt.Sprintf("%s %s/%s %s", e.Type, e.Object["node_id"], e.Object["stream_id"], e.Object["convergence"])
}

// next is the next line that is no heartbeat.
func (s *stream) next() string {
	s.t.Helper()
	for {
		if l := s.line(); l != "" {
			return l
		}
	}
}

func (s *stream) expect(want ...string) {
	s.t.Helper()
	for _, w := range want {
		if got := told(s.t, s.next()); got != w {
			s.t.Fatalf("got %q, want %q", got, w)
		}
	}
}

// expectSSE reads one message, and answers its id.
func (s *stream) expectSSE(want string) (id string) {
	s.t.Helper()
	data := ""
	for l := s.line(); l != "" || data == ""; l = s.line() {
		if v, ok := strings.CutPrefix(l, "data: "); ok {
			data = v
		}
		if v, ok := strings.CutPrefix(l, "id: "); ok {
			id = v
		}
	}
	if got := told(s.t, data); got != want {
		s.t.Fatalf("got %q, want %q", got, want)
	}
	return id
}

func (p *plane) revision() (n int64) {
	p.t.Helper()
	if err := p.store.Store.View(p.t.Context(), func(r store.Reader) error { n = r.Revision(); return nil }); err != nil {
		p.t.Fatal(err)
	}
	return n
}

func TestAWatchTellsWhatBecomesOfStreams(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	p.node("node-b")
	cfg := p.config("command: one")
	p.run("node-a", "orders", cfg)
	all := p.watch("allowWatchBookmarks=true")
	all.expect("ADDED node-a/orders pending", "BOOKMARK")
	ofB := p.watch("node_id=node-b")
	ofOrders := p.watch("stream_id=orders")
	ofOrders.expect("ADDED node-a/orders pending")
	one := p.watch("node_id=node-b&stream_id=orders")
	later := p.watch("node_id=node-c")
	p.run("node-b", "invoices", cfg)
	p.run("node-b", "orders", cfg)
	all.expect("ADDED node-b/invoices pending", "ADDED node-b/orders pending")
	ofB.expect("ADDED node-b/invoices pending", "ADDED node-b/orders pending")
	ofOrders.expect("ADDED node-b/orders pending")
	one.expect("ADDED node-b/orders pending")
	p.poll("node-a")
	all.expect("MODIFIED node-a/orders applying")
	p.post("/nodes", object{"node_id": "node-c"}).want(201)
	p.run("node-c", "orders", cfg)
	later.expect("ADDED node-c/orders unknown")
	ofOrders.expect("MODIFIED node-a/orders applying", "ADDED node-c/orders unknown")
	p.send("admin", "DELETE", "/nodes/node-b?force=true", nil).want(202)
	one.expect("DELETED node-b/orders pending")
}

func TestAWatchByConvergenceTellsWhatEntersAndLeavesIt(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "one", cfg)
	pending := p.watch("convergence=pending")
	pending.expect("ADDED node-a/one pending")
	synced := p.watch("convergence=in_sync&node_id=node-a")
	p.obey("node-a")
	pending.expect("DELETED node-a/one applying")
	synced.expect("ADDED node-a/one in_sync")
	p.run("node-a", "one", cfg)
	pending.expect("ADDED node-a/one pending")
	synced.expect("DELETED node-a/one pending")
	p.get("/streams/events?watch=true&convergence=fine").refused(422, "validation_failed", "convergence")
}

func TestAWatchResumes(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "one", cfg)
	since := p.revision()
	p.run("node-a", "two", cfg)
	p.watch(fmt.Sprintf("resourceVersion=%d", since)).expect("ADDED node-a/two pending")

	w := p.watch("sse=true")
	w.expectSSE("ADDED node-a/one pending")
	id := w.expectSSE("ADDED node-a/two pending")
	if n, err := strconv.ParseInt(id, 10, 64); err != nil || n != p.revision() {
		t.Errorf("id %q, the revision is %d", id, p.revision())
	}
	p.run("node-a", "three", cfg)
	w.expectSSE("ADDED node-a/three pending")
	// A browser repeats the address that it began with.
	p.watch("sse=true&resourceVersion=1", "Last-Event-ID", id).expectSSE("ADDED node-a/three pending")

	for _, v := range []string{"-1", "x"} {
		p.get("/streams/events?watch=true&resourceVersion="+v).refused(400, "bad_request", "resourceVersion")
	}
	p.get(fmt.Sprintf("/streams/events?watch=true&resourceVersion=%d", p.revision()+1000)).refused(410, "gone")
	for range 12 {
		p.run("node-a", "one", cfg)
	}
	if err := p.store.Compact(t.Context(), 0, 5); err != nil {
		t.Fatal(err)
	}
	p.get("/streams/events?watch=true&resourceVersion=1").refused(410, "gone")
	p.get("/streams/events?resourceVersion=1").refused(410, "gone")
}

func TestRecentChangesAreListed(t *testing.T) {
	p := newPlane(t)
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "one", cfg)
	p.run("node-a", "two", cfg)
	p.run("node-a", "one", cfg)
	list := func(query string) (out []string) {
		t.Helper()
		items, _ := p.get("/streams/events?" + query).want(200).field("items").([]any)
		for _, e := range items {
			text, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, told(t, string(text)))
		}
		return out
	}
	if got := list("stream_id=one"); len(got) != 2 || got[0] != "ADDED node-a/one pending" || got[1] != "MODIFIED node-a/one pending" {
		t.Errorf("%v", got)
	}
	if got := list("node_id=node-a"); len(got) != 3 {
		t.Errorf("%v", got)
	}
	if got := list("node_id=node"); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
