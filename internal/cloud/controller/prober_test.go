package controller

import (
	"crypto/x509"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/talosim"
)

func certPool(pem []byte) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(pem)
	return p
}

func ready(s cloud.MachineStatus) bool {
	return s.Connected && s.Ready && s.Stage == cloud.StageReady && s.ConfigUpToDate
}

func TestAnUnassignedMachineTellsItsHardware(t *testing.T) {
	r := newRig(t)
	m := r.machines(1)[0]
	r.start()
	s := r.untilMachine(m, "initializing in maintenance", func(s cloud.MachineStatus) bool {
		return s.Connected && s.Maintenance && s.Stage == cloud.StageInitializing
	})
	if s.Ready || s.ConfigUpToDate || s.Role != "" || s.LastError != "" {
		t.Errorf("status %+v", s)
	}
	h := s.Hardware
	if h.UUID != m.State().UUID || len(h.Processors) != 1 || h.Processors[0].CoreCount != 4 || len(h.MemoryModules) != 1 ||
		h.MemoryModules[0].SizeMB != 8192 || len(h.BlockDevices) == 0 || h.BlockDevices[0].Size != 64<<30 {
		t.Errorf("hardware %+v", h)
	}
	if !slices.Contains(s.Network.Addresses, m.Address().String()) || s.TalosVersion != "1.12.6" {
		t.Errorf("network %+v, talos %q", s.Network, s.TalosVersion)
	}
}

func TestATenantFormsServesAndNoticesLostMachines(t *testing.T) {
	r := newRig(t)
	r.timeout = 3 * time.Second
	c := r.declare("prod", r.machines(3), 1)
	r.start()
	r.untilTenant("prod", "forming", func(s cloud.TenantStatus) bool {
		return s.Phase == cloud.PhaseForming && !s.Available && s.Machines.Total == 3 && s.Machines.Connected == 3
	})
	r.configure(c)
	for _, m := range append(c.cp, c.w...) {
		r.untilMachine(m, "configuring while its secrets are not known", func(s cloud.MachineStatus) bool {
			return s.Stage == cloud.StageConfiguring && s.Connected && !s.Maintenance
		})
	}
	r.secrets.publish("prod", c.secrets)
	s := r.untilTenant("prod", "active and ready", func(s cloud.TenantStatus) bool {
		return s.Phase == cloud.PhaseActive && s.Ready && s.Available && s.APIReady && s.ControlPlaneReady
	})
	if s.Machines != (cloud.MachineCounts{Total: 3, Healthy: 3, Connected: 3}) || s.KubernetesVersion != "1.35.0" || s.TalosVersion != "1.12.6" {
		t.Errorf("status %+v", s)
	}
	for _, m := range append(c.cp, c.w...) {
		got := r.untilMachine(m, "ready", ready)
		if got.BootID != m.State().BootID || got.Network.Hostname != m.State().Hostname || string(got.Role) != m.State().Role || got.KubernetesVersion != "1.35.0" {
			t.Errorf("%+v; the machine is %+v", got, m.State())
		}
	}

	for _, fault := range []talosim.FaultKind{talosim.NetworkRefuse, talosim.NetworkHang} {
		lost := c.w[0]
		if err := lost.Inject(talosim.Fault{Kind: fault}); err != nil {
			t.Fatal(err)
		}
		r.untilTenant("prod", "forming because a machine is away", func(s cloud.TenantStatus) bool {
			return s.Phase == cloud.PhaseForming && !s.Ready && s.APIReady && s.ControlPlaneReady && s.Machines.Healthy == 2 &&
				slices.ContainsFunc(s.Conditions, func(c cloud.Condition) bool {
					return c.Type == cloud.ConditionMachinesUnreachable && c.Status == cloud.ConditionTrue && strings.Contains(c.Message, lost.Address().String())
				})
		})
		r.untilMachine(lost, "away, with its last stage", func(s cloud.MachineStatus) bool {
			return !s.Connected && !s.Ready && s.Stage == cloud.StageReady && s.LastError != "" && s.DisconnectedAt != nil
		})
		if err := lost.Clear(""); err != nil {
			t.Fatal(err)
		}
		r.untilTenant("prod", "active again", func(s cloud.TenantStatus) bool {
			return s.Phase == cloud.PhaseActive && s.Ready && s.Conditions[0].Status == cloud.ConditionFalse
		})
	}

	if err := c.cp[0].Inject(talosim.Fault{Kind: talosim.NetworkRefuse}); err != nil {
		t.Fatal(err)
	}
	r.untilTenant("prod", "without its API", func(s cloud.TenantStatus) bool { return !s.Available && !s.APIReady && !s.ControlPlaneReady })
}

