package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/kubeprobe"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
)

var noon = time.Date(2026, 5, 28, 12, 0, 0, 0, time.UTC)

// machine builds a machine of a group from a few letters:
//
//	r ready   c configuring   i initializing (maintenance)   m never seen
//	g going: deletion was asked for   x stage removing
//	s away for a moment, was ready    u away for over a minute, was ready
func machine(n int, group string, role cloud.Role, state rune) *cloud.Machine {
	m := &cloud.Machine{Spec: cloud.MachineSpec{ManagementAddress: fmt.Sprintf("10.0.0.%d:50000", n)}}
	m.Name = fmt.Sprintf("m%02d", n)
	m.Labels = map[string]string{cloud.LabelTenant: "prod", cloud.LabelNodeGroup: group, cloud.LabelRole: string(role)}
	ready := cloud.MachineStatus{
		Connected: true, Ready: true, Stage: cloud.StageReady, Role: role, TalosVersion: "1.12.6", KubernetesVersion: "1.35.0",
		Network: cloud.Network{Hostname: "node-" + m.Name, Addresses: []string{fmt.Sprintf("10.0.0.%d", n)}},
	}
	away := func(d time.Duration) {
		at := noon.Add(-d)
		m.Status = ready
		m.Status.Connected, m.Status.DisconnectedAt, m.Status.LastError = false, &at, "it did not answer in time"
	}
	switch state {
	case 'r', 'g', 'x':
		m.Status = ready
	case 'c':
		m.Status = ready
		m.Status.Ready, m.Status.Stage = false, cloud.StageConfiguring
	case 'i':
		m.Status = cloud.MachineStatus{Connected: true, Maintenance: true, Stage: cloud.StageInitializing}
	case 's':
		away(59 * time.Second)
	case 'u':
		away(60 * time.Second)
	}
	switch state {
	case 'g':
		m.DeletionTimestamp = &noon
	case 'x':
		m.Status.Stage = cloud.StageRemoving
	}
	return m
}

// sketch is a tenant of groups, each "count machines" (see machine); upper case names tell the control plane.
func sketch(groups ...string) *View {
	v := &View{Tenant: &cloud.Tenant{}, Now: noon, UnreachableAfter: time.Minute}
	v.Tenant.Name = "prod"
	for i, g := range groups {
		var count int
		var states, name string
		if n, _ := fmt.Sscanf(g, "%s %d %s", &name, &count, &states); n < 2 {
			panic(g)
		}
		role := cloud.RoleWorker
		if strings.ToUpper(name) == name {
			role = cloud.RoleControlPlane
		}
		group := &cloud.NodeGroup{Spec: cloud.NodeGroupSpec{Count: count}}
		group.Name = "prod/" + name
		group.Labels = map[string]string{cloud.LabelRole: string(role), cloud.LabelTenant: "prod"}
		v.Groups = append(v.Groups, group)
		for j, s := range states {
			v.Machines = append(v.Machines, machine(10*(i+1)+j, name, role, s))
		}
	}
	return v
}

// served completes a sketch by an API that is ready, and an etcd with all control-plane machines.
func served(v *View) *View {
	v.Probe.API = kubeprobe.Result{Available: true, Ready: true}
	for _, m := range v.Machines {
		if cloud.Role(m.Labels[cloud.LabelRole]) == cloud.RoleControlPlane && m.Status.Role != "" {
			v.Probe.Etcd = append(v.Probe.Etcd, machineapi.EtcdMember{Name: m.Status.Network.Hostname})
		}
	}
	return v
}

