package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/store"
)

func TestTenantLifecycleAsThePrintedSpecHasIt(t *testing.T) {
	p := newPlane(t)
	made := p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	if got := made.header.Get("Location"); got != "/api/v1/tenants/prod" {
		t.Errorf("Location %q", got)
	}
	for path, want := range map[string]any{
		"status.phase": "forming", "status.available": false, "status.ready": false, "status.machines.total": 0.0,
		"metadata.generation": 1.0, "metadata.deletionTimestamp": nil,
		"metadata.labels":     object{"rezuscloud.io/environment": "prod"},
		"metadata.finalizers": []any{"rezuscloud.io/machines", "rezuscloud.io/secrets"},
	} {
		if diff := cmp.Diff(want, made.field(path)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	groups := "/api/v1/tenants/prod/node-groups"
	cp := p.post(groups, groupBody("controlplane", 3)).want(201)
	if got := cp.field("metadata.name"); got != "prod-control-plane" {
		t.Errorf("name %v", got)
	}
	if got := cp.header.Get("Location"); got != groups+"/prod-control-plane" {
		t.Errorf("Location %q", got)
	}
	if diff := cmp.Diff(object{"rezuscloud.io/role": "controlplane", "rezuscloud.io/tenant": "prod"}, cp.field("metadata.labels")); diff != "" {
		t.Error(diff)
	}
	p.post(groups, groupBody("worker", 5)).want(201)
	if n := p.post(groups, groupBody("worker", 5)).want(201).field("metadata.name"); n != "prod-worker-2" {
		t.Errorf("name %v", n)
	}

	gone := p.delete("/api/v1/tenants/prod").want(200)
	if gone.field("metadata.deletionTimestamp") == nil || gone.field("status.phase") != "removing" {
		t.Errorf("answer to DELETE: %s", gone.body)
	}
	again := p.delete("/api/v1/tenants/prod").want(200)
	if !cmp.Equal(gone.object(), again.object()) {
		t.Error("deleting twice changed something")
	}
	p.post(groups, groupBody("worker", 1)).refused(409, "Conflict")
	p.update(func(tx store.Tx) error {
		for _, g := range []string{"prod-control-plane", "prod-worker", "prod-worker-2"} {
			ng, err := cloud.NodeGroups.Get(tx, cloud.SubName("prod", g))
			if err != nil {
				return err
			}
			ng.Finalizers = nil
			if err := cloud.NodeGroups.Update(tx, ng); err != nil {
				return err
			}
			if _, err := tx.Delete("nodegroup", ng.Name, 0); err != nil {
				return err
			}
		}
		tenant, err := cloud.Tenants.Get(tx, "prod")
		if err != nil {
			return err
		}
		tenant.Finalizers = nil
		return cloud.Tenants.Update(tx, tenant)
	})
	p.get("/api/v1/tenants/prod").refused(404, "NotFound")
	p.get(groups).refused(404, "NotFound")
	if a := p.get("/api/v1/tenants/prod"); a.field("message") != `tenant "prod" not found` {
		t.Errorf("message %v", a.field("message"))
	}
}

func TestObjectsSentBackUnchangedChangeNothing(t *testing.T) {
	p := newPlane(t)
	tenant := tenantBody("prod")
	tenant["spec"].(object)["configPatches"] = []object{{"name": "sysctl", "patch": "machine:\n  sysctls:\n    vm.swappiness: \"1\"\n"}}
	p.post("/api/v1/tenants", tenant).want(201)
	group := groupBody("worker", 1)
	group["spec"].(object)["providerConfig"] = json.RawMessage(`{ "selector" : "rack in (a, b)" }`)
	p.post("/api/v1/tenants/prod/node-groups", group).want(201)
	id, bound := p.machine("10.0.0.9"), p.machine("10.0.0.10")
	p.bind(bound, "prod", "prod-worker", "worker")
	p.update(func(tx store.Tx) error {
		m, err := cloud.Machines.Get(tx, bound)
		if err != nil {
			return err
		}
		m.Status.Connected, m.Status.Stage, m.Status.Hardware.Processors = true, cloud.StageReady, []cloud.Processor{{CoreCount: 4}}
		return cloud.Machines.Update(tx, m)
	})
	check := func(withStatus bool) {
		t.Helper()
		for _, path := range []string{
			"/api/v1/tenants/prod", "/api/v1/tenants/prod/node-groups/prod-worker",
			"/api/v1/machines/" + id, "/api/v1/machines/" + bound, "/api/v1/tenants/prod/machines/" + bound,
		} {
			before := p.get(path).want(200)
			rev := p.revision()
			after := p.put(path, string(before.body)).want(200)
			if diff := cmp.Diff(before.object(), after.object()); diff != "" {
				t.Errorf("%s: sent back unchanged: %s", path, diff)
			}
			if withStatus && strings.HasPrefix(path, "/api/v1/tenants/") {
				status := p.send("admin", "PUT", path+"/status", string(before.body)).want(200)
				if diff := cmp.Diff(before.object(), status.object()); diff != "" {
					t.Errorf("%s/status: %s", path, diff)
				}
			}
			p.patch(path, "{}").want(200)
			if now := p.revision(); now != rev {
				t.Errorf("%s: revision went from %d to %d", path, rev, now)
			}
		}
	}
	check(true)
	// So it stays while the tenant is being deleted.
	p.delete("/api/v1/tenants/prod").want(200)
	check(false)
}

func TestUpdatesOfTenants(t *testing.T) {
	p := newPlane(t)
	path := "/api/v1/tenants/prod"
	old := p.post("/api/v1/tenants", tenantBody("prod")).want(201).object()
	next := p.get(path).object()
	next["spec"].(object)["controlPlaneEndpoint"] = "https://elsewhere:6443"
	next["metadata"].(object)["labels"] = object{"a": "b"}
	next["status"] = object{"phase": "active", "ready": true}
	done := p.put(path, next).want(200)
	if done.field("metadata.generation") != 2.0 || done.field("status.phase") != "forming" || done.field("spec.controlPlaneEndpoint") != "https://elsewhere:6443" {
		t.Errorf("%s", done.body)
	}
	if dig(old, "metadata.uid") != done.field("metadata.uid") || done.field("metadata.uid") == "" {
		t.Error("uid changed")
	}
	if !cmp.Equal(done.object(), p.get(path).object()) {
		t.Error("the answer is not what is stored")
	}
	stale := p.put(path, next).refused(409, "Conflict")
	if stale.field("message") != "the object has been modified; please apply your changes to the latest version" {
		t.Errorf("message %v", stale.field("message"))
	}
	next["metadata"].(object)["resourceVersion"] = nil
	p.put(path, next).refused(400, "BadRequest", "metadata.resourceVersion")
	next["metadata"].(object)["resourceVersion"] = done.field("metadata.resourceVersion")
	next["metadata"].(object)["name"] = "dev"
	p.put(path, next).refused(400, "BadRequest", "metadata.name")
	p.put("/api/v1/tenants/none", next).refused(404, "NotFound")

	// Only the labels change: the generation stays.
	patched := p.patch(path, object{"metadata": object{"labels": object{"a": nil, "c": "d"}}}).want(200)
	if diff := cmp.Diff(object{"c": "d"}, patched.field("metadata.labels")); diff != "" || patched.field("metadata.generation") != 2.0 {
		t.Errorf("%s %s", diff, patched.body)
	}
	p.patch(path, object{"metadata": object{"resourceVersion": 1}, "spec": object{"podNetwork": nil}}).refused(409, "Conflict")
	p.patch(path, object{"spec": object{"podNetwork": "x"}}).refused(400, "BadRequest", "spec.podNetwork")
	p.patch(path, object{"spec": object{"nope": 1}}).refused(400, "BadRequest", "spec.nope")
	for _, body := range []string{`[]`, `"x"`, ``, `{`, `{} {}`, `{"metadata":1}`} {
		p.patch(path, body).want(400)
	}
	p.send("edit", "PATCH", path, "{}", "Content-Type", "application/json-patch+json").refused(400, "BadRequest")
}

func TestStatusIsWrittenAlone(t *testing.T) {
	p := newPlane(t)
	path := "/api/v1/tenants/prod"
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	body := p.get(path).object()
	body["spec"] = object{"kubernetesVersion": "0.0.1", "talosVersion": "x"}
	body["metadata"].(object)["labels"] = object{"!": "?"}
	body["status"] = object{"phase": "active", "available": true}
	p.send("edit", "PUT", path+"/status", body).refused(403, "Forbidden")
	done := p.send("admin", "PUT", path+"/status", body).want(200)
	if done.field("status.phase") != "active" || done.field("spec.talosVersion") != "1.12.6" || done.field("metadata.generation") != 1.0 {
		t.Errorf("%s", done.body)
	}
	p.send("admin", "PUT", path+"/status", body).refused(409, "Conflict")
	body["metadata"].(object)["resourceVersion"] = done.field("metadata.resourceVersion")
	body["status"] = object{"colour": "red"}
	p.send("admin", "PUT", path+"/status", body).refused(400, "BadRequest", "status.colour")
	delete(body["metadata"].(object), "resourceVersion")
	body["status"] = object{}
	p.send("admin", "PUT", path+"/status", body).refused(400, "BadRequest", "metadata.resourceVersion")
}

func TestPagesAndSelectors(t *testing.T) {
	p := newPlane(t)
	for i := range 7 {
		b := tenantBody(fmt.Sprintf("t%d", 6-i))
		b["metadata"].(object)["labels"] = object{"even": fmt.Sprint(i%2 == 0), "n": fmt.Sprint(6 - i)}
		p.post("/api/v1/tenants", b).want(201)
	}
	names := func(query string) (names []string, total float64) {
		t.Helper()
		a := p.get("/api/v1/tenants" + query).want(200)
		for _, i := range a.field("items").([]any) {
			names = append(names, dig(i, "metadata.name").(string))
		}
		if rev := a.field("metadata.resourceVersion").(float64); int64(rev) != p.revision() {
			t.Errorf("resourceVersion %v, want %d", rev, p.revision())
		}
		return names, a.field("total").(float64)
	}
	for query, want := range map[string]struct {
		names string
		total float64
	}{
		"":                                       {"t0 t1 t2 t3 t4 t5 t6", 7},
		"?offset=2&limit=2":                      {"t2 t3", 7},
		"?offset=9":                              {"", 7},
		"?labelSelector=even%3Dtrue":             {"t0 t2 t4 t6", 4},
		"?labelSelector=even%3Dtrue&limit=1":     {"t0", 4},
		"?labelSelector=n+in+(1,2)":              {"t1 t2", 2},
		"?labelSelector=n+in+(1,2),even!%3Dtrue": {"t1", 1},
		"?labelSelector=n+in+(1,2)&labelSelector=even%3Dtrue": {"t2", 1},
		"?labelSelector=!even":                                {"", 0},
	} {
		got, total := names(query)
		if s := strings.Join(got, " "); s != want.names || total != want.total {
			t.Errorf("%s: %s of %v, want %s of %v", query, s, total, want.names, want.total)
		}
	}
	for query, field := range map[string]string{
		"?offset=-1": "offset", "?offset=x": "offset", "?limit=0": "limit", "?limit=501": "limit", "?limit=-5": "limit",
		"?limit=99999999999999999999": "limit", "?labelSelector=a%20b": "labelSelector", "?labelSelector=a%3D%3D%3Db": "labelSelector",
		"?labelSelector=a+in+()x": "labelSelector",
	} {
		p.get("/api/v1/tenants"+query).refused(400, "BadRequest", field)
	}
	if a := p.get("/api/v1/machines").want(200); a.field("items") == nil || a.field("total") != 0.0 {
		t.Errorf("an empty list: %s", a.body)
	}
}

func TestPluginsOfALaterVersionAreAcceptedWithAWarning(t *testing.T) {
	p := newPlane(t)
	b := tenantBody("prod")
	b["spec"].(object)["plugins"] = object{"cni": object{"type": "cilium", "version": "1.17.0", "values": "..."}, "csi": object{"type": "none"}}
	a := p.post("/api/v1/tenants", b).want(201)
	if w := a.header.Get("Warning"); !strings.HasPrefix(w, `299 freehold "`) || !strings.Contains(w, "cilium") {
		t.Errorf("Warning %q", w)
	}
	p.post("/api/v1/tenants", tenantBody("dev")).want(201)
	a = p.post("/api/v1/tenants/dev/node-groups", groupBody("controlplane", 2)).want(201)
	if w := a.header.Get("Warning"); !strings.Contains(w, "odd") {
		t.Errorf("Warning %q", w)
	}
}

func TestForceIsForAdminsAndAudited(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	body := p.get("/api/v1/tenants/prod").object()
	body["metadata"].(object)["finalizers"] = []string{"rezuscloud.io/secrets"}
	p.put("/api/v1/tenants/prod", body).refused(400, "BadRequest", "metadata.finalizers")
	p.patch("/api/v1/tenants/prod", object{"metadata": object{"finalizers": nil}}).want(400)
	p.put("/api/v1/tenants/prod?force=true", body).refused(403, "Forbidden")
	a := p.send("admin", "PUT", "/api/v1/tenants/prod?force=true", body).want(200)
	if diff := cmp.Diff([]any{"rezuscloud.io/secrets"}, a.field("metadata.finalizers")); diff != "" {
		t.Error(diff)
	}
	entries := p.audit()
	if len(entries) != 1 || entries[0]["user"] != "admin-user" || entries[0]["action"] != "remove-finalizers" || !strings.Contains(fmt.Sprint(entries[0]["detail"]), "machines") {
		t.Errorf("audit %v", entries)
	}
	// A body without finalizers keeps them.
	b := p.get("/api/v1/tenants/prod").object()
	delete(b["metadata"].(object), "finalizers")
	p.put("/api/v1/tenants/prod", b).want(200)
}

func (p *plane) audit() []object {
	p.t.Helper()
	var out []object
	if err := p.store.View(p.t.Context(), func(r store.Reader) error {
		rows, err := r.Scan("audit", store.Scan{})
		for _, row := range rows {
			var o object
			if err := json.Unmarshal(row.Data, &o); err != nil {
				return err
			}
			out = append(out, o)
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return out
}

func TestDeletionWithAVersion(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	rev := p.get("/api/v1/tenants/prod").field("metadata.resourceVersion").(float64)
	p.delete(fmt.Sprintf("/api/v1/tenants/prod?resourceVersion=%d", int(rev)+1)).refused(409, "Conflict")
	p.delete("/api/v1/tenants/prod?resourceVersion=x").refused(400, "BadRequest", "resourceVersion")
	p.delete(fmt.Sprintf("/api/v1/tenants/prod?resourceVersion=%d", int(rev))).want(200)
	p.delete("/api/v1/tenants/none").refused(404, "NotFound")
}

func TestOfConcurrentWritersOneWins(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	const writers = 8
	body := p.get("/api/v1/tenants/prod").object()
	status := make([]int, writers)
	names := make([]string, writers)
	var wg sync.WaitGroup
	for i := range writers {
		b := object{"metadata": object{"resourceVersion": dig(body, "metadata.resourceVersion"), "labels": object{"writer": fmt.Sprint(i)}}, "spec": body["spec"]}
		wg.Go(func() {
			resp := p.open(t.Context(), "edit", "PUT", "/api/v1/tenants/prod", b)
			resp.Body.Close()
			status[i] = resp.StatusCode
			resp = p.open(t.Context(), "edit", "POST", "/api/v1/tenants/prod/node-groups", groupBody("worker", 1))
			defer resp.Body.Close()
			var o object
			if err := json.NewDecoder(resp.Body).Decode(&o); err != nil {
				t.Error(err)
			}
			names[i], _ = dig(o, "metadata.name").(string)
			patch := p.open(t.Context(), "edit", "PATCH", "/api/v1/tenants/prod", object{"metadata": object{"labels": object{fmt.Sprintf("w%d", i): "x"}}}, "Content-Type", "application/merge-patch+json")
			patch.Body.Close()
			if patch.StatusCode != http.StatusOK {
				t.Errorf("patch: %s", patch.Status)
			}
		})
	}
	wg.Wait()
	slices.Sort(status)
	if status[0] != 200 || status[1] != 409 || status[writers-1] != 409 {
		t.Errorf("statuses %v", status)
	}
	slices.Sort(names)
	if got := len(slices.Compact(names)); got != writers {
		t.Errorf("names %v", names)
	}
	if labels := p.get("/api/v1/tenants/prod").field("metadata.labels").(object); len(labels) != writers+1 {
		t.Errorf("patches were lost: %v", labels)
	}
}
