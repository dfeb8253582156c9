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

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/store"
)

// stream is a watch in progress.
type stream struct {
	t      testing.TB
	lines  chan string
	closed func()
}

// watch opens a watch; its lines come as they are sent.
func (p *plane) watch(path string, header ...string) *stream {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	resp := p.open(ctx, "view", "GET", path, nil, header...)
	if resp.StatusCode != 200 {
		p.t.Fatalf("%s: %s", path, resp.Status)
	}
	s := &stream{t: p.t, lines: make(chan string, 1000), closed: func() { cancel(); resp.Body.Close() }}
	p.t.Cleanup(s.closed)
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
	case <-time.After(60 * time.Second):
		s.t.Fatal("nothing came")
	}
	return ""
}

// told renders an event as "TYPE kind/name", with the kind only where it is told.
func told(t testing.TB, text string) string {
	t.Helper()
	var e struct {
		Type, Kind string
		Object     object
	}
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	name, _ := dig(e.Object, "metadata.name").(string)
	if e.Kind != "" {
		name = e.Kind + "/" + name
	}
	return strings.TrimSpace(e.Type + " " + name)
}

func (s *stream) expect(want ...string) {
	s.t.Helper()
	for _, w := range want {
		if got := told(s.t, s.line()); got != w {
			s.t.Fatalf("got %q, want %q", got, w)
		}
	}
}