func TestTenantPhaseFollowsItsMachines(t *testing.T) {
	tests := []struct {
		name   string
		groups []string
		want   cloud.Phase
	}{
		{"no node group", nil, cloud.PhaseForming},
		{"no machine is wanted", []string{"CP 0"}, cloud.PhaseForming},
		{"no machine yet", []string{"CP 1"}, cloud.PhaseForming},
		{"a machine that was never seen", []string{"CP 1 m"}, cloud.PhaseForming},
		{"in maintenance", []string{"CP 1 i"}, cloud.PhaseForming},
		{"configuring", []string{"CP 1 c"}, cloud.PhaseForming},
		{"all ready", []string{"CP 1 r", "w 2 rr"}, cloud.PhaseActive},
		{"workers still join", []string{"CP 1 r", "w 2 rc"}, cloud.PhaseForming},
		{"count was raised", []string{"CP 1 r", "w 3 rr"}, cloud.PhaseForming},
		{"count was lowered", []string{"CP 1 r", "w 1 rr"}, cloud.PhaseShrinking},
		{"count was lowered to none", []string{"CP 1 r", "w 0 rr"}, cloud.PhaseShrinking},
		{"the excess machine is on its way out", []string{"CP 1 r", "w 1 rg"}, cloud.PhaseShrinking},
		{"the excess machine is being removed", []string{"CP 1 r", "w 1 rx"}, cloud.PhaseShrinking},
		{"the excess machine is gone", []string{"CP 1 r", "w 1 r"}, cloud.PhaseActive},
		{"a machine is replaced: the old one goes", []string{"CP 1 r", "w 2 rg"}, cloud.PhaseForming},
		{"a machine is replaced: the new one is there", []string{"CP 1 r", "w 2 rgr"}, cloud.PhaseShrinking},
		{"one group grows, another shrinks", []string{"CP 1 r", "w 1 rr", "v 2 r"}, cloud.PhaseForming},
		{"away for a moment", []string{"CP 1 r", "w 1 s"}, cloud.PhaseActive},
		{"away for a minute", []string{"CP 1 r", "w 1 u"}, cloud.PhaseForming},
		{"fell below ready", []string{"CP 1 c", "w 1 r"}, cloud.PhaseForming},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := sketch(tt.groups...).TenantStatus().Phase; got != tt.want {
				t.Errorf("phase %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDeletionShowsInThePhase(t *testing.T) {
	for _, groups := range [][]string{nil, {"CP 1 r"}, {"CP 1 m", "w 3 rg"}} {
		v := served(sketch(groups...))
		v.Tenant.DeletionTimestamp = &noon
		if got := v.TenantStatus(); got.Phase != cloud.PhaseRemoving || got.Ready {
			t.Errorf("%v: deleting tenant is %q, ready %v", groups, got.Phase, got.Ready)
		}
		for _, g := range v.Groups {
			if got := v.NodeGroup(g).Phase; got != cloud.PhaseRemoving {
				t.Errorf("%v: %s of a deleting tenant is %q", groups, g.Name, got)
			}
		}
	}
	v := served(sketch("CP 1 r", "w 1 r"))
	v.Groups[1].DeletionTimestamp = &noon
	if got := v.NodeGroup(v.Groups[1]); got.Phase != cloud.PhaseRemoving || got.Ready {
		t.Errorf("deleting group is %q, ready %v", got.Phase, got.Ready)
	}
	if got := v.TenantStatus(); got.Phase != cloud.PhaseShrinking || !got.Ready {
		t.Errorf("tenant with a deleting group is %q, ready %v; want shrinking and ready", got.Phase, got.Ready)
	}
	v.Groups = v.Groups[:1]
	if got := v.TenantStatus().Phase; got != cloud.PhaseShrinking {
		t.Errorf("tenant with a machine of no group is %q, want shrinking", got)
	}
}

func TestNodeGroupReadyMeansEveryExpectedMachineIsHealthy(t *testing.T) {
	tests := []struct {
		group string
		phase cloud.Phase
		ready bool
		count cloud.MachineCounts
	}{
		{"w 0", cloud.PhaseActive, true, cloud.MachineCounts{}},
		{"w 1", cloud.PhaseForming, false, cloud.MachineCounts{}},
		{"w 2 ri", cloud.PhaseForming, false, cloud.MachineCounts{Total: 2, Healthy: 1, Connected: 2}},
		{"w 2 rr", cloud.PhaseActive, true, cloud.MachineCounts{Total: 2, Healthy: 2, Connected: 2}},
		{"w 2 rrg", cloud.PhaseShrinking, true, cloud.MachineCounts{Total: 3, Healthy: 2, Connected: 3}},
		{"w 1 rx", cloud.PhaseShrinking, true, cloud.MachineCounts{Total: 2, Healthy: 1, Connected: 2}},
		{"w 2 rs", cloud.PhaseActive, true, cloud.MachineCounts{Total: 2, Healthy: 2, Connected: 1}},
		{"w 2 ru", cloud.PhaseForming, false, cloud.MachineCounts{Total: 2, Healthy: 1, Connected: 1}},
	}
	for _, tt := range tests {
		v := sketch("CP 1 r", tt.group)
		got := v.NodeGroup(v.Groups[1])
		if got.Phase != tt.phase || got.Ready != tt.ready || got.Machines != tt.count {
			t.Errorf("%s: %+v, want %+v", tt.group, got, tt)
		}
	}
}

func TestBooleansFollowProbesAndMachinesNotThePhase(t *testing.T) {
	type booleans struct{ Available, APIReady, ControlPlaneReady, Ready bool }
	of := func(v *View) booleans {
		s := v.TenantStatus()
		return booleans{s.Available, s.APIReady, s.ControlPlaneReady, s.Ready}
	}
	tests := []struct {
		name string
		view func() *View
		want booleans
	}{
		{"nothing", func() *View { return sketch() }, booleans{}},
		{"all is well", func() *View { return served(sketch("CP 1 r", "w 1 r")) }, booleans{true, true, true, true}},
		{"workers still join", func() *View { return served(sketch("CP 1 r", "w 2 rc")) }, booleans{true, true, true, false}},
		{"the API answers and is not ready", func() *View {
			v := served(sketch("CP 1 r"))
			v.Probe.API.Ready = false
			return v
		}, booleans{true, false, true, false}},
		{"nothing answers", func() *View {
			v := served(sketch("CP 1 r"))
			v.Probe.API = kubeprobe.Result{}
			return v
		}, booleans{false, false, true, false}},
		{"no control plane", func() *View { return served(sketch("w 1 r")) }, booleans{true, true, false, false}},
		{"one of three is down", func() *View { return served(sketch("CP 3 rrc")) }, booleans{true, true, false, false}},
		{"one of three is missing", func() *View { return served(sketch("CP 3 rr")) }, booleans{true, true, false, false}},
		{"one of three leaves, two are wanted", func() *View { return served(sketch("CP 2 rrg")) }, booleans{true, true, true, true}},
		{"no etcd answered", func() *View {
			v := served(sketch("CP 1 r"))
			v.Probe.Etcd = nil
			return v
		}, booleans{true, true, false, false}},
		{"etcd has a dead member of two", func() *View {
			v := served(sketch("CP 1 r"))
			v.Probe.Etcd = append(v.Probe.Etcd, machineapi.EtcdMember{Name: "gone"})
			return v
		}, booleans{true, true, false, false}},
		{"etcd has a dead member of three", func() *View {
			v := served(sketch("CP 2 rr"))
			v.Probe.Etcd = append(v.Probe.Etcd, machineapi.EtcdMember{Name: "gone"})
			return v
		}, booleans{true, true, true, true}},
		{"a learner has no vote", func() *View {
			v := served(sketch("CP 1 r"))
			v.Probe.Etcd = append(v.Probe.Etcd, machineapi.EtcdMember{Name: "new", Learner: true})
			return v
		}, booleans{true, true, true, true}},
		{"members are known by their address too", func() *View {
			v := served(sketch("CP 1 r"))
			v.Probe.Etcd = []machineapi.EtcdMember{{PeerURLs: []string{"https://10.0.0.10:2380"}}}
			return v
		}, booleans{true, true, true, true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, of(tt.view())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatCannotBeAskedStaysAsItWas(t *testing.T) {
	v := served(sketch("CP 1 r"))
	v.Tenant.Status = v.TenantStatus()
	v.Probe = Probe{Unknown: true}
	if diff := cmp.Diff(v.Tenant.Status, v.TenantStatus()); diff != "" {
		t.Errorf("the status changed (-want +got):\n%s", diff)
	}
	v.Machines[0] = machine(10, "CP", cloud.RoleControlPlane, 'c')
	if s := v.TenantStatus(); s.ControlPlaneReady || s.Ready || !s.Available {
		t.Errorf("a machine that is not ready: %+v", s)
	}
}

func TestVersionsAreTheLowestThatStay(t *testing.T) {
	v := sketch("CP 1 r", "w 3 rrg")
	v.Machines[1].Status.KubernetesVersion = "1.34.10"
	v.Machines[2].Status.KubernetesVersion = "1.34.9"
	v.Machines[3].Status.KubernetesVersion = "1.30.0"
	v.Machines[2].Status.TalosVersion = ""
	s := v.TenantStatus()
	if s.KubernetesVersion != "1.34.9" || s.TalosVersion != "1.12.6" {
		t.Errorf("kubernetes %q, talos %q", s.KubernetesVersion, s.TalosVersion)
	}
}

func TestUnreachableMachinesAreNamedUntilTheyAnswer(t *testing.T) {
	v := served(sketch("CP 1 r", "w 2 us"))
	s := v.TenantStatus()
	want := []cloud.Condition{{
		Type: cloud.ConditionMachinesUnreachable, Status: cloud.ConditionTrue, Reason: reasonNoAnswer,
		Message: "m20 (10.0.0.20:50000): it did not answer in time", LastTransitionTime: noon,
	}}
	if diff := cmp.Diff(want, s.Conditions); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, v.NodeGroup(v.Groups[1]).Conditions); diff != "" {
		t.Errorf("group (-want +got):\n%s", diff)
	}
	if got := v.NodeGroup(v.Groups[0]).Conditions; got != nil {
		t.Errorf("a group whose machines all answer has %v", got)
	}

	v.Tenant.Status = s
	v.Machines[1] = machine(20, "w", cloud.RoleWorker, 'r')
	v.Now = noon.Add(time.Hour)
	want[0].Status, want[0].Reason, want[0].Message, want[0].LastTransitionTime = cloud.ConditionFalse, reasonAllAnswer, "", v.Now
	v.Machines[2] = machine(21, "w", cloud.RoleWorker, 'r')
	if diff := cmp.Diff(want, v.TenantStatus().Conditions); diff != "" {
		t.Errorf("after its return (-want +got):\n%s", diff)
	}
}

func TestManyUnreachableMachinesAreCutShort(t *testing.T) {
	got := served(sketch("CP 1 r", "w 8 uuuuuuuu")).TenantStatus().Conditions[0].Message
	if !strings.HasSuffix(got, "; and 3 more") || strings.Count(got, "10.0.0.") != 5 {
		t.Errorf("message %q", got)
	}
}

func TestPluginsThatAreNotInstalledAreSaid(t *testing.T) {
	v := served(sketch("CP 1 r"))
	v.Tenant.Spec.Plugins.CNI.Type = "cilium"
	got := v.TenantStatus().Conditions
	if len(got) != 1 || got[0].Type != cloud.ConditionPluginsPending || got[0].Status != cloud.ConditionTrue || !strings.Contains(got[0].Message, "cilium") {
		t.Errorf("conditions %+v", got)
	}
}

func TestWhatIsWrongWithTheControlPlaneIsSaid(t *testing.T) {
	of := func(v *View, kind string) string {
		for _, c := range v.TenantStatus().Conditions {
			if c.Type == kind && c.Status == cloud.ConditionTrue {
				return c.Message
			}
		}
		return ""
	}
	if got := served(sketch("CP 1 r", "w 1 c")).TenantStatus().Conditions; got != nil {
		t.Errorf("nothing is wrong, and it says %v", got)
	}

	v := served(sketch("CP 1 r"))
	v.Probe.API = kubeprobe.Result{Message: "no answer from https://prod:6443: connection refused"}
	if got := of(v, cloud.ConditionAPINotReady); got != v.Probe.API.Message {
		t.Errorf("APINotReady: %q", got)
	}
	v.Machines[0] = machine(10, "CP", cloud.RoleControlPlane, 'c')
	if got := of(v, cloud.ConditionAPINotReady); got != "" {
		t.Errorf("APINotReady while the machine still starts: %q", got)
	}

	v = served(sketch("CP 3 rrr"))
	v.Probe.Etcd = append(v.Probe.Etcd, machineapi.EtcdMember{ID: 0xabc, Name: "gone"})
	if got := of(v, cloud.ConditionEtcdUnhealthy); !strings.Contains(got, "1 of etcd's 4") || !strings.Contains(got, "gone (abc)") {
		t.Errorf("EtcdUnhealthy: %q", got)
	}
	v.Tenant.DeletionTimestamp = &noon
	if got := of(v, cloud.ConditionEtcdUnhealthy); got != "" {
		t.Errorf("EtcdUnhealthy of a tenant that goes: %q", got)
	}
	leaving := served(sketch("CP 2 rrx"))
	if got := of(leaving, cloud.ConditionEtcdUnhealthy); got != "" {
		t.Errorf("EtcdUnhealthy while a member is on its way out: %q", got)
	}
}

func TestEtcdThatNobodyAnswersForIsSaid(t *testing.T) {
	applied := func(status cloud.ConditionStatus, reason string, ago time.Duration) cloud.Condition {
		return cloud.Condition{Type: cloud.ConditionApplied, Status: status, Reason: reason, LastTransitionTime: noon.Add(-ago)}
	}
	long := applied(cloud.ConditionTrue, "Applied", time.Hour)
	for _, tt := range []struct {
		name     string
		machines string
		applied  cloud.Condition
		want     string // part of the message; empty: nothing is said
	}{
		{"its machines are healthy", "CP 3 rrr", long, "no quorum"},
		{"its machines wait for it", "CP 3 ccc", long, "recover"},
		{"most of its machines are away", "CP 3 cuu", long, "bring these back: m11 (10.0.0.11:50000), m12 (10.0.0.12:50000)"},
		{"all of its machines are away", "CP 3 uuu", long, ""},
		{"its machines have no configuration", "CP 3 iii", long, ""},
		{"a removal waits for it", "CP 2 ccc", applied(cloud.ConditionFalse, reasonRemovalWaits, time.Hour), "no quorum"},
		{"it is about to be started", "CP 3 ccc", applied(cloud.ConditionFalse, "Applying", time.Hour), ""},
		{"it was started just now", "CP 3 ccc", applied(cloud.ConditionTrue, "Applied", time.Second), ""},
		{"it was never started", "CP 3 ccc", cloud.Condition{}, ""},
		{"there is none", "w 1 r", long, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := sketch(tt.machines)
			v.Tenant.Status.Conditions = []cloud.Condition{tt.applied}
			var got string
			for _, c := range v.TenantStatus().Conditions {
				if c.Type == cloud.ConditionEtcdUnhealthy {
					got = c.Message
				}
			}
			if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("it says %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheNextDeadlineIsTheNextMachineToBecomeUnreachable(t *testing.T) {
	if got := sketch("CP 1 r", "w 2 us").nextDeadline(); got != time.Second {
		t.Errorf("got %v, want 1s", got)
	}
	if got := sketch("CP 1 r", "w 1 u").nextDeadline(); got != 0 {
		t.Errorf("got %v, want none", got)
	}
}

var viewGen = rapid.Custom(func(t *rapid.T) *View {
	group := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("%d %s", rapid.IntRange(0, 4).Draw(t, "count"), rapid.StringOfN(rapid.RuneFrom([]rune("rcimgxsu")), 0, 5, -1).Draw(t, "states"))
	})
	var groups []string
	for i, g := range rapid.SliceOfN(group, 0, 4).Draw(t, "groups") {
		groups = append(groups, []string{"A ", "b ", "C ", "d "}[i]+g)
	}
	v := sketch(groups...)
	if rapid.Bool().Draw(t, "served") {
		served(v)
	}
	if rapid.IntRange(0, 5).Draw(t, "deleting") == 0 {
		v.Tenant.DeletionTimestamp = &noon
	}
	v.Tenant.Status.ControlPlaneEndpoint = "https://prod:6443"
	v.Tenant.Status.Conditions = []cloud.Condition{{Type: cloud.ConditionApplied, Status: cloud.ConditionTrue}}
	return v
})

func TestDerivationHoldsTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := viewGen.Draw(t, "view")
		s := v.TenantStatus()
		if s.Ready && !(s.Available && s.APIReady && s.ControlPlaneReady) {
			t.Fatalf("ready without the rest: %+v", s)
		}
		if s.Phase == "" {
			t.Fatal("no phase")
		}
		c := s.Machines
		if c.Total != len(v.Machines) || c.Healthy > c.Total || c.Connected > c.Total {
			t.Fatalf("counts %+v of %d machines", c, len(v.Machines))
		}
		if s.Phase == cloud.PhaseActive {
			expected := 0
			for _, g := range v.Groups {
				expected += g.Spec.Count
				if p := v.NodeGroup(g).Phase; p != cloud.PhaseActive {
					t.Fatalf("active tenant with a group that is %s", p)
				}
			}
			if c.Healthy != c.Total || c.Total != expected || expected == 0 {
				t.Fatalf("active with %+v, %d expected", c, expected)
			}
		}
		if s.ControlPlaneEndpoint != "https://prod:6443" || s.Conditions[0].Type != cloud.ConditionApplied || len(v.Tenant.Status.Conditions) != 1 {
			t.Fatal("a field of another writer changed")
		}
		v.Tenant.Status = s
		for _, g := range v.Groups {
			g.Status = v.NodeGroup(g)
		}
		v.Now = v.Now.Add(time.Millisecond)
		if v.differs() {
			t.Fatal("deriving again from what was derived gives something else")
		}
	})
}

// TestTheSpecsTransitions walks through a tenant's life as the API's document tells it.
func TestTheSpecsTransitions(t *testing.T) {
	v := sketch()
	expect := func(step string, want cloud.Phase) {
		t.Helper()
		if got := v.TenantStatus().Phase; got != want {
			t.Fatalf("%s: %q, want %q", step, got, want)
		}
		v.Tenant.Status = v.TenantStatus()
	}
	expect("created", cloud.PhaseForming)
	v.Groups = sketch("CP 1 r", "w 2 rr").Groups
	expect("node groups created", cloud.PhaseForming)
	v.Machines = sketch("CP 1 r", "w 2 rr").Machines
	expect("all machines ready", cloud.PhaseActive)
	v.Groups[1].Spec.Count = 3
	expect("count increased", cloud.PhaseForming)
	v.Machines = append(v.Machines, machine(40, "w", cloud.RoleWorker, 'r'))
	expect("new machine ready", cloud.PhaseActive)
	v.Groups[1].Spec.Count = 2
	expect("count decreased", cloud.PhaseShrinking)
	v.Machines[3].Status.Stage = cloud.StageRemoving
	expect("excess machine being removed", cloud.PhaseShrinking)
	v.Machines = v.Machines[:3]
	expect("excess machine removed", cloud.PhaseActive)
	v.Machines[2].Status.Stage, v.Machines[2].Status.Ready = cloud.StageRestarting, false
	expect("stage drops below ready", cloud.PhaseForming)
	v.Tenant.DeletionTimestamp = &noon
	expect("deleted", cloud.PhaseRemoving)
}
