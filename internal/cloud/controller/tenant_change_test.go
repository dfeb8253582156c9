package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/talosim"
)

func TestControlPlaneShrinksOneMemberAtATime(t *testing.T) {
	r := newRegion(t, nil)
	r.register(3)
	r.createTenant("prod", 3, 0)
	r.until("prod is active", r.settled("prod", 3))
	bootstrap := r.look("prod").record.BootstrapNode
	before, err := r.applier.Applies(t.Context(), "prod", 100)
	if err != nil {
		t.Fatal(err)
	}

	r.scale("prod", "cp", 1)
	most := 0
	r.until("one control-plane machine is left", func() bool {
		if w := r.look("prod"); w != nil {
			most = max(most, len(w.record.Removing))
		}
		return r.settled("prod", 1)()
	})
	if most != 1 {
		t.Errorf("%d control-plane machines were on the list at one time", most)
	}
	w := r.look("prod")
	if slotOf(w.machines[0]) != "cp-0" || w.machines[0].Spec.ManagementAddress != bootstrap {
		t.Errorf("%s stays", slotOf(w.machines[0]))
	}
	members, err := talosMembers{r.applier}.List(t.Context(), "prod", w.machines[0])
	if err != nil || len(members) != 1 {
		t.Errorf("etcd has members %v, %v", members, err)
	}
	applies, err := r.applier.Applies(t.Context(), "prod", 100)
	if err != nil {
		t.Fatal(err)
	}
	destroyed := 0
	for _, a := range applies[:len(applies)-len(before)] {
		// A machine that stays and was silent for a moment is the reason for one more, which finds nothing to do.
		if again := a.Trigger == "other machines answer now"; a.Plan.Destroy > 1 || a.Plan.Destroy == 0 && !again || a.Plan.Add != 0 || a.Plan.Change != 0 {
			t.Errorf("an apply of the scale-down: %+v", a)
		}
		destroyed += a.Plan.Destroy
	}
	if destroyed != 2 {
		t.Errorf("the scale-down destroyed %d machines", destroyed)
	}
}

func TestMachineThatRebootsWhileItIsRemovedLeavesNoMemberBehind(t *testing.T) {
	r := newRegion(t, nil)
	r.register(3)
	r.createTenant("prod", 3, 0)
	r.until("prod is active", r.settled("prod", 3))
	leaving := map[*talosim.Machine]string{} // their members, until they have left once
	for _, m := range r.look("prod").machines[1:] {
		a, err := cloud.ParseMachineAddress(m.Spec.ManagementAddress)
		if err != nil {
			t.Fatal(err)
		}
		sm := r.sim.Machine(netip.MustParseAddr(a.Host))
		leaving[sm] = sm.State().EtcdMember
	}
	r.scale("prod", "cp", 1)
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for len(leaving) > 0 && watching.Err() == nil {
			for m, member := range leaving {
				if m.State().EtcdMember != member {
					m.PowerCycle()
					delete(leaving, m)
				}
			}
			<-time.After(time.Millisecond)
		}
	}()
	r.until("one control-plane machine is left", r.settled("prod", 1))
	members, err := talosMembers{r.applier}.List(t.Context(), "prod", r.look("prod").machines[0])
	if err != nil || len(members) != 1 {
		t.Errorf("etcd has members %v, %v", members, err)
	}
	if s := r.look("prod").tenant.Status; !s.Ready || !s.APIReady {
		t.Errorf("prod is %+v", s)
	}
}

