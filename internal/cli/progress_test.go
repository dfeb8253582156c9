package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

func progressTenant(phase cloud.Phase, ready bool) *client.Tenant {
	t := &client.Tenant{Metadata: client.Metadata{Name: "demo"}}
	t.Status = cloud.TenantStatus{Phase: phase, Ready: ready, APIReady: ready, ControlPlaneReady: ready, Machines: cloud.MachineCounts{Total: 2}}
	return t
}

func progressMachine(name, slot string, stage cloud.Stage, ready bool) *client.Machine {
	m := &client.Machine{Metadata: client.Metadata{
		Name: name, Labels: map[string]string{cloud.LabelNodeGroup: "demo-worker"}, Annotations: map[string]string{cloud.AnnotationSlot: slot},
	}}
	m.Spec.ManagementAddress = "10.0.0." + slot
	m.Status.Stage, m.Status.Ready = stage, ready
	return m
}

// at draws the area without colours at a time after the start.
func (p *progress) at(d time.Duration) string {
	return "\n" + strings.Join(p.lines(&live{width: 120}, p.started.Add(d)), "\n") + "\n"
}

func TestProgressIsDrawn(t *testing.T) {
	start := epoch
	p := newProgress("demo", start)
	p.sawTenant(progressTenant(cloud.PhaseForming, false), start)
	p.sawMachine(progressMachine("m0", "0", cloud.StageInitializing, false), start)
	p.sawMachine(progressMachine("m1", "1", cloud.StageInitializing, false), start.Add(time.Second))
	p.sawApply(&client.Apply{ID: "1", StartedAt: start, Result: client.ApplyRunning, Phase: "applying", Resources: []client.ApplyResource{
		{Address: "data.x.y", Action: "read", State: "done"},
		{Address: "talos_machine_secrets.cluster", Action: "create", State: "done", Seconds: 1},
		{Address: `talos_machine_configuration_apply.machine["demo-worker-0"]`, Action: "create", State: "done"},
		{Address: `talos_machine_configuration_apply.machine["demo-worker-1"]`, Action: "create", State: "running", StartedAt: start.Add(time.Second)},
		{Address: "talos_machine_bootstrap.cluster", Action: "create", State: "pending"},
	}})
	if diff := cmp.Diff(`
⠋ tenant demo  forming  3.0s   machines 0/2   · api   · control plane   · ready
  ⠋ apply applying  3.0s   ━━━━━━━━┄┄┄┄┄┄┄┄ 2/4
      talos_machine_configuration_apply.machine[demo-worker-1] 2.0s
  ⠋ demo-worker-0  10.0.0.0  config applied  for 3.0s
  ⠋ demo-worker-1  10.0.0.1  getting config  for 2.0s
`, p.at(3*time.Second)); diff != "" {
		t.Error(diff)
	}
	p.sawApply(&client.Apply{ID: "1", StartedAt: start, Result: "succeeded", Seconds: 4})
	p.sawMachine(progressMachine("m0", "0", cloud.StageReady, true), start.Add(5*time.Second))
	p.sawMachine(progressMachine("m1", "1", cloud.StageReady, false), start.Add(5*time.Second))
	p.sawTenant(progressTenant(cloud.PhaseActive, true), start.Add(6*time.Second))
	if diff := cmp.Diff(`
✓ tenant demo  active  6.0s   machines 0/2   ✓ api   ✓ control plane   ✓ ready
  ✓ apply succeeded  4.0s
  ✓ demo-worker-0  10.0.0.0  ready           after 5.0s
  ⠋ demo-worker-1  10.0.0.1  joining         for 1.0s
`, p.at(6*time.Second)); diff != "" {
		t.Error(diff)
	}
	deleting := progressTenant(cloud.PhaseRemoving, true)
	deleting.Metadata.DeletionTimestamp = &start
	p.sawTenant(deleting, start.Add(7*time.Second))
	p.lostMachine("m1", start.Add(8*time.Second))
	p.sawTenant(nil, start.Add(9*time.Second))
	if diff := cmp.Diff(`
✓ tenant demo  gone  9.0s
  ✓ demo-worker-0  10.0.0.0  released        after 9.0s
  ✓ demo-worker-1  10.0.0.1  released        after 8.0s
`, p.at(9*time.Second)); diff != "" {
		t.Error(diff)
	}
}

func TestTroublesAreToldOnceAndPatientlyWaitedFor(t *testing.T) {
	p := newProgress("demo", epoch)
	tenant := progressTenant(cloud.PhaseForming, false)
	tenant.Status.Conditions = []cloud.Condition{
		{Type: cloud.ConditionApplied, Status: cloud.ConditionFalse, Reason: "Waiting", Message: "no control-plane machine yet"},
		{Type: cloud.ConditionMachinesMissing, Status: cloud.ConditionTrue, Message: "2 machines are missing"},
	}
	important := func(notes []note) (out []string) {
		for _, n := range notes {
			if n.important {
				out = append(out, n.text)
			}
		}
		return out
	}
	if diff := cmp.Diff([]string{"! MachinesMissing: 2 machines are missing"}, important(p.sawTenant(tenant, epoch))); diff != "" {
		t.Error(diff)
	}
	if again := important(p.sawTenant(tenant, epoch)); len(again) > 0 {
		t.Errorf("told again: %q", again)
	}
	if why := p.why(); !strings.Contains(why, "no control-plane machine yet") {
		t.Errorf("the reason is missing: %s", why)
	}
}

func TestLinesAreClippedByColumnsNotBytes(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 5, "abc"}, {"abcdef", 3, "abc"}, {"✓✓✓✓", 2, "✓✓"}, {"\x1b[1mabcdef\x1b[0m", 3, "\x1b[1mabc\x1b[0m"}, {"", 3, ""},
	} {
		if got := clip(c.in, c.n); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestAgesAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 90 * time.Second: "90s", 5*time.Minute + 30*time.Second: "5m30s", 20 * time.Minute: "20m",
		3*time.Hour + 5*time.Minute: "3h5m", 30 * time.Hour: "30h", 72 * time.Hour: "3d", 3 * 365 * 24 * time.Hour: "3y",
	} {
		if got := age(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}
