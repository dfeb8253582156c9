package api_test

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/store"
)

func TestUnassignedMachinesAreRegisteredChangedAndForgotten(t *testing.T) {
	p := newPlane(t)
	made := p.post("/api/v1/machines", object{
		"metadata": object{"labels": object{"rack": "4"}}, "spec": object{"managementAddress": "10.0.0.9:50000"},
	}).want(201)
	id := made.field("metadata.name").(string)
	if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) {
		t.Errorf("name %q", id)
	}
	path := "/api/v1/machines/" + id
	if made.header.Get("Location") != path || made.field("status.stage") != "initializing" || made.field("spec.connected") != false {
		t.Errorf("%v %s", made.header, made.body)
	}
	p.post("/api/v1/machines", object{"metadata": object{"name": id}, "spec": object{"managementAddress": "10.0.0.10"}}).refused(409, "Conflict")
	p.post("/api/v1/machines", object{"spec": object{"managementAddress": "10.0.0.9"}}).refused(409, "Conflict", "spec.managementAddress")

	p.patch(path, object{"metadata": object{"labels": object{"rack": "5"}}, "spec": object{"managementAddress": "10.0.0.11", "connected": true}}).want(200)
	got := p.get(path).want(200)
	if got.field("spec.managementAddress") != "10.0.0.11" || got.field("spec.connected") != false || dig(got.object(), "metadata.labels.rack") != "5" {
		t.Errorf("%s", got.body)
	}
	// The old address is free, the new one is taken.
	other := p.machine("10.0.0.9")
	p.patch("/api/v1/machines/"+other, object{"spec": object{"managementAddress": "10.0.0.11:50000"}}).refused(409, "Conflict", "spec.managementAddress")

	p.delete(path).want(200)
	p.get(path).refused(404, "NotFound")
	p.delete(path).refused(404, "NotFound")
	p.machine("10.0.0.11")
}

func TestForgottenMachineWithAFinalizerKeepsItsAddressUntilItIsGone(t *testing.T) {
	p := newPlane(t)
	id := p.machine("10.0.0.9")
	path := "/api/v1/machines/" + id
	p.patch(path, object{"metadata": object{"finalizers": []string{"example.com/inventory"}}}).want(200)
	if a := p.delete(path).want(200); a.field("metadata.deletionTimestamp") == nil {
		t.Errorf("%s", a.body)
	}
	p.post("/api/v1/machines", object{"spec": object{"managementAddress": "10.0.0.9"}}).refused(409, "Conflict")
	p.patch(path, object{"metadata": object{"finalizers": nil}}).want(200)
	p.get(path).refused(404, "NotFound")
	p.machine("10.0.0.9")
}

// running makes a tenant with a control plane of one machine and two workers.
func running(p *plane) (cp string, workers []string) {
	p.t.Helper()
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	p.post("/api/v1/tenants/prod/node-groups", groupBody("controlplane", 1)).want(201)
	p.post("/api/v1/tenants/prod/node-groups", groupBody("worker", 2)).want(201)
	cp = p.machine("10.0.0.1")
	p.bind(cp, "prod", "prod-control-plane", "controlplane")
	for i := range 2 {
		id := p.machine(fmt.Sprintf("10.0.0.%d", i+2))
		p.bind(id, "prod", "prod-worker", "worker")
		workers = append(workers, id)
	}
	return cp, workers
}

func TestMachinesOfATenant(t *testing.T) {
	p := newPlane(t)
	cp, workers := running(p)
	loose := p.machine("10.0.0.9")
	p.post("/api/v1/tenants", tenantBody("dev")).want(201)

	var names []string
	for _, m := range p.get("/api/v1/tenants/prod/machines?labelSelector=rezuscloud.io/role%3Dworker").want(200).field("items").([]any) {
		names = append(names, dig(m, "metadata.name").(string))
	}
	slices.Sort(workers)
	if diff := cmp.Diff(workers, names); diff != "" {
		t.Error(diff)
	}
	if total := p.get("/api/v1/machines").field("total"); total != 4.0 {
		t.Errorf("total %v", total)
	}
	p.get("/api/v1/tenants/prod/machines/" + cp).want(200)
	p.get("/api/v1/tenants/dev/machines/"+cp).refused(404, "NotFound")
	p.get("/api/v1/tenants/prod/machines/"+loose).refused(404, "NotFound")
	p.get("/api/v1/tenants/none/machines").refused(404, "NotFound")
	p.get("/api/v1/tenants/none/machines/"+cp).refused(404, "NotFound")

	path := "/api/v1/tenants/prod/machines/" + workers[0]
	done := p.patch(path, object{"metadata": object{"annotations": object{"rezuscloud.io/delete-machine": "true"}, "labels": object{"rezuscloud.io/tenant": nil}}}).want(200)
	if done.field("metadata.labels").(object)["rezuscloud.io/tenant"] != "prod" || done.field("metadata.annotations").(object)["rezuscloud.io/slot"] != "0" {
		t.Errorf("server-owned metadata: %s", done.body)
	}
	p.patch(path, object{"spec": object{"managementAddress": "10.9.9.9"}}).refused(400, "BadRequest", "spec.managementAddress")
	p.patch(path, object{"metadata": object{"annotations": object{"rezuscloud.io/slot": "7"}}}).refused(400, "BadRequest", "metadata.annotations[rezuscloud.io/slot]")
	p.patch(path, object{"metadata": object{"labels": object{"rezuscloud.io/tenant": "dev"}}}).refused(400, "BadRequest", "metadata.labels[rezuscloud.io/tenant]")

	body := p.get(path).object()
	body["status"] = object{"connected": true, "stage": "ready", "ready": true, "lastError": ""}
	status := p.send("admin", "PUT", path+"/status", body).want(200)
	if status.field("status.stage") != "ready" || status.field("spec.connected") != true {
		t.Errorf("%s", status.body)
	}
	p.send("admin", "PUT", "/api/v1/tenants/dev/machines/"+cp+"/status", body).refused(404, "NotFound")
}

