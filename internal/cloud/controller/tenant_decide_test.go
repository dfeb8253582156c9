package controller

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/cloud/tofu"
)

var updateGolden = flag.Bool("update-tenant", false, "write the golden configurations anew")

// stage builds a world in memory.
type stage struct{ *world }

func newStage() stage {
	t := &cloud.Tenant{Spec: cloud.TenantSpec{KubernetesVersion: "1.35.0", TalosVersion: "1.12.6"}}
	t.Name, t.UID = "prod", "uid-prod"
	return stage{&world{tenant: t, record: &apply.Record{UID: t.UID, Tenant: "prod"}}}
}

func (s stage) with(name string, role cloud.Role, count int, indices ...int) stage {
	g := &cloud.NodeGroup{Spec: cloud.NodeGroupSpec{Count: count, ProviderClass: "metal"}}
	g.Name = cloud.SubName("prod", name)
	g.Labels = map[string]string{cloud.LabelRole: string(role)}
	s.groups = append(s.groups, g)
	for _, i := range indices {
		m := &cloud.Machine{Spec: cloud.MachineSpec{ManagementAddress: "10.0." + strconv.Itoa(len(s.groups)) + "." + strconv.Itoa(i)}}
		m.Name = "m-" + name + "-" + strconv.Itoa(i)
		m.Labels = map[string]string{cloud.LabelTenant: "prod", cloud.LabelNodeGroup: name, cloud.LabelRole: string(role)}
		m.Annotations = map[string]string{cloud.AnnotationSlot: strconv.Itoa(i)}
		m.Status.Connected = true
		s.machines = append(s.machines, m)
	}
	return s
}

func (s stage) at(slot string) *cloud.Machine {
	for _, m := range s.machines {
		if slotOf(m) == slot {
			return m
		}
	}
	return nil
}

func (s stage) deleting(slot string) stage {
	at := time.Unix(0, 0)
	s.at(slot).DeletionTimestamp = &at
	return s
}

func (s stage) annotated(slot string) stage {
	s.at(slot).Annotations[cloud.AnnotationDeleteMachine] = "true"
	return s
}

func (s stage) removing(slots ...string) stage {
	for _, slot := range slots {
		s.record.Removing = append(s.record.Removing, apply.Removal{Slot: slot, Machine: "m-" + slot})
	}
	return s
}

