package controller

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
)

func next(m *cloud.Machine, out outcome, now time.Time) cloud.MachineStatus {
	return nextStatus(m, out, now, time.Minute, 0)
}

func TestAnUnreachableMachineKeepsItsStageAndLosesReadyAfterAMinute(t *testing.T) {
	m := machine(1, "w", cloud.RoleWorker, 'r')
	gone := outcome{err: &machineapi.Error{Address: "10.0.0.1:50000", Doing: "observe", Reason: machineapi.ErrUnreachable, Message: "it did not answer in time"}}
	want := m.Status
	want.Connected, want.LastError, want.DisconnectedAt = false, "it did not answer in time", &noon

	m.Status = next(m, gone, noon)
	if diff := cmp.Diff(want, m.Status); diff != "" {
		t.Fatalf("at once (-want +got):\n%s", diff)
	}
	m.Status = next(m, gone, noon.Add(59*time.Second))
	if diff := cmp.Diff(want, m.Status); diff != "" {
		t.Fatalf("after 59 s (-want +got):\n%s", diff)
	}
	m.Status = next(m, gone, noon.Add(time.Minute))
	want.Ready = false
	if diff := cmp.Diff(want, m.Status); diff != "" {
		t.Fatalf("after a minute (-want +got):\n%s", diff)
	}
	m.Status = next(m, outcome{seen: &machineapi.Observation{Status: machineapi.Status{Stage: cloud.StageReady, Ready: true}}}, noon.Add(time.Hour))
	if !m.Status.Connected || !m.Status.Ready || m.Status.DisconnectedAt != nil || m.Status.LastError != "" {
		t.Errorf("back: %+v", m.Status)
	}
}

func TestAStageThatIsOwnedIsNotOverwritten(t *testing.T) {
	seen := outcome{seen: &machineapi.Observation{Status: machineapi.Status{Stage: cloud.StageReady, Ready: true}, BootID: "new"}}
	for _, out := range []outcome{seen, {locked: true}, {err: errors.New("gone")}} {
		for _, stage := range []cloud.Stage{cloud.StageRemoving, cloud.StageUpdating} {
			m := machine(1, "w", cloud.RoleWorker, 'r')
			m.Status.Stage, m.Status.Ready, m.Status.LastError = stage, false, "etcd has no quorum"
			got := next(m, out, noon.Add(time.Hour))
			if got.Stage != stage || got.Ready || got.LastError != "etcd has no quorum" {
				t.Errorf("%s: stage %q, ready %v, last error %q", stage, got.Stage, got.Ready, got.LastError)
			}
			if out.seen != nil && got.BootID != "new" {
				t.Errorf("%s: what was observed beside is lost", stage)
			}
		}
	}
	m := machine(1, "w", cloud.RoleWorker, 'x')
	delete(m.Labels, cloud.LabelTenant)
	if got := next(m, seen, noon); got.Stage != cloud.StageReady {
		t.Errorf("a released machine stays %q", got.Stage)
	}
}

func TestAMachineBehindUnknownSecretsIsConfiguring(t *testing.T) {
	m := machine(1, "w", cloud.RoleWorker, 'i')
	got := next(m, outcome{locked: true}, noon)
	if got.Stage != cloud.StageConfiguring || got.Maintenance || !got.Connected || got.LastError != "" {
		t.Errorf("%+v", got)
	}
}

func TestAMachineThatLostItsConfigurationSaysSo(t *testing.T) {
	reset := outcome{seen: &machineapi.Observation{Status: machineapi.Status{Stage: cloud.StageInitializing, Maintenance: true}}}
	m := machine(1, "w", cloud.RoleWorker, 'i')
	if m.Status = next(m, reset, noon); m.Status.LastError != "" {
		t.Errorf("one that waits for its first configuration: %q", m.Status.LastError)
	}
	m = machine(1, "w", cloud.RoleWorker, 'r')
	for range 2 {
		if m.Status = next(m, reset, noon); m.Status.LastError != relapse {
			t.Errorf("one that was ready: %q", m.Status.LastError)
		}
	}
	ready := outcome{seen: &machineapi.Observation{Status: machineapi.Status{Stage: cloud.StageReady, Ready: true}, Role: cloud.RoleWorker}}
	if m.Status = next(m, ready, noon); m.Status.LastError != "" {
		t.Errorf("back: %q", m.Status.LastError)
	}
	delete(m.Labels, cloud.LabelTenant)
	if m.Status = next(m, reset, noon); m.Status.LastError != "" {
		t.Errorf("one that was released: %q", m.Status.LastError)
	}
}

func TestWhatKeepsAMachineFromReadyShowsAfterAWhile(t *testing.T) {
	m := machine(1, "w", cloud.RoleWorker, 'c')
	out := outcome{seen: &machineapi.Observation{Status: machineapi.Status{Stage: cloud.StageConfiguring, Unmet: []string{"services: kubelet not healthy"}}}}
	if got := nextStatus(m, out, noon, time.Minute, 59*time.Second).LastError; got != "" {
		t.Errorf("too early: %q", got)
	}
	if got := nextStatus(m, out, noon, time.Minute, time.Minute).LastError; got != "not ready: services: kubelet not healthy" {
		t.Errorf("got %q", got)
	}
}

func TestMachinesAreProbedOftenOnlyWhileSomethingIsExpected(t *testing.T) {
	p := NewProber(ProberConfig{})
	defer p.Close()
	for state, fast := range map[rune]bool{'m': true, 'i': true, 'c': true, 'r': false, 'u': true} {
		m := machine(1, "w", cloud.RoleWorker, state)
		m.Status.DisconnectedAt = nil
		s := &session{changed: noon}
		if got := p.interval(m, s, noon.Add(time.Minute)); (got < 2*time.Second) != fast {
			t.Errorf("%c: %v, fast %v", state, got, fast)
		}
		if got := p.interval(m, s, noon.Add(time.Hour)); got < 7*time.Second || got > 13*time.Second {
			t.Errorf("%c, nothing happened for an hour: %v", state, got)
		}
	}
	m := machine(1, "w", cloud.RoleWorker, 's')
	if got := p.interval(m, &session{}, noon); got > time.Second {
		t.Errorf("its time is up in 1 s, the next probe comes in %v", got)
	}
}