func TestDeletingATenantsMachineTearsItDown(t *testing.T) {
	p := newPlane(t)
	cp, workers := running(p)
	p.delete("/api/v1/machines/"+workers[0]).refused(409, "Conflict")
	path := "/api/v1/tenants/prod/machines/" + workers[0]
	gone := p.delete(path).want(200)
	if gone.field("metadata.deletionTimestamp") == nil || !slices.Contains(gone.field("metadata.finalizers").([]any), any("rezuscloud.io/teardown")) {
		t.Errorf("%s", gone.body)
	}
	p.delete(path).want(200)
	count := func() any { return p.get("/api/v1/tenants/prod/node-groups/prod-worker").field("spec.count") }
	if count() != 2.0 {
		t.Errorf("count %v", count())
	}
	gone = p.delete("/api/v1/tenants/prod/machines/" + workers[1] + "?scaleDown=true").want(200)
	if count() != 1.0 || gone.field("metadata.annotations").(object)["rezuscloud.io/delete-machine"] != "true" {
		t.Errorf("count %v, %s", count(), gone.body)
	}
	p.delete("/api/v1/tenants/prod/machines/"+cp).refused(409, "Conflict")
	p.delete("/api/v1/tenants/prod").want(200)
	p.delete("/api/v1/tenants/prod/machines/" + cp).want(200)
}

func TestMachineWithoutTeardownGetsIt(t *testing.T) {
	p := newPlane(t)
	_, workers := running(p)
	p.update(func(tx store.Tx) error {
		m, err := cloud.Machines.Get(tx, workers[0])
		if err != nil {
			return err
		}
		m.Finalizers = nil
		return cloud.Machines.Update(tx, m)
	})
	a := p.delete("/api/v1/tenants/prod/machines/" + workers[0]).want(200)
	if diff := cmp.Diff([]any{"rezuscloud.io/teardown"}, a.field("metadata.finalizers")); diff != "" {
		t.Error(diff)
	}
}

func TestScaleDownThatCannotBeIsRefusedWhole(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	group := with(groupBody("worker", 2), "spec/providerConfig", object{"addresses": []string{"10.0.0.2", "10.0.0.3"}})
	p.post("/api/v1/tenants/prod/node-groups", group).want(201)
	id := p.machine("10.0.0.2")
	p.bind(id, "prod", "prod-worker", "worker")
	before := p.revision()
	p.delete("/api/v1/tenants/prod/machines/"+id+"?scaleDown=true").refused(409, "Conflict")
	if p.revision() != before {
		t.Error("something was stored")
	}
}

func TestAddressOfABoundMachineBelongsToItsNodeGroup(t *testing.T) {
	p := newPlane(t)
	_, workers := running(p)
	group := with(groupBody("worker", 1), "spec/providerConfig", object{"address": "10.0.0.2"})
	p.post("/api/v1/tenants/prod/node-groups", group).refused(400, "BadRequest", "spec.providerConfig.address")
	// Its own node group may name it, and keeps it.
	path := "/api/v1/tenants/prod/node-groups/prod-worker"
	p.patch(path, object{"spec": object{"providerConfig": object{"addresses": []string{"10.0.0.2", "10.0.0.3"}}}}).want(200)
	p.patch(path, object{"metadata": object{"labels": object{"a": "b"}}}).want(200)
	_ = workers
}

func TestLastControlPlaneStaysUnderWorkers(t *testing.T) {
	p := newPlane(t)
	running(p)
	groups := "/api/v1/tenants/prod/node-groups/"
	p.delete(groups+"prod-control-plane").refused(409, "Conflict")
	p.delete(groups + "prod-worker").want(200)
	p.delete(groups+"prod-control-plane").refused(409, "Conflict")
	p.post("/api/v1/tenants/prod/node-groups", groupBody("controlplane", 1)).want(201)
	p.delete(groups + "prod-control-plane").want(200)
	p.delete(groups+"prod-control-plane-2").refused(409, "Conflict")
	p.delete("/api/v1/tenants/prod").want(200)
	p.delete(groups + "prod-control-plane-2").want(200)
}

func TestProvidersAreListed(t *testing.T) {
	p := newPlane(t)
	list := p.get("/api/v1/providers").want(200)
	if list.field("total") != 1.0 {
		t.Errorf("%s", list.body)
	}
	metal := p.get("/api/v1/providers/metal").want(200)
	if metal.field("spec.type") != "metal" || metal.field("status.mappings") == nil || metal.field("status.configSchema.type") != "object" {
		t.Errorf("%s", metal.body)
	}
	p.get("/api/v1/providers/oci").refused(404, "NotFound")
	p.send("admin", "PUT", "/api/v1/providers/metal", "{}").refused(405, "MethodNotAllowed")
}
