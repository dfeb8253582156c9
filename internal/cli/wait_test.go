package cli

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

// screen is a buffer that one goroutine writes and another reads.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func await(t *testing.T, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !met(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// background runs a command that goes on by itself.
type background struct {
	out, err screen
	code     chan int
	stop     context.CancelFunc
}

func (s *shell) background(args ...string) *background {
	ctx, cancel := context.WithCancel(s.t.Context())
	b := &background{code: make(chan int, 1), stop: cancel}
	go func() { b.code <- s.start(ctx, &b.out, &b.err, args...) }()
	s.t.Cleanup(cancel)
	return b
}

func (b *background) ends(t *testing.T) int {
	t.Helper()
	select {
	case code := <-b.code:
		return code
	case <-time.After(60 * time.Second):
		t.Fatalf("it did not end:\n%s%s", b.out.String(), b.err.String())
		return -1
	}
}

func tenantIs(s *shell, name string, status cloud.TenantStatus) {
	s.server.Put(client.KindTenant, "", client.Metadata{Name: name, Finalizers: cloud.TenantFinalizers},
		cloud.TenantSpec{KubernetesVersion: "1.35.0", TalosVersion: "1.12.6"}, status)
}

func TestWatchPrintsRowsAsThingsHappen(t *testing.T) {
	s := newShell(t)
	populate(s.server)
	b := s.background("get", "tenants", "-w")
	await(t, "the table", func() bool { return strings.Contains(b.out.String(), "forming") })
	s.server.DropStreams()
	tenantIs(s, "prod", cloud.TenantStatus{Phase: cloud.PhaseActive, Ready: true})
	await(t, "the new row", func() bool { return strings.Count(b.out.String(), "active") == 2 })
	s.server.Remove(client.KindTenant, "", "lab")
	await(t, "the deletion", func() bool { return strings.Contains(b.out.String(), "tenant/lab deleted") })
	b.stop()
	if code := b.ends(t); code != 130 {
		t.Fatalf("exit %d", code)
	}
	golden(t, "watch", b.out.String())
}

func TestWatchCommandTellsWhatHappened(t *testing.T) {
	s := newShell(t)
	b := s.background("watch", "machines", "-o", "wide")
	await(t, "the watch", func() bool { return s.server.Streams() == 1 })
	populate(s.server)
	s.server.Remove(client.KindMachine, "", un)
	await(t, "the deletion", func() bool { return strings.Contains(b.out.String(), "DELETED") })
	if !strings.HasPrefix(b.out.String(), "EVENT   NAME ") && !strings.HasPrefix(b.out.String(), "EVENT ") {
		t.Fatal(b.out.String())
	}
	j := s.background("watch", "tenant", "prod", "-o", "jsonpath={.type} {.object.metadata.name}")
	await(t, "the tenant", func() bool { return j.out.String() == "ADDED prod\n" })
	s.server.Remove(client.KindTenant, "", "prod")
	if code := j.ends(t); code != 0 || j.out.String() != "ADDED prod\nDELETED prod\n" {
		t.Fatalf("exit %d: %s", code, j.out.String())
	}
}

func TestCreateWaitsAndShowsProgress(t *testing.T) {
	s := newShell(t)
	b := s.background("create", "tenant", "prod", "--control-planes", "1", "--wait")
	await(t, "the tenant", func() bool { return strings.Contains(b.err.String(), "tenant prod: forming") })
	s.server.SetApplies("prod", client.List[client.Apply]{Items: []client.Apply{{
		ID: "1", Result: client.ApplyRunning, Phase: "applying", StartedAt: epoch, Plan: client.PlanSummary{Add: 3},
		Resources: []client.ApplyResource{{Address: `talos_machine_configuration_apply.machine["prod-control-plane-0"]`, Action: "create", State: "done", Seconds: 1}},
	}}})
	await(t, "the apply", func() bool {
		return strings.Contains(b.err.String(), "apply: talos_machine_configuration_apply.machine[prod-control-plane-0] created (1.0s)")
	})
	putMachine(s.server, cp0, "prod-control-plane", cloud.RoleControlPlane, cloud.MachineStatus{Stage: cloud.StageInstalling})
	await(t, "the machine", func() bool {
		return strings.Contains(b.err.String(), "machine prod-control-plane-0 (10.0.0.5:50000): installing")
	})
	s.server.SetApplies("prod", client.List[client.Apply]{Items: []client.Apply{{
		ID: "1", Result: "failed", Seconds: 2, Error: "machine 10.0.0.5 refused its configuration", StartedAt: epoch,
	}}})
	await(t, "the failure", func() bool {
		return strings.Contains(b.err.String(), "! apply failed after 2.0s: machine 10.0.0.5 refused its configuration")
	})
	s.server.DropStreams()
	putMachine(s.server, cp0, "prod-control-plane", cloud.RoleControlPlane, cloud.MachineStatus{Stage: cloud.StageReady, Ready: true})
	await(t, "the ready machine", func() bool { return strings.Contains(b.err.String(), "): ready\n") })
	group(s.server, "prod-control-plane", cloud.RoleControlPlane)
	tenantIs(s, "prod", cloud.TenantStatus{Phase: cloud.PhaseActive, Available: true, APIReady: true, ControlPlaneReady: true, Ready: true})
	if code := b.ends(t); code != 0 {
		t.Fatalf("exit %d\n%s", code, b.err.String())
	}
	want(t, b.out.String(), "tenant/prod created", "node-group/prod-control-plane created")
}

