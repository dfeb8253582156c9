package api_test

import (
	"fmt"
	"sync"
	"testing"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/api"
	"freehold.dev/freehold/internal/kernel/store"
)

// hooked runs a function before a check, as somebody else does in the time that it takes.
type hooked struct {
	cloud.TalosRules
	mu     sync.Mutex
	checks int
	before func(n int)
}

func (h *hooked) CheckConfig(c cloud.ConfigCheck) error {
	h.mu.Lock()
	h.checks++
	n, before := h.checks, h.before
	h.mu.Unlock()
	if before != nil {
		before(n)
	}
	return h.TalosRules.CheckConfig(c)
}

func (p *plane) setPatches(tenant string, patches ...cloud.InlinePatch) {
	p.t.Helper()
	p.update(func(tx store.Tx) error {
		t, err := cloud.Tenants.Get(tx, tenant)
		if err != nil {
			return err
		}
		t.Spec.ConfigPatches = patches
		return cloud.Tenants.Update(tx, t)
	})
}

const needsSwappiness = `[{"op":"replace","path":"/machine/sysctls/vm.swappiness","value":"2"}]`

func swappiness(n int) cloud.InlinePatch {
	return cloud.InlinePatch{Name: "swappiness", Patch: fmt.Sprintf("machine:\n  sysctls:\n    vm.swappiness: \"%d\"\n", n)}
}

func TestWhatIsStoredWasCheckedAgainstWhatSurroundsIt(t *testing.T) {
	rules := &hooked{TalosRules: api.TalosRules{}}
	p := newPlane(t, func(c *api.Config) { c.Rules.Talos = rules })
	p.post("/api/v1/tenants", tenantBody("prod")).want(201)
	group := with(groupBody("worker", 1), "spec/configPatches", []object{{"name": "a", "patch": needsSwappiness}})
	groups := "/api/v1/tenants/prod/node-groups"

	// While the node group is checked, the patch that it builds on is taken away.
	p.setPatches("prod", swappiness(1))
	rules.before = func(n int) {
		if n == 1 {
			p.setPatches("prod")
		}
	}
	p.post(groups, group).refused(400, "BadRequest", "spec.configPatches[0].patch")

	// While it is checked, another patch comes with which it still fits.
	p.setPatches("prod", swappiness(1))
	rules.checks, rules.before = 0, func(n int) {
		if n == 1 {
			p.setPatches("prod", swappiness(7))
		}
	}
	p.post(groups, group).want(201)

	// A tenant that never rests is given up on.
	rules.checks, rules.before = 0, func(n int) { p.setPatches("prod", swappiness(100+n)) }
	p.post(groups, group).refused(409, "Conflict")
}

func TestUnchangedSpecsAreNotCheckedAgain(t *testing.T) {
	rules := &hooked{TalosRules: api.TalosRules{}}
	p := newPlane(t, func(c *api.Config) { c.Rules.Talos = rules })
	body := tenantBody("prod")
	body["spec"].(object)["configPatches"] = []object{{"name": "a", "patch": swappiness(1).Patch}}
	p.post("/api/v1/tenants", body).want(201)
	checks := rules.checks
	p.touch("/api/v1/tenants/prod")
	p.post("/api/v1/tenants/prod/node-groups", groupBody("worker", 1)).want(201)
	if rules.checks != checks {
		t.Errorf("%d checks for nothing", rules.checks-checks)
	}
}