// expectSSE reads one message, and answers its id.
func (s *stream) expectSSE(want string) (id string) {
	s.t.Helper()
	var data string
	for l := s.line(); l != ""; l = s.line() {
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

func (p *plane) touch(path string) {
	p.t.Helper()
	p.patch(path, object{"metadata": object{"annotations": object{"touched": strconv.FormatInt(p.revision(), 10)}}}).want(200)
}

func TestWatchOfATenantTellsItsChanges(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	p.post("/api/v1/tenants", tenantBody("dev")).want(201)
	w := p.watch("/api/v1/tenants/prod/events?watch=true")
	w.expect("ADDED prod")
	p.touch("/api/v1/tenants/dev")
	p.post("/api/v1/tenants/prod/node-groups", groupBody("worker", 1)).want(201)
	p.touch("/api/v1/tenants/prod")
	w.expect("MODIFIED prod")
	p.delete("/api/v1/tenants/prod").want(200)
	w.expect("MODIFIED prod")
	p.send("admin", "PATCH", "/api/v1/tenants/prod?force=true", object{"metadata": object{"finalizers": nil}}, "Content-Type", "application/merge-patch+json").want(200)
	w.expect("DELETED prod")
}

func TestWatchOfEverythingInATenant(t *testing.T) {
	p := newPlane(t)
	_, workers := running(p)
	p.post("/api/v1/tenants", tenantBody("dev")).want(201)
	p.post("/api/v1/tenants/dev/node-groups", groupBody("worker", 1)).want(201)
	w := p.watch("/api/v1/tenants/prod/events?watch=true&scope=all&allowWatchBookmarks=true")
	w.expect("ADDED Tenant/prod", "ADDED NodeGroup/prod-control-plane", "ADDED NodeGroup/prod-worker")
	seen := map[string]bool{}
	for range 3 {
		seen[told(t, w.line())] = true
	}
	if len(seen) != 3 || !seen["ADDED Machine/"+workers[0]] {
		t.Errorf("machines: %v", seen)
	}
	w.expect("BOOKMARK")
	p.touch("/api/v1/tenants/prod/node-groups/prod-worker")
	w.expect("MODIFIED NodeGroup/prod-worker")
	// A machine that leaves the tenant is gone from its watch.
	p.update(func(tx store.Tx) error {
		m, err := cloud.Machines.Get(tx, workers[0])
		if err != nil {
			return err
		}
		m.Labels = nil
		return cloud.Machines.Update(tx, m)
	})
	w.expect("DELETED Machine/" + workers[0])
	p.get("/api/v1/tenants/prod/events?watch=true&scope=most").refused(400, "BadRequest", "scope")
}

func TestWatchesOfCollectionsSelect(t *testing.T) {
	p := newPlane(t)
	_, workers := running(p)
	loose := p.machine("10.0.0.9")
	p.touch("/api/v1/machines/" + loose)
	selected := p.watch("/api/v1/machines/events?watch=true&labelSelector=rack")
	p.patch("/api/v1/machines/"+loose, object{"metadata": object{"labels": object{"rack": "4"}}}).want(200)
	selected.expect("ADDED " + loose)
	p.patch("/api/v1/machines/"+loose, object{"metadata": object{"labels": object{"rack": nil}}}).want(200)
	selected.expect("DELETED " + loose)

	tenants := p.watch("/api/v1/tenants/events?watch=true")
	tenants.expect("ADDED prod")
	p.post("/api/v1/tenants", tenantBody("dev")).want(201)
	tenants.expect("ADDED dev")
	groups := p.watch("/api/v1/tenants/prod/node-groups/events?watch=true&labelSelector=rezuscloud.io/role%3Dworker")
	groups.expect("ADDED prod-worker")
	group := p.watch("/api/v1/tenants/prod/node-groups/prod-worker/events?watch=true")
	group.expect("ADDED prod-worker")
	one := p.watch("/api/v1/machines/" + workers[0] + "/events?watch=true")
	one.expect("ADDED " + workers[0])
	mine := p.watch("/api/v1/tenants/prod/machines/events?watch=true&labelSelector=rezuscloud.io/role%3Dcontrolplane")
	mine.line()
	own := p.watch("/api/v1/tenants/prod/machines/" + workers[0] + "/events?watch=true")
	own.expect("ADDED " + workers[0])
	p.touch("/api/v1/machines/" + workers[0])
	one.expect("MODIFIED " + workers[0])
	own.expect("MODIFIED " + workers[0])
	metal := p.watch("/api/v1/providers/metal/events?watch=true")
	metal.expect("ADDED metal")

	for path, status := range map[string]int{
		"/api/v1/tenants/none/events?watch=true":                    404,
		"/api/v1/tenants/none/node-groups/events?watch=true":        404,
		"/api/v1/tenants/prod/node-groups/none/events":              404,
		"/api/v1/machines/none/events":                              404,
		"/api/v1/providers/none/events":                             404,
		"/api/v1/tenants/none/machines/events":                      404,
		"/api/v1/tenants/dev/machines/" + workers[0] + "/events":    404,
		"/api/v1/machines/events?watch=true&labelSelector=a%20b":    400,
		"/api/v1/tenants/prod/events?watch=true&resourceVersion=-1": 400,
		"/api/v1/tenants/prod/events?watch=true&resourceVersion=x":  400,
		"/api/v1/tenants/prod/events?watch=perhaps":                 400,
	} {
		if a := p.get(path); a.status != status {
			t.Errorf("%s: %d, want %d: %s", path, a.status, status, a.body)
		}
	}
}

func TestWatchResumesAfterARevision(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	rev := p.get("/api/v1/tenants").field("metadata.resourceVersion").(float64)
	p.touch("/api/v1/tenants/prod")
	w := p.watch(fmt.Sprintf("/api/v1/tenants/prod/events?watch=true&resourceVersion=%d", int(rev)))
	w.expect("MODIFIED prod")
	p.touch("/api/v1/tenants/prod")
	w.expect("MODIFIED prod")
	p.get(fmt.Sprintf("/api/v1/tenants/prod/events?watch=true&resourceVersion=%d", p.revision()+1000)).refused(410, "Gone")

	for range 20 {
		p.touch("/api/v1/tenants/prod")
	}
	if err := p.store.Compact(t.Context(), 0, 5); err != nil {
		t.Fatal(err)
	}
	p.get("/api/v1/tenants/prod/events?watch=true&resourceVersion=1").refused(410, "Gone")
	p.get("/api/v1/tenants/prod/events?resourceVersion=1").refused(410, "Gone")
	if n := p.get("/api/v1/tenants/prod/events").want(200).field("total").(float64); n == 0 {
		t.Error("what is still kept is not listed")
	}
}

func TestServerSentEventsResumeByTheirLastId(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	const path = "/api/v1/tenants/prod/events?watch=true&sse=true"
	w := p.watch(path)
	w.expectSSE("ADDED prod")
	p.touch("/api/v1/tenants/prod")
	id := w.expectSSE("MODIFIED prod")
	if n, err := strconv.ParseInt(id, 10, 64); err != nil || n != p.revision() {
		t.Errorf("id %q, want %d", id, p.revision())
	}
	p.touch("/api/v1/tenants/prod")
	// A browser repeats the address that it began with.
	again := p.watch(path+"&resourceVersion=1", "Last-Event-ID", id)
	if next := again.expectSSE("MODIFIED prod"); next == id {
		t.Error("an event came twice")
	}
	resp := p.open(t.Context(), "view", "GET", path, nil)
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("Content-Type %q", ct)
	}
}

func TestOnlyTheLastObjectOfALargeStateTellsWhereToResume(t *testing.T) {
	p := newPlane(t)
	const n = 1200
	p.update(func(tx store.Tx) error {
		for i := range n {
			m := &cloud.Machine{Spec: cloud.MachineSpec{ManagementAddress: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}}
			m.Name = fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
			if err := cloud.Machines.Create(tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	at := strconv.FormatInt(p.revision(), 10)
	w := p.watch("/api/v1/machines/events?watch=true&sse=true")
	for i := range n {
		id := w.expectSSE(fmt.Sprintf("ADDED %08d-0000-4000-8000-000000000000", i))
		if last := i == n-1; (id != "") != last || last && id != at {
			t.Fatalf("object %d of %d has the id %q, the revision is %s", i+1, n, id, at)
		}
	}
}

func TestRecentChangesAreListed(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	p.touch("/api/v1/tenants/prod")
	rev := p.revision()
	p.post("/api/v1/tenants/prod/node-groups", groupBody("worker", 1)).want(201)
	p.post("/api/v1/tenants", tenantBody("dev")).want(201)
	list := func(query string) (out []string) {
		t.Helper()
		a := p.get("/api/v1/tenants/prod/events" + query).want(200)
		for _, e := range a.field("items").([]any) {
			text, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, told(t, string(text)))
		}
		return out
	}
	if diff := cmp.Diff([]string{"ADDED prod", "MODIFIED prod"}, list("")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"ADDED NodeGroup/prod-worker"}, list(fmt.Sprintf("?scope=all&resourceVersion=%d", rev))); diff != "" {
		t.Error(diff)
	}
	if got := list(fmt.Sprintf("?resourceVersion=%d", rev)); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