func TestNothingIsWrittenWhenNothingChanges(t *testing.T) {
	r := newRig(t)
	machines := r.machines(4)
	c := r.declare("prod", machines[:2], 1)
	r.secrets.publish("prod", c.secrets)
	r.start()
	r.configure(c)
	r.untilTenant("prod", "ready", func(s cloud.TenantStatus) bool { return s.Ready })
	for _, m := range machines[:2] {
		r.untilMachine(m, "ready", ready)
	}
	for _, m := range machines[2:] {
		r.untilMachine(m, "in maintenance", func(s cloud.MachineStatus) bool { return s.Maintenance })
	}
	// Whatever was still settling has settled when a few rounds of polls have left no trace.
	var before int64
	eventually(t, func() string {
		before = r.revision()
		r.rounds(20)
		if r.revision() == before {
			return ""
		}
		return "the store still changes"
	})
	r.rounds(50)
	if after := r.revision(); after != before {
		t.Errorf("the store went from revision %d to %d", before, after)
	}
}

func TestAMachineOfAnotherClusterIsNotTaken(t *testing.T) {
	r := newRig(t)
	machines := r.machines(2)
	theirs := r.declare("theirs", machines[:1], 1)
	r.configure(theirs)
	r.update(func(tx store.Tx) error {
		m, err := cloud.Machines.Get(tx, "m-"+machines[0].Address().String())
		if err != nil {
			return err
		}
		m.Labels = nil
		return cloud.Machines.Update(tx, m)
	})
	r.start()
	r.untilMachine(machines[0], "unassigned and not ours", func(s cloud.MachineStatus) bool {
		return !s.Connected && strings.Contains(s.LastError, "belongs to a cluster that is not managed here")
	})
	ours := r.declare("ours", machines, 2)
	r.secrets.publish("ours", ours.secrets)
	r.untilMachine(machines[0], "another cluster's", func(s cloud.MachineStatus) bool {
		return !s.Connected && strings.Contains(s.LastError, "another cluster")
	})
	r.untilTenant("ours", "naming it", func(s cloud.TenantStatus) bool {
		return len(s.Conditions) == 1 && strings.Contains(s.Conditions[0].Message, machines[0].Address().String())
	})
}

func TestResetAndRebootShowInStageAndBootID(t *testing.T) {
	r := newRig(t)
	c := r.declare("prod", r.machines(2), 1)
	r.secrets.publish("prod", c.secrets)
	r.start()
	r.configure(c)
	boot := r.untilMachine(c.w[0], "ready", ready).BootID
	if err := r.secured(c, c.w[0]).Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.untilMachine(c.w[0], "ready after a reboot", func(s cloud.MachineStatus) bool { return ready(s) && s.BootID != boot && s.BootID != "" })

	members, err := r.secured(c, c.cp[0]).EtcdMembers(t.Context())
	if err != nil || len(members) != 1 || members[0].Name != c.cp[0].State().Hostname {
		t.Errorf("members %+v, %v", members, err)
	}
	if err := r.secured(c, c.w[0]).Reset(t.Context(), machineapi.ResetOptions{Reboot: true}); err != nil {
		t.Fatal(err)
	}
	r.untilMachine(c.w[0], "in maintenance after a reset", func(s cloud.MachineStatus) bool {
		return s.Maintenance && s.Stage == cloud.StageInitializing && s.Role == "" && s.BootID == "" && !s.ConfigUpToDate
	})
	r.untilTenant("prod", "forming", func(s cloud.TenantStatus) bool { return s.Phase == cloud.PhaseForming && s.APIReady })
}

