package api_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// with answers a copy of a body with the value at a dotted path; nil removes it.
func with(body object, path string, value any) object {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	var out object
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	at := out
	names := strings.Split(path, "/")
	for _, n := range names[:len(names)-1] {
		if _, ok := at[n].(object); !ok {
			at[n] = object{}
		}
		at = at[n].(object)
	}
	if last := names[len(names)-1]; value == nil {
		delete(at, last)
	} else {
		at[last] = value
	}
	return out
}

func TestBadInputIsRefusedByFieldAndNotStored(t *testing.T) {
	p := newPlane(t)
	const tenants, groups, machines = "/api/v1/tenants", "/api/v1/tenants/prod/node-groups", "/api/v1/machines"
	p.post(tenants, tenantBody("prod")).want(201)
	p.post(tenants, tenantBody("going")).want(201)
	p.post("/api/v1/tenants/going/node-groups", groupBody("worker", 1)).want(201)
	p.delete("/api/v1/tenants/going").want(200)
	taken := groupBody("worker", 1)
	taken["spec"].(object)["providerConfig"] = object{"address": "10.0.0.5"}
	p.post(groups, with(taken, "metadata/name", "taken")).want(201)
	p.machine("10.0.0.6")

	tenant, worker := tenantBody("new"), groupBody("worker", 1)
	machine := object{"spec": object{"managementAddress": "10.0.0.9"}}
	patch := func(texts ...string) []object {
		var out []object
		for i, text := range texts {
			out = append(out, object{"name": string(rune('a' + i)), "patch": text})
		}
		return out
	}
	for name, c := range map[string]struct {
		path   string
		body   any
		status int
		fields []string
	}{
		"duplicate tenant":     {tenants, tenantBody("prod"), 409, nil},
		"duplicate node group": {groups, with(worker, "metadata/name", "taken"), 409, nil},
		"duplicate address":    {machines, with(machine, "spec/managementAddress", "10.0.0.6:50000"), 409, []string{"spec.managementAddress"}},
		"deleting tenant":      {"/api/v1/tenants/going/node-groups", worker, 409, nil},
		"no tenant":            {"/api/v1/tenants/none/node-groups", worker, 404, nil},

		"unknown field":            {tenants, with(tenant, "spec/kubernetsVersion", "1.35.0"), 400, []string{"spec.kubernetsVersion"}},
		"unknown field outside":    {tenants, with(tenant, "kind", "Tenant"), 400, []string{"kind"}},
		"unknown metadata":         {tenants, with(tenant, "metadata/namespace", "x"), 400, []string{"metadata.namespace"}},
		"field in another case":    {tenants, with(tenant, "spec/TalosVersion", "1.12.6"), 400, []string{"spec.TalosVersion"}},
		"wrong type":               {tenants, with(tenant, "spec/podNetwork", "10.0.0.0/8"), 400, []string{"spec.podNetwork"}},
		"wrong type inside a list": {tenants, with(tenant, "spec/podNetwork", []any{1}), 400, []string{"spec.podNetwork[0]"}},
		"label is a number":        {tenants, with(tenant, "metadata/labels", object{"a": 1}), 400, []string{"metadata.labels[a]"}},
		"trailing JSON":            {tenants, `{"metadata":{"name":"new"}} {}`, 400, nil},
		"trailing text":            {tenants, `{"metadata":{"name":"new"}}x`, 400, nil},
		"field twice":              {tenants, `{"metadata":{"name":"new","name":"old"},"spec":{}}`, 400, nil},
		"no JSON":                  {tenants, `name: new`, 400, nil},
		"a list":                   {tenants, `[]`, 400, nil},
		"null":                     {tenants, `null`, 400, nil},
		"nothing":                  {tenants, ``, 400, nil},
		"bad UTF-8":                {tenants, "{\"metadata\":{\"name\":\"\xff\"}}", 400, nil},
		"deep nesting":             {groups, `{"spec":{"providerConfig":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}}`, 400, nil},
		"10 MB":                    {tenants, `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 10<<20) + `"}}}`, 413, nil},

		"no name":          {tenants, with(tenant, "metadata/name", nil), 400, []string{"metadata.name"}},
		"slash in name":    {tenants, with(tenant, "metadata/name", "a/b"), 400, []string{"metadata.name"}},
		"dots in name":     {tenants, with(tenant, "metadata/name", ".."), 400, nil},
		"name of a route":  {tenants, with(tenant, "metadata/name", "events"), 400, []string{"metadata.name"}},
		"empty spec":       {tenants, object{"metadata": object{"name": "new"}, "spec": object{}}, 400, []string{"spec.talosVersion", "spec.kubernetesVersion"}},
		"unknown Talos":    {tenants, with(tenant, "spec/talosVersion", "2.40.0"), 400, []string{"spec.talosVersion"}},
		"versions unfit":   {tenants, with(tenant, "spec/kubernetesVersion", "1.20.0"), 400, []string{"spec.kubernetesVersion"}},
		"version with v":   {tenants, with(tenant, "spec/kubernetesVersion", "v1.35.0"), 400, []string{"spec.kubernetesVersion"}},
		"networks overlap": {tenants, with(tenant, "spec/serviceNetwork", []string{"10.244.0.0/20"}), 400, []string{"spec.serviceNetwork[0]"}},
		"mapped network":   {tenants, with(tenant, "spec/podNetwork", []string{"::ffff:10.244.0.0/112"}), 400, []string{"spec.podNetwork[0]"}},
		"http endpoint":    {tenants, with(tenant, "spec/controlPlaneEndpoint", "http://x:6443"), 400, []string{"spec.controlPlaneEndpoint"}},
		"userinfo":         {tenants, with(tenant, "spec/controlPlaneEndpoint", "https://a:b@x:6443"), 400, []string{"spec.controlPlaneEndpoint"}},
		"endpoint path":    {tenants, with(tenant, "spec/controlPlaneEndpoint", "https://x:6443/api"), 400, []string{"spec.controlPlaneEndpoint"}},
		"CNI":              {tenants, with(tenant, "spec/plugins", object{"cni": object{"type": "weave"}}), 400, []string{"spec.plugins.cni.type"}},
		"broken patch":     {tenants, with(tenant, "spec/configPatches", patch("machine:\n  nonsense: true\n")), 400, []string{"spec.configPatches[0].patch"}},
		"patch is no YAML": {tenants, with(tenant, "spec/configPatches", patch("machine: [")), 400, []string{"spec.configPatches[0].patch"}},
		"patch is a file":  {tenants, with(tenant, "spec/configPatches", patch("@/etc/passwd")), 400, []string{"spec.configPatches[0].patch"}},
		"second patch unfit": {tenants, with(tenant, "spec/configPatches", patch("machine:\n  sysctls:\n    a: \"1\"\n", "machine:\n  nodeLabels:\n    \"a b\": c\n")),
			400, []string{"spec.configPatches[1].patch"}},
		"operation on nothing": {tenants, with(tenant, "spec/configPatches", patch(`[{"op":"remove","path":"/machine/none"}]`)), 400, []string{"spec.configPatches[0].patch"}},
		"many faults": {tenants, with(with(with(tenant, "metadata/name", "N"), "spec/controlPlaneEndpoint", "x"), "spec/podNetwork", []string{"y"}),
			400, []string{"metadata.name", "spec.controlPlaneEndpoint", "spec.podNetwork[0]"}},
		"finalizer of the server": {tenants, with(tenant, "metadata/finalizers", []string{"rezuscloud.io/mine"}), 400, []string{"metadata.finalizers[0]"}},

		"no role":            {groups, with(worker, "metadata/labels", nil), 400, []string{"metadata.labels[rezuscloud.io/role]"}},
		"no metadata":        {groups, with(worker, "metadata", nil), 400, []string{"metadata.labels[rezuscloud.io/role]"}},
		"role in capitals":   {groups, with(worker, "metadata/labels", object{"rezuscloud.io/role": "Worker"}), 400, []string{"metadata.labels[rezuscloud.io/role]"}},
		"tenant of another":  {groups, with(worker, "metadata/labels", object{"rezuscloud.io/role": "worker", "rezuscloud.io/tenant": "x"}), 400, []string{"metadata.labels[rezuscloud.io/tenant]"}},
		"no count":           {groups, with(worker, "spec/count", nil), 400, []string{"spec.count"}},
		"negative count":     {groups, with(worker, "spec/count", -1), 400, []string{"spec.count"}},
		"huge count":         {groups, with(worker, "spec/count", 1e6), 400, []string{"spec.count"}},
		"endless count":      {groups, with(worker, "spec/count", json.RawMessage("99999999999999999999")), 400, []string{"spec.count"}},
		"half a machine":     {groups, with(worker, "spec/count", 1.5), 400, []string{"spec.count"}},
		"unknown class":      {groups, with(worker, "spec/providerClass", "cloud9"), 400, []string{"spec.providerClass"}},
		"no class":           {groups, with(worker, "spec/providerClass", nil), 400, []string{"spec.providerClass"}},
		"config is a list":   {groups, with(worker, "spec/providerConfig", []int{1}), 400, []string{"spec.providerConfig"}},
		"config key":         {groups, with(worker, "spec/providerConfig", object{"shape": "x"}), 400, []string{"spec.providerConfig.shape"}},
		"config address":     {groups, with(worker, "spec/providerConfig", object{"address": "x y"}), 400, []string{"spec.providerConfig.address"}},
		"address of another": {groups, with(worker, "spec/providerConfig", object{"address": "10.0.0.5:50000"}), 400, []string{"spec.providerConfig.address"}},
		"addresses, count":   {groups, with(worker, "spec/providerConfig", object{"addresses": []string{"10.0.0.7", "10.0.0.8"}}), 400, []string{"spec.providerConfig.addresses"}},
		"selector grammar":   {groups, with(worker, "spec/providerConfig", object{"selector": "a ! b"}), 400, []string{"spec.providerConfig.selector"}},
		"Talos of a group":   {groups, with(worker, "spec/talosVersion", "1.2.0"), 400, []string{"spec.talosVersion"}},

		"no address":     {machines, object{"spec": object{}}, 400, []string{"spec.managementAddress"}},
		"bad address":    {machines, with(machine, "spec/managementAddress", "10.0.0.9:99999"), 400, []string{"spec.managementAddress"}},
		"URL":            {machines, with(machine, "spec/managementAddress", "https://10.0.0.9"), 400, []string{"spec.managementAddress"}},
		"no UUID":        {machines, with(machine, "metadata", object{"name": "node-1"}), 400, []string{"metadata.name"}},
		"tenant's label": {machines, with(machine, "metadata", object{"labels": object{"rezuscloud.io/tenant": "prod"}}), 400, []string{"metadata.labels[rezuscloud.io/tenant]"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := *p
			q.t = t
			before := q.revision()
			reason := map[int]string{400: "BadRequest", 404: "NotFound", 409: "Conflict", 413: "PayloadTooLarge"}[c.status]
			q.post(c.path, c.body).refused(c.status, reason, c.fields...)
			if now := q.revision(); now != before {
				t.Errorf("something was stored: revision went from %d to %d", before, now)
			}
		})
	}
}

func TestAnEndpointsPasswordIsNotEchoed(t *testing.T) {
	p := newPlane(t)
	a := p.post("/api/v1/tenants", with(tenantBody("new"), "spec/controlPlaneEndpoint", "https://root:hunter2@x:6443")).want(400)
	if strings.Contains(string(a.body), "hunter2") {
		t.Errorf("the password is in %s", a.body)
	}
	secret := "machine:\n  token: hunter2\n  nonsense: hunter2\n"
	a = p.post("/api/v1/tenants", with(tenantBody("new"), "spec/configPatches", []object{{"name": "a", "patch": secret}})).want(400)
	if strings.Contains(string(a.body), "hunter2") {
		t.Errorf("the secret is in %s", a.body)
	}
}

func TestGoodPatchesAreTaken(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", with(tenantBody("new"), "spec/configPatches", []object{
		{"name": "merge", "patch": "machine:\n  sysctls:\n    vm.swappiness: \"1\"\n"},
		{"name": "operations", "patch": `[{"op":"add","path":"/machine/sysctls/vm.max_map_count","value":"262144"}]`},
	})).want(201)
	p.post("/api/v1/tenants/new/node-groups", with(groupBody("controlplane", 1), "spec/configPatches", []object{
		{"name": "more", "patch": `[{"op":"replace","path":"/machine/sysctls/vm.max_map_count","value":"1"}]`},
	})).want(201)
	// A node group's patch may build on the tenant's: without it, the change of the tenant is refused.
	body := p.get("/api/v1/tenants/new").object()
	body["spec"].(object)["configPatches"] = []object{}
	p.put("/api/v1/tenants/new", body).refused(400, "BadRequest", "spec.configPatches")
}