func TestDeleteWaitsUntilItIsGone(t *testing.T) {
	s := newShell(t)
	populate(s.server)
	b := s.background("delete", "tenant", "prod")
	await(t, "the deletion's start", func() bool {
		return strings.Contains(b.err.String(), "tenant prod: forming") && strings.Contains(b.err.String(), "machine prod-worker-0 ")
	})
	s.server.Put(client.KindMachine, "", client.Metadata{Name: w0}, client.MachineSpec{}, cloud.MachineStatus{})
	await(t, "the release", func() bool {
		return strings.Contains(b.err.String(), "machine prod-worker-0 (10.0.0.6:50000): released")
	})
	s.server.Remove(client.KindTenant, "", "prod")
	if code := b.ends(t); code != 0 {
		t.Fatalf("exit %d", code)
	}
	want(t, b.out.String(), "tenant/prod is being deleted", "tenant/prod deleted")
	m := s.background("delete", "machine", cp0)
	await(t, "the machine's deletion", func() bool {
		return strings.Contains(m.out.String(), "machine/"+cp0+" is being deleted")
	})
	if all := strings.Join(s.server.Requests(), "\n"); !strings.Contains(all, "DELETE /api/v1/tenants/prod/machines/"+cp0) {
		t.Fatalf("not by its tenant:\n%s", all)
	}
	s.server.Remove(client.KindMachine, "", cp0)
	if code := m.ends(t); code != 0 {
		t.Fatalf("exit %d: %s", code, m.err.String())
	}
}

func TestWaitGivesUpAndTellsWhy(t *testing.T) {
	s := newShell(t)
	tenantIs(s, "prod", cloud.TenantStatus{Phase: cloud.PhaseForming, Machines: cloud.MachineCounts{Total: 2, Healthy: 1}, Conditions: []cloud.Condition{
		{Type: cloud.ConditionMachinesMissing, Status: cloud.ConditionTrue, Message: "1 machine is missing: register one"},
	}})
	e := s.fails("wait", "tenant/prod", "--for=active", "--timeout=300ms")
	if !strings.Contains(e, "error: wait for tenant/prod: gave up after 300ms: it is forming, with 1 of 2 machines healthy; MachinesMissing: 1 machine is missing: register one") {
		t.Fatal(e)
	}
	group(s.server, "prod-worker", cloud.RoleWorker)
	if e := s.fails("wait", "ng/prod-worker", "-t", "prod", "--for=ready", "--timeout=300ms"); !strings.Contains(e, "gave up after 300ms: ready is false") {
		t.Fatal(e)
	}
	want(t, s.ok("wait", "tenant/prod", "--for=condition=MachinesMissing"), "tenant/prod condition met")
	want(t, s.ok("wait", "tenant/prod", "--for=forming"), "tenant/prod condition met")
	want(t, s.ok("wait", "tenant/none", "--for=delete"), "tenant/none deleted")
}

func TestWaitDoesNotTakeAStatusFromBeforeAScaling(t *testing.T) {
	s := newShell(t)
	group(s.server, "prod-worker", cloud.RoleWorker)
	tenantIs(s, "prod", cloud.TenantStatus{Phase: cloud.PhaseActive, Ready: true, Machines: cloud.MachineCounts{Total: 1, Healthy: 1}})
	s.ok("scale", "ng", "prod-worker", "-t", "prod", "--count", "2")
	for _, args := range [][]string{{"tenant/prod", "--for=ready"}, {"tenant/prod", "--for=active"}, {"ng/prod-worker", "-t", "prod", "--for=ready"}} {
		if e := s.fails(append([]string{"wait", "--timeout=300ms"}, args...)...); !strings.Contains(e, "gave up after 300ms") {
			t.Fatal(args, e)
		}
	}
	s.ok("scale", "ng", "prod-worker", "-t", "prod", "--count", "1")
	want(t, s.ok("wait", "tenant/prod", "--for=ready"), "tenant/prod condition met")
}

func TestInterruptEndsAWait(t *testing.T) {
	s := newShell(t)
	tenantIs(s, "prod", cloud.TenantStatus{Phase: cloud.PhaseForming})
	b := s.background("wait", "tenant/prod")
	await(t, "the watch", func() bool { return strings.Contains(b.err.String(), "forming") })
	b.stop()
	if code := b.ends(t); code != 130 || strings.Contains(b.err.String(), "error") || !strings.Contains(b.err.String(), "freehold wait tenant/prod --for=active") {
		t.Fatalf("exit %d: %s", code, b.err.String())
	}
}