func TestADifferentConfigurationIsNotUpToDate(t *testing.T) {
	r := newRig(t)
	c := r.declare("prod", r.machines(2), 1)
	r.secrets.publish("prod", c.secrets)
	r.start()
	r.configure(c)
	for _, m := range []*talosim.Machine{c.cp[0], c.w[0]} {
		r.untilMachine(m, "ready", ready)
	}
	r.update(func(tx store.Tx) error {
		g, err := cloud.NodeGroups.Get(tx, "prod/w")
		if err != nil {
			return err
		}
		g.Spec.ConfigPatches = []cloud.InlinePatch{{Name: "labels", Patch: "machine:\n  nodeLabels:\n    tier: gold\n"}}
		return cloud.NodeGroups.Update(tx, g)
	})
	r.untilMachine(c.w[0], "ready with another configuration", func(s cloud.MachineStatus) bool { return s.Ready && !s.ConfigUpToDate })
	if s := r.machine(c.cp[0]).Status; !s.ConfigUpToDate {
		t.Error("the other group's machine is not up to date either")
	}
}

func TestAForgottenMachineLeavesNothingBehind(t *testing.T) {
	r := newRig(t)
	m := r.machines(1)[0]
	r.start()
	r.untilMachine(m, "seen", func(s cloud.MachineStatus) bool { return s.Maintenance })
	r.update(func(tx store.Tx) error {
		_, err := tx.Delete(cloud.Machines.Kind.Name, "m-"+m.Address().String(), 0)
		return err
	})
	eventually(t, func() string {
		r.prober.mu.Lock()
		defer r.prober.mu.Unlock()
		if len(r.prober.sessions) > 0 {
			return "the session is still there"
		}
		return ""
	})
}

// inUse is how much memory heap and stacks take, in bytes.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func TestManyMachinesTakeBoundedGoroutinesAndMemory(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 30
	}
	r := newRig(t)
	// A hundred handshakes at once take a small machine a while.
	r.timeout, r.interval, r.fast = 5*time.Second, 2*time.Second, time.Second
	machines := r.machines(n)
	for _, m := range machines {
		eventually(t, func() string {
			if m.State().Stage != "maintenance" {
				return "the machine boots"
			}
			return ""
		})
	}
	goroutines, memory := runtime.NumGoroutine(), inUse()
	r.start()
	for _, m := range machines {
		r.untilMachine(m, "seen", func(s cloud.MachineStatus) bool { return s.Maintenance })
	}
	// The simulated side of each connection counts as well.
	took, kib := runtime.NumGoroutine()-goroutines, (inUse()-memory)/int64(n)/1024
	t.Logf("%d machines and their simulation take %d goroutines, and %d KiB each", n, took, kib)
	if took > 64+30*n || kib > 512 {
		t.Error("that is too many, or too much")
	}
	for _, m := range machines[:n/2] {
		if err := m.Inject(talosim.Fault{Kind: talosim.NetworkHang}); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range machines[:n/2] {
		r.untilMachine(m, "away", func(s cloud.MachineStatus) bool { return !s.Connected })
	}
	for _, m := range machines[n/2:] {
		r.untilMachine(m, "not held up by the others", func(s cloud.MachineStatus) bool { return s.Connected })
	}
	for _, m := range machines[:n/2] {
		if err := m.Clear(""); err != nil {
			t.Fatal(err)
		}
		r.untilMachine(m, "back", func(s cloud.MachineStatus) bool { return s.Connected && s.LastError == "" })
	}
}