func TestWhichMachinesGoNext(t *testing.T) {
	cp, w := cloud.RoleControlPlane, cloud.RoleWorker
	for name, c := range map[string]struct {
		stage  stage
		claims map[string]provider.Claim
		want   []string
	}{
		"as declared":                   {newStage().with("cp", cp, 3, 0, 1, 2).with("w", w, 2, 0, 1), nil, nil},
		"fewer than declared":           {newStage().with("w", w, 5, 0, 1), nil, nil},
		"the highest slots":             {newStage().with("w", w, 1, 0, 1, 2), nil, []string{"w-2", "w-1"}},
		"two digits are numbers":        {newStage().with("w", w, 2, 2, 9, 10), nil, []string{"w-10"}},
		"annotated ones first":          {newStage().with("w", w, 2, 0, 1, 2).annotated("w-0"), nil, []string{"w-0"}},
		"annotated ones beyond need":    {newStage().with("w", w, 2, 0, 1).annotated("w-0"), nil, nil},
		"deleting ones whatever counts": {newStage().with("w", w, 3, 0, 1, 2).deleting("w-0"), nil, []string{"w-0"}},
		"a deleting one is one less":    {newStage().with("w", w, 2, 0, 1, 2).deleting("w-0"), nil, []string{"w-0"}},
		"deleting, then annotated":      {newStage().with("w", w, 1, 0, 1, 2).deleting("w-2").annotated("w-0"), nil, []string{"w-2", "w-0"}},
		"on their way already":          {newStage().with("w", w, 1, 0, 1, 2).removing("w-1", "w-2"), nil, nil},
		"one control plane at a time":   {newStage().with("cp", cp, 1, 0, 1, 2), nil, []string{"cp-2"}},
		"none while one is leaving":     {newStage().with("cp", cp, 1, 0, 1, 2).removing("cp-2"), nil, nil},
		"one of all control planes":     {newStage().with("cp", cp, 1, 0, 1).with("cq", cp, 1, 0, 1), nil, []string{"cp-1"}},
		"workers beside a leaving one":  {newStage().with("cp", cp, 1, 0, 1).with("w", w, 0, 0).removing("cp-1"), nil, []string{"w-0"}},
		"another address": {newStage().with("w", w, 1, 0),
			map[string]provider.Claim{"w": {Addresses: []string{"10.9.9.9"}}}, []string{"w-0"}},
		"one address less": {newStage().with("w", w, 2, 0, 1, 2),
			map[string]provider.Claim{"w": {Addresses: []string{"10.0.1.1", "10.0.1.2"}}}, []string{"w-0"}},
		"addresses in another order": {newStage().with("w", w, 2, 0, 1),
			map[string]provider.Claim{"w": {Addresses: []string{"10.0.1.1", "10.0.1.0"}}}, nil},
		"the same address": {newStage().with("w", w, 1, 0),
			map[string]provider.Claim{"w": {Addresses: []string{"10.0.1.0:50000"}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range c.stage.removals(c.claims, time.Unix(0, 0)) {
				got = append(got, r.Slot)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("removals (-want +got):\n%s", d)
			}
		})
	}
}

func TestGroupThatIsDeletedLetsAllGo(t *testing.T) {
	s := newStage().with("w", cloud.RoleWorker, 2, 0, 1)
	at := time.Unix(0, 0)
	s.groups[0].DeletionTimestamp = &at
	if got := s.removals(nil, at); len(got) != 2 || got[0].Reason != removalGroup {
		t.Errorf("removals %v", got)
	}
}

func TestFreeSlotsAreTheLowestThatNobodyFills(t *testing.T) {
	w := cloud.RoleWorker
	for name, c := range map[string]struct {
		stage stage
		count int
		want  []int
	}{
		"none yet":               {newStage().with("w", w, 3), 3, []int{0, 1, 2}},
		"a gap":                  {newStage().with("w", w, 3, 0, 2), 3, []int{1}},
		"enough":                 {newStage().with("w", w, 2, 0, 2), 2, nil},
		"a leaving one keeps it": {newStage().with("w", w, 2, 0, 1).removing("w-0"), 2, []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, c.stage.freeSlots("w", c.count)); d != "" {
				t.Errorf("slots (-want +got):\n%s", d)
			}
		})
	}
}

func TestAnAddressIsOpenWhileNoStayingMachineHasIt(t *testing.T) {
	s := newStage().with("w", cloud.RoleWorker, 3, 0, 1).removing("w-0")
	got := s.openAddresses("w", provider.Claim{Addresses: []string{"10.0.1.1:50000", "10.0.1.0", "10.0.1.9"}})
	if d := cmp.Diff([]string{"10.0.1.0", "10.0.1.9"}, got); d != "" {
		t.Errorf("open (-want +got):\n%s", d)
	}
}