func TestDeletedMachineIsReplaced(t *testing.T) {
	r := newRegion(t, nil)
	r.register(3)
	r.createTenant("prod", 1, 1)
	r.until("prod is active", r.settled("prod", 2))
	old := r.look("prod").members("w")[0]
	r.delete(cloud.Machines.Kind.Name, old.Name)
	r.until("another machine is in its place", func() bool {
		w := r.look("prod")
		return r.settled("prod", 2)() && w.members("w")[0].Name != old.Name
	})
	if m := r.sim.Machine(netip.MustParseAddr(old.Spec.ManagementAddress)); m.Config() != nil {
		t.Error("the deleted machine was not reset")
	}
	for _, m := range r.unassigned() {
		if m.Name == old.Name {
			t.Error("the deleted machine is still registered")
		}
	}
	r.update(func(tx store.Tx) error {
		a, _ := cloud.ParseMachineAddress(old.Spec.ManagementAddress)
		return tx.Claim(cloud.ClaimMachineAddress, a.String(), "somebody else")
	})
}

func TestClusterMovesToAnotherAddressWithItsData(t *testing.T) {
	r := newRegion(t, nil)
	addrs := r.register(2)
	config := func(i int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"address":%q}`, addrs[i])) }
	r.createTenant("prod", 0, 0)
	r.update(func(tx store.Tx) error { return createGroup(tx, "prod", "one", cloud.RoleControlPlane, 1, config(0)) })
	r.until("prod is active", r.settled("prod", 1))
	cluster := func(i int) string { return r.sim.Machine(addrs[i]).State().ClusterName }
	name := cluster(0)
	r.update(func(tx store.Tx) error {
		g, err := cloud.NodeGroups.Get(tx, cloud.SubName("prod", "one"))
		if err != nil {
			return err
		}
		g.Spec.ProviderConfig = config(1)
		return cloud.NodeGroups.Update(tx, g)
	})
	both := false
	r.until("prod is at the other address", func() bool {
		a, b := r.sim.Machine(addrs[0]).State().EtcdMember, r.sim.Machine(addrs[1]).State().EtcdMember
		both = both || a != "" && b != ""
		w := r.look("prod")
		return r.settled("prod", 1)() && w.machines[0].Spec.ManagementAddress == addrs[1].String()
	})
	if !both {
		t.Error("the second machine did not join etcd before the first had left: the cluster's data is lost")
	}
	if w := r.look("prod"); w.record.Endpoint != endpointAt(w.machines[0]) || !w.tenant.Status.Available {
		t.Errorf("endpoint %s, %+v", w.record.Endpoint, w.tenant.Status)
	}
	if cluster(1) != name || r.sim.Machine(addrs[0]).Config() != nil {
		t.Error("the first machine was not given back")
	}
}

func TestSilentMachineHoldsUpNobody(t *testing.T) {
	r := newRegion(t, nil)
	addrs, err := talosim.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	silent := addrs[0].String()
	r.register(4)
	r.createTenant("a", 1, 0)
	r.update(func(tx store.Tx) error {
		config := json.RawMessage(fmt.Sprintf(`{"address":%q}`, silent))
		return createGroup(tx, "a", "dead", cloud.RoleWorker, 1, config)
	})
	r.createTenant("b", 1, 2)
	r.until("b is active", r.settled("b", 3))
	r.until("a has its control plane, is forming, and names the silent machine", func() bool {
		w := r.look("a")
		s := w.tenant.Status
		for _, c := range s.Conditions {
			if c.Type == cloud.ConditionMachinesUnreachable && c.Status == cloud.ConditionTrue && strings.Contains(c.Message, silent) {
				return s.Phase == cloud.PhaseForming && s.ControlPlaneReady && s.Available
			}
		}
		return false
	})
	// It answers after all.
	if _, err := r.sim.Add(talosim.MachineSpec{Address: addrs[0]}); err != nil {
		t.Fatal(err)
	}
	r.until("a is active", r.settled("a", 2))
	r.delete(cloud.Tenants.Kind.Name, "a")
	r.until("a is gone", func() bool { return r.look("a") == nil })
	for _, m := range r.unassigned() {
		if m.Spec.ManagementAddress == silent {
			t.Error("a machine that exists only because a node group names its address is still registered")
		}
	}
}

func TestTenantWithoutMachinesWaitsAndGoesAtOnce(t *testing.T) {
	r := newRegion(t, nil)
	r.createTenant("prod", 1, 1)
	r.until("prod tells what is missing", func() bool {
		for _, c := range r.look("prod").tenant.Status.Conditions {
			if c.Type == cloud.ConditionMachinesMissing && c.Status == cloud.ConditionTrue {
				return strings.Contains(c.Message, `"cp" has 0 of 1`)
			}
		}
		return false
	})
	r.createTenant("other", 1, 0)
	r.delete(cloud.Tenants.Kind.Name, "other")
	r.until("other is gone", func() bool { return r.look("other") == nil })
	// The control plane does not wait for the workers.
	r.register(1)
	r.until("the control plane is there", func() bool {
		w := r.look("prod")
		return w.tenant.Status.ControlPlaneReady && w.tenant.Status.Phase == cloud.PhaseForming
	})
	r.register(1)
	r.until("prod is active", r.settled("prod", 2))
}

func TestTenTenantsConverge(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	r := newRegion(t, nil)
	r.register(30)
	overlap := 0
	for i := range 10 {
		r.createTenant(fmt.Sprintf("t%d", i), 1, 2)
	}
	deadline := time.Now().Add(4 * time.Minute)
	for done := 0; done < 10; {
		done = 0
		running := 0
		for i := range 10 {
			name := fmt.Sprintf("t%d", i)
			if r.settled(name, 3)() {
				done++
			}
			if w := r.look(name); w.record.Run != nil {
				running++
			}
		}
		overlap = max(overlap, running)
		if time.Now().After(deadline) {
			r.dump()
			t.Fatalf("%d of 10 tenants are active", done)
		}
		<-time.After(50 * time.Millisecond)
	}
	if overlap < 2 {
		t.Error("applies of different tenants did not overlap")
	}
}

// killPlane runs a plane in a process of its own and kills it after a while: it alone, or like a power loss with
// everything that it started.
func (r *region) killPlane(after time.Duration, everything bool) {
	r.Helper()
	self, err := os.Executable()
	if err != nil {
		r.Fatal(err)
	}
	cmd := exec.Command(self, "plane", r.folder)
	var out strings.Builder
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		r.Fatalf("the plane ended by itself: %v\n%s", err, out.String())
	case <-time.After(after):
	}
	_ = cmd.Process.Kill()
	<-exited
	if everything {
		r.killRuns()
	}
}

// killRuns kills every process that works in the region's folder.
func (r *region) killRuns() {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		r.Fatal(err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if cwd, err := os.Readlink(filepath.Join("/proc", p.Name(), "cwd")); err == nil && strings.HasPrefix(cwd, r.folder+"/") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func TestKilledPlaneGoesOnWhereItWas(t *testing.T) {
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	r := newRegion(t, nil)
	r.register(4)
	r.createTenant("prod", 1, 2)
	r.end()
	for i := range rounds {
		r.killPlane(time.Duration(200+rand.IntN(4000))*time.Millisecond, i%3 == 2)
	}
	r.start()
	r.until("prod is active", r.settled("prod", 3))
	r.scan("prod")

	r.scale("prod", "w", 1)
	r.end()
	for i := range rounds / 2 {
		r.killPlane(time.Duration(200+rand.IntN(3000))*time.Millisecond, i%3 == 2)
	}
	r.start()
	r.until("prod has two machines", r.settled("prod", 2))

	uid := r.look("prod").tenant.UID
	r.delete(cloud.Tenants.Kind.Name, "prod")
	r.end()
	for i := range rounds / 2 {
		r.killPlane(time.Duration(200+rand.IntN(3000))*time.Millisecond, i%3 == 2)
	}
	r.start()
	r.until("prod is gone", func() bool { return r.look("prod") == nil })
	r.until("no machine is left with a configuration", r.idle)
	if left, _ := filepath.Glob(filepath.Join(r.folder, "tofu", uid)); len(left) > 0 {
		t.Error("the tenant's folder is still there")
	}
}