func TestRunningTenantsKeepWhatCannotChange(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	p.post("/api/v1/tenants/prod/node-groups", groupBody("worker", 1)).want(201)
	p.patch("/api/v1/tenants/prod", object{"spec": object{"kubernetesVersion": "1.34.0", "podNetwork": []string{"10.50.0.0/16"}}}).want(200)
	p.bind(p.machine("10.0.0.9"), "prod", "prod-worker", "worker")
	p.patch("/api/v1/tenants/prod", object{"spec": object{"kubernetesVersion": "1.35.0", "podNetwork": []string{"10.51.0.0/16"}}}).
		refused(400, "BadRequest", "spec.kubernetesVersion", "spec.podNetwork")
	p.patch("/api/v1/tenants/prod", object{"spec": object{"controlPlaneEndpoint": "https://other:6443"}}).want(200)
	group := "/api/v1/tenants/prod/node-groups/prod-worker"
	p.patch(group, object{"spec": object{"talosVersion": "1.12.0"}}).refused(400, "BadRequest", "spec.talosVersion")
	p.patch(group, object{"metadata": object{"labels": object{"rezuscloud.io/role": "controlplane"}}}).
		refused(400, "BadRequest", "metadata.labels[rezuscloud.io/role]")
	p.patch(group, object{"metadata": object{"labels": object{"rezuscloud.io/role": nil}}}).
		refused(400, "BadRequest", "metadata.labels[rezuscloud.io/role]")
	p.patch(group, object{"spec": object{"count": 4}}).want(200)
	p.delete("/api/v1/tenants/prod").want(200)
	p.patch(group, object{"spec": object{"count": 5}}).refused(400, "BadRequest", "spec")
	p.patch("/api/v1/tenants/prod", object{"spec": object{"controlPlaneEndpoint": "https://third:6443"}}).refused(400, "BadRequest", "spec")
}