func TestVerdict(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &plan{digest: "new", slots: []string{"cp-0"}}
	ended := func(result tofu.Result, digest string) *apply.Ended {
		return &apply.Ended{Digest: digest, Result: string(result), Message: "why"}
	}
	for name, c := range map[string]struct {
		record *apply.Record
		plan   *plan
		waits  []string
		apply  bool
		reason string
	}{
		"nothing is applied yet":       {&apply.Record{}, p, nil, true, "Applying"},
		"it is applied":                {&apply.Record{Applied: "new"}, p, nil, false, "Applied"},
		"another one is applied":       {&apply.Record{Applied: "old"}, p, nil, true, "Applying"},
		"no control plane":             {&apply.Record{}, &plan{waits: "none"}, nil, false, "Waiting"},
		"applied but for silent ones":  {&apply.Record{Applied: "new"}, &plan{digest: "new", pending: "w-0"}, nil, false, "Waiting"},
		"applied, a removal waits":     {&apply.Record{Applied: "new"}, p, []string{"no quorum"}, false, "RemovalWaits"},
		"not applied, a removal waits": {&apply.Record{Applied: "old"}, p, []string{"no quorum"}, true, "Applying"},
		"failed a moment ago":          {&apply.Record{Failures: 1, RetryAt: now.Add(time.Second), Last: ended(tofu.Failed, "new")}, p, nil, false, "Failed"},
		"failed a while ago":           {&apply.Record{Failures: 1, RetryAt: now, Last: ended(tofu.Failed, "new")}, p, nil, true, "Applying"},
		"another one failed":           {&apply.Record{Failures: 1, RetryAt: now.Add(time.Second), Last: ended(tofu.Failed, "old")}, p, nil, true, "Applying"},
		"blocked stays blocked":        {&apply.Record{Failures: 1, RetryAt: now, Last: ended(tofu.Blocked, "new")}, p, nil, false, "Blocked"},
		"interrupted goes on":          {&apply.Record{Last: ended(tofu.Interrupted, "new")}, p, nil, true, "Applying"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			s.record = c.record
			v := s.verdict(c.plan, c.waits, now)
			if v.apply != c.apply || v.reason != c.reason {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

func rendered(t *testing.T, s stage) *plan {
	t.Helper()
	p, err := NewTenant(TenantConfig{Modules: provider.Default()}).render(s.world)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// full is a tenant with everything that shows in a configuration.
func full() stage {
	s := newStage().with("cp", cloud.RoleControlPlane, 3, 0, 1, 2).with("w", cloud.RoleWorker, 2, 0, 10)
	s.tenant.Spec.PodNetwork, s.tenant.Spec.ServiceNetwork = []string{"10.244.0.0/16"}, []string{"10.96.0.0/12"}
	s.tenant.Spec.ConfigPatches = []cloud.InlinePatch{{Name: "a", Patch: "machine:\n  sysctls:\n    a: \"${evil} %{if true}<&>\"\n"}}
	s.groups[1].Spec.ConfigPatches = []cloud.InlinePatch{{Name: "b", Patch: "machine: {}\n"}}
	s.groups[1].Spec.TalosVersion = "1.12.5"
	s.at("w-10").Spec.ManagementAddress = "[fd00::a]:50001"
	s.record.Bootstrap, s.record.BootstrapNode, s.record.Endpoint = "cp-0", "10.0.1.0", "https://10.0.1.0:6443"
	return s
}

func TestSameObjectsGiveTheSameBytes(t *testing.T) {
	p := rendered(t, full())
	golden := filepath.Join("testdata", "tenant.tf.json")
	if *updateGolden {
		if err := os.WriteFile(golden, p.config, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(p.config)); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
	for range 20 {
		if !bytes.Equal(rendered(t, full()).config, p.config) {
			t.Fatal("rendering is not deterministic")
		}
	}
	if !json.Valid(p.config) {
		t.Error("not JSON")
	}
}

func TestSecretsAreMadeBeforeAnyMachineIsConfigured(t *testing.T) {
	s := full()
	if p := rendered(t, s); len(p.stages) != 2 || bytes.Contains(p.stages[0].Config, []byte("configuration_apply")) {
		t.Errorf("stages: %d", len(p.stages))
	}
	s.record.State = &apply.StateInfo{Version: 1}
	if p := rendered(t, s); len(p.stages) != 1 {
		t.Errorf("stages of a tenant that has secrets: %d", len(p.stages))
	}
}

func TestSilentMachineIsLeftOutUntilItAnswers(t *testing.T) {
	s := full()
	at := time.Unix(0, 0)
	s.at("w-0").Status.Connected, s.at("w-0").Status.DisconnectedAt = false, &at
	p := rendered(t, s)
	if d := cmp.Diff([]string{"cp-0", "cp-1", "cp-2", "w-10"}, p.slots); d != "" || p.pending == "" {
		t.Errorf("slots (-want +got):\n%s", d)
	}
	// One that is in the state stays: leaving it out would destroy it.
	s.record.Slots = []string{"w-0"}
	if p := rendered(t, s); len(p.slots) != 5 {
		t.Errorf("slots %v", p.slots)
	}
}

func TestSlotGoesOnlyWhenItsRemovalIsReady(t *testing.T) {
	s := full().removing("w-10")
	s.record.Slots = []string{"cp-0", "cp-1", "cp-2", "w-0", "w-10"}
	if p := rendered(t, s); len(p.slots) != 5 || len(s.guard(p).Slots) != 0 {
		t.Errorf("slots %v", p.slots)
	}
	s.record.Removing[0].Ready = true
	p := rendered(t, s)
	if d := cmp.Diff([]string{"cp-0", "cp-1", "cp-2", "w-0"}, p.slots); d != "" {
		t.Errorf("slots (-want +got):\n%s", d)
	}
	if d := cmp.Diff(tofu.Guard{Slots: []string{"w-10"}}, s.guard(p)); d != "" {
		t.Errorf("guard (-want +got):\n%s", d)
	}
}

func TestSilentMachineThatIsRemovedIsNoReasonForAnApply(t *testing.T) {
	s := full().removing("cp-2")
	s.record.Slots, s.record.Bootstrapped = []string{"cp-0", "cp-1", "cp-2", "w-0", "w-10"}, true
	s.record.State = &apply.StateInfo{Version: 1}
	s.record.Applied, s.record.Removing[0].Ready = rendered(t, full()).digest, true
	at := time.Unix(0, 0)
	s.at("cp-2").Status.Connected, s.at("cp-2").Status.DisconnectedAt = false, &at
	v := s.verdict(rendered(t, s), nil, at)
	if v.apply || v.reason != "Waiting" || !strings.Contains(v.message, "m-cp-2") {
		t.Errorf("it boots after it was reset: %+v", v)
	}
	// What else changes is applied, and the machine left alone.
	s.tenant.Spec.KubernetesVersion = "1.35.1"
	p := rendered(t, s)
	if v := s.verdict(p, nil, at); !v.apply || v.message != "declaration changed" || len(p.exclude) != 1 {
		t.Errorf("something else changes: %+v without %v", v, p.exclude)
	}
	s.record.Applied = p.goal()
	if v := s.verdict(p, nil, at); v.apply || !strings.Contains(v.message, "m-cp-2") {
		t.Errorf("that is applied: %+v", v)
	}
	s.at("cp-2").Status.Connected, s.at("cp-2").Status.DisconnectedAt = true, nil
	if v := s.verdict(rendered(t, s), nil, at); !v.apply || v.message != "remove cp-2 ()" {
		t.Errorf("it answers: %+v", v)
	}
}

func TestEtcdIsNeverStartedOnASecondMachine(t *testing.T) {
	s := full()
	at := time.Unix(0, 0)
	s.at("cp-0").Status.Connected, s.at("cp-0").Status.DisconnectedAt = false, &at
	if p := rendered(t, s); p.bootstraps {
		t.Error("etcd is started though the chosen machine does not answer")
	}
	if m := s.bootstrapMachine(); slotOf(m) != "cp-1" {
		t.Errorf("a tenant that has not chosen would take %s", slotOf(m))
	}
	s.record.Bootstrapped = true
	if p := rendered(t, s); !p.bootstraps || !bytes.Contains(p.config, []byte(`"node": "10.0.1.0"`)) {
		t.Error("the note that etcd was started is gone")
	}
}

func TestEndpointMovesOnlyFromAMachineThatGoes(t *testing.T) {
	alive := func() stage {
		s := full()
		s.record.Bootstrapped, s.record.Slots = true, []string{"cp-0", "cp-1", "w-0"}
		return s
	}
	declared := alive().deleting("cp-0")
	declared.tenant.Spec.ControlPlaneEndpoint = "https://prod.example.com:6443"
	silent := alive().removing("cp-0")
	silent.record.Slots = append(silent.record.Slots, "cp-2")
	at := time.Unix(0, 0)
	silent.at("cp-1").Status.Connected, silent.at("cp-1").Status.DisconnectedAt = false, &at
	alone := alive().removing("cp-0")
	alone.record.Slots = []string{"cp-0"}
	anew := alive().removing("cp-0")
	anew.record.Bootstrapped, anew.record.Slots = false, nil
	for name, c := range map[string]struct {
		stage
		want string
	}{
		"it stays": {alive(), ""}, "it goes": {alive().removing("cp-0"), "cp-1"}, "it is to go": {alive().deleting("cp-0"), "cp-1"},
		"another goes": {alive().removing("cp-1"), ""}, "the first of the others is silent": {silent, "cp-2"},
		"no other has joined": {alone, ""}, "the cluster starts anew": {anew, "cp-1"}, "it is declared": {declared, ""},
	} {
		got := ""
		if m := c.successor(); m != nil {
			got = slotOf(m)
		}
		if got != c.want {
			t.Errorf("%s: %q follows, want %q", name, got, c.want)
		}
	}
}

func TestOneMachineIsTakenOnce(t *testing.T) {
	s := newStage().with("w", cloud.RoleWorker, 4, 0, 1, 2, 3)
	for i, m := range s.machines {
		m.Status.Maintenance = true
		m.Status.Hardware.UUID, m.Status.Network.Addresses = "same for all of its make", []string{"10.0.0.1", "10.1.0.1"}
		if i == 3 {
			m.Status.Network.Addresses = []string{"10.0.0.2"}
		}
		m.Labels = nil
	}
	names := func(p *pool) (out []string) {
		for _, m := range p.machines {
			out = append(out, m.Name)
		}
		return out
	}
	if d := cmp.Diff([]string{"m-w-0", "m-w-3"}, names(newPool(s.machines))); d != "" {
		t.Errorf("the pool (-want +got):\n%s", d)
	}
	s.machines[2].Labels = map[string]string{cloud.LabelTenant: "other"}
	p := newPool(s.machines)
	if d := cmp.Diff([]string{"m-w-3"}, names(p)); d != "" || !strings.Contains(strings.Join(p.passed, " "), "is the same machine as m-w-2") {
		t.Errorf("the pool beside an assigned one (-want +got):\n%s %v", d, p.passed)
	}
}

func TestMachineThatWasNotAskedYetIsWaitedFor(t *testing.T) {
	s := full()
	s.at("w-0").Status.Connected = false
	if p := rendered(t, s); p.waits == "" || len(p.stages) > 0 {
		t.Errorf("applied before anybody knows whether w-0 answers: %v", p.slots)
	}
	s.record.Slots = []string{"w-0"}
	if p := rendered(t, s); p.waits != "" {
		t.Errorf("a tenant that has it waits: %s", p.waits)
	}
}

func TestSilentMachineInTheStateIsExcludedFromAppliesAlone(t *testing.T) {
	s := full()
	s.record.Slots = []string{"cp-0", "w-0"}
	whole := rendered(t, s)
	at := time.Unix(0, 0)
	for _, slot := range s.record.Slots {
		s.at(slot).Status.Connected, s.at(slot).Status.DisconnectedAt = false, &at
	}
	p := rendered(t, s)
	want := []string{machineAddress("cp-0"), bootstrapAddress, machineAddress("w-0")}
	if d := cmp.Diff(want, p.stages[len(p.stages)-1].Exclude); d != "" {
		t.Errorf("excluded (-want +got):\n%s", d)
	}
	if p.digest != whole.digest || p.goal() == whole.goal() {
		t.Errorf("goal %q", p.goal())
	}
	for name, c := range map[string]struct {
		applied, reason string
		apply           bool
	}{
		"all is applied":         {p.digest, "Applied", false},
		"all but theirs is":      {p.goal(), "Waiting", false},
		"something else is":      {"old", "Applying", true},
		"theirs is still to do":  {p.digest + " without " + bootstrapAddress, "Applying", true},
		"nothing is applied yet": {"", "Applying", true},
	} {
		s.record.Applied = c.applied
		if v := s.verdict(p, nil, at); v.reason != c.reason || v.apply != c.apply {
			t.Errorf("%s: %+v", name, v)
		}
	}
	s.record.Applied = p.goal()
	if v := s.verdict(whole, nil, at); !v.apply {
		t.Errorf("they answer again: %+v", v)
	}
	s.record.Bootstrapped = true
	if p := rendered(t, s); len(p.exclude) != 2 {
		t.Errorf("excluded once etcd was started: %v", p.exclude)
	}
}

func TestQuorumIsOfThoseWhoHaveJoined(t *testing.T) {
	s := newStage().with("cp", cloud.RoleControlPlane, 3, 0, 1, 2)
	of := func(i int, learner bool) member {
		return member{Name: "cp-" + strconv.Itoa(i), PeerURLs: []string{"https://10.0.1." + strconv.Itoa(i) + ":2380"}, Learner: learner}
	}
	seen := survey{answer: s.machines[1:]}
	for name, c := range map[string]struct {
		members         []member
		voters, healthy int
	}{
		"nobody":                      {nil, 0, 0},
		"both":                        {[]member{of(1, false), of(2, false)}, 2, 2},
		"one that has yet to join":    {[]member{of(1, false)}, 1, 1},
		"a learner":                   {[]member{of(1, true)}, 0, 0},
		"one that answers nothing":    {[]member{of(0, false), of(1, false)}, 2, 1},
		"one of no machine of theirs": {[]member{of(9, false), of(1, false)}, 2, 1},
	} {
		if voters, healthy := seen.quorum(c.members); voters != c.voters || healthy != c.healthy {
			t.Errorf("%s: %d of %d, want %d of %d", name, healthy, voters, c.healthy, c.voters)
		}
	}
}
