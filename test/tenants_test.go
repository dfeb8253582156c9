package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// create declares a tenant with its control-plane and worker groups.
func (p *plane) create(t *testing.T, name string, controlPlanes, workers int) {
	t.Helper()
	p.want(http.StatusCreated, "POST", "/api/v1/tenants",
		fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"kubernetesVersion":"1.35.0","talosVersion":"1.12.6"}}`, name))
	for role, count := range map[string]int{"controlplane": controlPlanes, "worker": workers} {
		if count > 0 {
			p.want(http.StatusCreated, "POST", "/api/v1/tenants/"+name+"/node-groups",
				fmt.Sprintf(`{"metadata":{"labels":{"rezuscloud.io/role":%q}},"spec":{"count":%d,"providerClass":"metal"}}`, role, count))
		}
	}
}

// change reads an object, changes its spec, and puts it, until nobody came in between.
func (p *plane) change(t *testing.T, path string, change func(spec map[string]any)) {
	t.Helper()
	eventually(t, "PUT "+path, func() string {
		o := p.want(http.StatusOK, "GET", path, "")
		change(o["spec"].(map[string]any))
		status, data := p.call("PUT", path, o.json())
		switch status {
		case http.StatusOK:
			return ""
		case http.StatusConflict:
			return string(data)
		}
		t.Fatalf("PUT %s: %d %s", path, status, data)
		return ""
	})
}

// apply is one entry of a tenant's history of applies.
type apply struct {
	ID       string    `json:"id"`
	Result   string    `json:"result"`
	Started  time.Time `json:"startedAt"`
	Finished time.Time `json:"finishedAt"`
}

func (p *plane) applies(t *testing.T, tenant string) []apply {
	t.Helper()
	status, data := p.call("GET", "/api/v1/tenants/"+tenant+"/applies", "")
	if status != http.StatusOK {
		t.Fatalf("applies of %s: %d %s", tenant, status, data)
	}
	var list struct{ Items []apply }
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestTenTenantsAtOnceConverge(t *testing.T) {
	const tenants = 10
	sim := startSim(t, 3*tenants)
	p := startPlane(t, t.TempDir())
	p.register(t, sim.addresses)
	for i := range tenants {
		p.create(t, fmt.Sprintf("t%d", i), 1, 2)
	}
	var all [][]apply
	for i := range tenants {
		name := fmt.Sprintf("t%d", i)
		p.untilActive(t, name, 3)
		all = append(all, p.applies(t, name))
	}
	overlap := func(a, b apply) bool { return a.Started.Before(b.Finished) && b.Started.Before(a.Finished) }
	across := 0
	for i, mine := range all {
		for k, a := range mine {
			if slices.ContainsFunc(mine[k+1:], func(b apply) bool { return overlap(a, b) }) {
				t.Errorf("two applies of tenant t%d overlap: %+v", i, mine)
			}
			for _, others := range all[i+1:] {
				for _, b := range others {
					if overlap(a, b) {
						across++
					}
				}
			}
		}
	}
	if across == 0 {
		t.Error("no two applies of different tenants overlap")
	}
	for i := range tenants {
		p.want(http.StatusOK, "DELETE", fmt.Sprintf("/api/v1/tenants/t%d", i), "")
	}
	for i := range tenants {
		p.untilGone(t, fmt.Sprintf("t%d", i))
	}
	for _, m := range sim.machines(t) {
		if m.Stage != "maintenance" {
			t.Errorf("machine %s was not reset: %+v", m.Address, m)
		}
	}
}

func TestScalingAndEndpointTouchOnlyWhatTheyMust(t *testing.T) {
	sim := startSim(t, 6)
	p := startPlane(t, t.TempDir())
	p.register(t, sim.addresses)
	p.create(t, "prod", 1, 2)
	p.untilActive(t, "prod", 3)
	boots := p.bootIDs(t, sim, "prod")

	// Up: the machines that were there are not touched.
	p.change(t, "/api/v1/tenants/prod/node-groups/prod-worker", func(spec map[string]any) { spec["count"] = 3 })
	p.change(t, "/api/v1/tenants/prod/node-groups/prod-control-plane", func(spec map[string]any) { spec["count"] = 3 })
	p.untilActive(t, "prod", 6)
	after := p.bootIDs(t, sim, "prod")
	for address, id := range boots {
		if after[address] != id {
			t.Errorf("machine %s was restarted by a scale-up", address)
		}
	}

	// Another endpoint: no machine is reset or replaced.
	resets := 0
	for _, m := range sim.machines(t) {
		resets += m.Resets
	}
	var kubeconfig []byte
	for _, slot := range []string{"1", "0"} {
		endpoint := "https://" + p.addressOf(t, "prod", "controlplane", slot) + ":6443"
		p.change(t, "/api/v1/tenants/prod", func(spec map[string]any) { spec["controlPlaneEndpoint"] = endpoint })
		p.untilApplied(t, sim, "prod", endpoint)
		p.untilActive(t, "prod", 6)
		var status int
		status, kubeconfig = p.call("GET", "/api/v1/tenants/prod/kubeconfig", "")
		if status != http.StatusOK || !strings.Contains(string(kubeconfig), endpoint) {
			t.Errorf("the kubeconfig names the endpoint %s: %d", endpoint, status)
		}
		if out := kubectl(t, kubeconfig, "get", "nodes", "--no-headers"); strings.Count(out, " Ready ") != 6 {
			t.Errorf("six nodes are Ready at %s, kubectl sees:\n%s", endpoint, out)
		}
	}
	now := 0
	for _, m := range sim.machines(t) {
		now += m.Resets
	}
	if now != resets {
		t.Errorf("%d machines were reset by a change of the endpoint", now-resets)
	}

	// Down: the highest slots go, control planes one at a time, and are reset once each.
	p.change(t, "/api/v1/tenants/prod/node-groups/prod-control-plane", func(spec map[string]any) { spec["count"] = 1 })
	p.change(t, "/api/v1/tenants/prod/node-groups/prod-worker", func(spec map[string]any) { spec["count"] = 1 })
	p.untilActive(t, "prod", 2)
	now = 0
	for _, m := range sim.machines(t) {
		now += m.Resets
	}
	if now != resets+4 {
		t.Errorf("four machines were removed, and %d were reset", now-resets)
	}
	if out := kubectl(t, kubeconfig, "get", "--raw", "/readyz"); strings.TrimSpace(out) != "ok" {
		t.Errorf("the cluster is well after the scale-down: %s", out)
	}
}

// bootIDs of a tenant's machines by address.
func (p *plane) bootIDs(t *testing.T, sim *simulator, tenant string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, m := range sim.machines(t) {
		all[m.Address] = m.BootID
	}
	out := map[string]string{}
	for _, m := range p.want(http.StatusOK, "GET", "/api/v1/tenants/"+tenant+"/machines", "").items() {
		host, _, _ := strings.Cut(m.str("spec.managementAddress"), ":")
		out[host] = all[host]
	}
	return out
}

// untilApplied waits until every machine of a tenant has the endpoint in its configuration.
func (p *plane) untilApplied(t *testing.T, sim *simulator, tenant, endpoint string) {
	t.Helper()
	eventually(t, "machines have the endpoint "+endpoint, func() string {
		mine := p.bootIDs(t, sim, tenant)
		for _, m := range sim.machines(t) {
			if _, ok := mine[m.Address]; ok && m.Endpoint != endpoint {
				return fmt.Sprintf("%s has %q", m.Address, m.Endpoint)
			}
		}
		return ""
	})
}

// addressOf is the address of a tenant's machine of a role in a slot.
func (p *plane) addressOf(t *testing.T, tenant, role, slot string) string {
	t.Helper()
	list := p.want(http.StatusOK, "GET", "/api/v1/tenants/"+tenant+"/machines?labelSelector=rezuscloud.io/role%3D"+role, "").items()
	for _, m := range list {
		annotations, _ := m.at("metadata.annotations").(map[string]any)
		if annotations["rezuscloud.io/slot"] == slot {
			host, _, _ := strings.Cut(m.str("spec.managementAddress"), ":")
			return host
		}
	}
	t.Fatalf("tenant %s has no %s in slot %s", tenant, role, slot)
	return ""
}

func TestAMachineThatNeverAnswersHoldsUpNobodyElse(t *testing.T) {
	sim := startSim(t, 6)
	p := startPlane(t, t.TempDir(), "--unreachable-after", "1s", "--apply-parallel", "1") // with one place, whoever waits in it holds up all others
	dead := sim.addresses[0]
	sim.fault(t, dead, `{"kind":"network-hang"}`)
	p.want(http.StatusCreated, "POST", "/api/v1/tenants", `{"metadata":{"name":"stuck"},"spec":{"kubernetesVersion":"1.35.0","talosVersion":"1.12.6"}}`)
	p.want(http.StatusCreated, "POST", "/api/v1/tenants/stuck/node-groups",
		fmt.Sprintf(`{"metadata":{"labels":{"rezuscloud.io/role":"controlplane"}},"spec":{"count":1,"providerClass":"metal","providerConfig":{"address":%q}}}`, dead+":50000"))
	p.register(t, sim.addresses[1:])
	p.create(t, "well", 1, 2)
	p.untilActive(t, "well", 3)
	eventually(t, "the condition names the machine", func() string {
		o := p.want(http.StatusOK, "GET", "/api/v1/tenants/stuck", "")
		conditions, _ := json.Marshal(o.at("status.conditions"))
		if o.str("status.phase") == "forming" && strings.Contains(string(conditions), "MachinesUnreachable") && strings.Contains(string(conditions), dead) {
			return ""
		}
		return o.json()
	})
	sim.fault(t, dead, "")
	p.untilActive(t, "stuck", 1)
}
