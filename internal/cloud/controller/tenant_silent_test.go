package controller

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/talosim"
)

// patch gives a tenant a configuration patch that sets a sysctl, in place of the one before.
func (r *region) patch(tenant, value string) {
	r.Helper()
	r.update(func(tx store.Tx) error {
		t, err := cloud.Tenants.Get(tx, tenant)
		if err != nil {
			return err
		}
		t.Spec.ConfigPatches = []cloud.InlinePatch{{Name: "sysctl", Patch: "machine:\n  sysctls:\n    vm.swappiness: \"" + value + "\"\n"}}
		return cloud.Tenants.Update(tx, t)
	})
}

// simulated is the simulated machine behind a bound one.
func (r *region) simulated(m *cloud.Machine) *talosim.Machine {
	return r.sim.Machine(netip.MustParseAddr(m.Spec.ManagementAddress))
}

func (r *region) has(m *cloud.Machine, value string) bool {
	return strings.Contains(string(r.simulated(m).Config()), "vm.swappiness: \""+value+"\"")
}

// says: a tenant's condition Applied is False for the reason, and its message names what is given.
func (r *region) says(tenant, reason, name string) func() bool {
	return func() bool {
		for _, c := range r.look(tenant).tenant.Status.Conditions {
			if c.Type == cloud.ConditionApplied {
				return c.Status == cloud.ConditionFalse && c.Reason == reason && strings.Contains(c.Message, name)
			}
		}
		return false
	}
}

func (r *region) inject(m *cloud.Machine, f talosim.Fault) {
	r.Helper()
	if err := r.simulated(m).Inject(f); err != nil {
		r.Fatal(err)
	}
	r.until(m.Spec.ManagementAddress+" is found silent", func() bool {
		for _, now := range r.look(m.Labels[cloud.LabelTenant]).machines {
			if now.Name == m.Name {
				return away(now)
			}
		}
		return false
	})
}

func (r *region) clear(m *cloud.Machine) {
	r.Helper()
	if err := r.simulated(m).Clear(""); err != nil {
		r.Fatal(err)
	}
}

func TestSilentMachineIsLeftAsItIsUntilItAnswers(t *testing.T) {
	r := newRegion(t, nil)
	r.register(3)
	r.createTenant("prod", 1, 2)
	r.until("prod is active", r.settled("prod", 3))
	first := r.look("prod")
	cp, silent := first.machines[0], first.machines[2]

	r.inject(silent, talosim.Fault{Kind: talosim.NetworkHang})
	r.patch("prod", "7")
	r.until("the change is where a machine answers, and the silent one is named", func() bool {
		return r.has(cp, "7") && r.says("prod", "Waiting", silent.Name)()
	})
	if r.look("prod").record.Failures > 0 {
		t.Error("the apply waited for the silent machine, and failed")
	}
	r.clear(silent)
	r.until("the change is everywhere", func() bool { return r.settled("prod", 3)() && r.has(silent, "7") })

	r.inject(silent, talosim.Fault{Kind: talosim.NetworkRefuse})
	r.scale("prod", "w", 1)
	r.until("the removal waits for the silent machine", r.says("prod", "Waiting", silent.Name))
	if len(r.look("prod").machines) != 3 {
		t.Error("a machine was let go that was not reset")
	}
	r.clear(silent)
	r.until("it is removed", func() bool { return r.settled("prod", 2)() && r.simulated(silent).Config() == nil })

	worker := first.machines[1]
	r.inject(worker, talosim.Fault{Kind: talosim.NetworkHang})
	r.delete(cloud.Tenants.Kind.Name, "prod")
	r.until("all others are reset, and the silent one is named", func() bool {
		return r.simulated(cp).Config() == nil && r.says("prod", "TeardownWaits", worker.Name)()
	})
	r.clear(worker)
	r.until("prod is gone", func() bool { return r.look("prod") == nil })
	r.until("all machines are in maintenance mode", r.idle)
}

func TestRunThatWaitsForAMachineGivesItsPlaceToOthers(t *testing.T) {
	r := newRegion(t, func(c *apply.Config) { c.MaxParallel = 1 })
	addrs := r.register(2)
	slow := r.sim.Machine(addrs[0])
	if err := slow.Inject(talosim.Fault{Kind: talosim.SlowBoot, Delay: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	group := func(tenant string, a netip.Addr) {
		r.createTenant(tenant, 0, 0)
		r.update(func(tx store.Tx) error {
			return createGroup(tx, tenant, "fixed", cloud.RoleControlPlane, 1, []byte(`{"address":"`+a.String()+`"}`))
		})
	}
	group("slow", addrs[0])
	r.until("slow has the only place, and its machine boots", func() bool { return r.look("slow").record.Run != nil && slow.Config() != nil })
	if err := slow.Inject(talosim.Fault{Kind: talosim.NetworkHang}); err != nil {
		t.Fatal(err)
	}
	group("fast", addrs[1])
	r.until("fast is active", r.settled("fast", 1))
	if err := slow.Clear(""); err != nil {
		t.Fatal(err)
	}
	r.until("slow is active", r.settled("slow", 1))
}
