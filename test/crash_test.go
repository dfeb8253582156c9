package test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// kills is how often the plane is killed in one test: a few in a short run.
func kills(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

// TestPlaneKilledAtRandomContinuesToWhatWasDeclared kills the plane again and again while it creates, scales and
// deletes tenants. Machines and supervisors live on, as they do when a plane crashes.
func TestPlaneKilledAtRandomContinuesToWhatWasDeclared(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sim := startSim(t, 8)
	p := startPlane(t, t.TempDir())
	p.register(t, sim.addresses)
	crash := func(most time.Duration) {
		pause(t, time.Duration(rng.Int64N(int64(most))))
		assertOneTofuPerTenant(t, p.dir)
		p.crash(t)
	}

	p.create(t, "a", 1, 2)
	for range kills(4, 20) {
		crash(1200 * time.Millisecond)
	}
	p.create(t, "b", 1, 1)
	for range kills(3, 20) {
		crash(800 * time.Millisecond)
	}
	p.untilActive(t, "a", 3)
	p.untilActive(t, "b", 2)

	p.change(t, "/api/v1/tenants/a/node-groups/a-control-plane", func(spec map[string]any) { spec["count"] = 3 })
	p.change(t, "/api/v1/tenants/a/node-groups/a-worker", func(spec map[string]any) { spec["count"] = 1 })
	for range kills(3, 20) {
		crash(1200 * time.Millisecond)
	}
	p.untilActive(t, "a", 4)
	p.change(t, "/api/v1/tenants/a/node-groups/a-control-plane", func(spec map[string]any) { spec["count"] = 1 })
	for range kills(3, 20) {
		crash(1200 * time.Millisecond)
	}
	p.untilActive(t, "a", 2)
	_, kubeconfig := p.call("GET", "/api/v1/tenants/a/kubeconfig", "")
	if out := kubectl(t, kubeconfig, "get", "--raw", "/readyz"); strings.TrimSpace(out) != "ok" {
		t.Errorf("the cluster kept its quorum: %s", out)
	}

	p.want(http.StatusOK, "DELETE", "/api/v1/tenants/a", "")
	p.want(http.StatusOK, "DELETE", "/api/v1/tenants/b", "")
	for range kills(3, 20) {
		crash(800 * time.Millisecond)
	}
	p.untilGone(t, "a")
	p.untilGone(t, "b")
	for _, m := range sim.machines(t) {
		if m.Stage != "maintenance" {
			t.Errorf("machine %s is an orphan: %+v", m.Address, m)
		}
	}
	assertNothingLeaked(t, p)
}

// pause lets a random time go by: it decides when the plane is killed, nothing waits for anything.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

func isTofu(pid string) bool {
	exe, err := os.Readlink(filepath.Join("/proc", pid, "exe"))
	return err == nil && filepath.Base(exe) == "tofu"
}

func parentOf(pid string) string {
	status, _ := os.ReadFile(filepath.Join("/proc", pid, "status"))
	_, rest, _ := strings.Cut(string(status), "\nPPid:\t")
	parent, _, _ := strings.Cut(rest, "\n")
	return parent
}

// assertOneTofuPerTenant looks at the processes of this machine: no two of tofu work in one tenant's folder.
func assertOneTofuPerTenant(t *testing.T, dir string) {
	t.Helper()
	seen := map[string]string{}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range procs {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		// One that tofu starts is a tofu too until it has become what it is to be.
		if !isTofu(d.Name()) || isTofu(parentOf(d.Name())) {
			continue
		}
		cwd, err := os.Readlink(filepath.Join("/proc", d.Name(), "cwd"))
		if err != nil || !strings.HasPrefix(cwd, dir) {
			continue
		}
		if other, ok := seen[cwd]; ok {
			t.Errorf("two tofu work in %s: %s", cwd, fmt.Sprint(other, " and ", d.Name()))
		}
		seen[cwd] = d.Name()
	}
}
