package talosim_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"freehold.dev/freehold/internal/talosim"
)

// TestTalosctlWorksOnACluster drives machines with the real talosctl, which FREEHOLD_TALOSCTL names.
func TestTalosctlWorksOnACluster(t *testing.T) {
	talosctl := os.Getenv("FREEHOLD_TALOSCTL")
	if talosctl == "" {
		t.Skip("FREEHOLD_TALOSCTL is not set")
	}
	// talosctl looks every second, and takes a machine that rebooted between two looks for one that never did.
	timing := talosim.Fast
	timing.Boot = 3 * time.Second
	sim, err := talosim.New(talosim.Options{Timing: timing})
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	machines := addMachines(t, sim, 2)
	cp, worker := machines[0].Address().String(), machines[1].Address().String()
	te := newTenant(t, "prod", machines[0].Address())
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cpFile := write("cp.yaml", te.config(t, machine.TypeControlPlane))
	workerFile := write("worker.yaml", te.config(t, machine.TypeWorker))
	tcData, err := te.talosconfig(t).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	talosconfig := write("talosconfig", tcData)
	run := func(args string, want ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, talosctl, append([]string{"--talosconfig", talosconfig}, strings.Fields(args)...)...)
		cmd.Env = append(os.Environ(), "HOME="+dir)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		if err != nil {
			t.Errorf("talosctl %s: %v\n%s", args, err, out.String())
			return
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("talosctl %s misses %q:\n%s", args, w, out.String())
			}
		}
		t.Logf("talosctl %s\n%s", args, out.String())
	}
	for _, m := range machines {
		waitStage(t, insecure(t, m.Address()), runtime.MachineStageMaintenance, true)
	}
	run("get disks --insecure -n "+cp, "sda", "64 GiB")
	run("get machinestatus --insecure -n "+cp, "maintenance", "true")
	run("apply-config --insecure -n " + cp + " -f " + cpFile)
	run("apply-config --insecure -n " + worker + " -f " + workerFile)
	waitStage(t, te.dial(t, machines[0].Address()), runtime.MachineStageBooting, false)
	eventually(t, "etcd prepares", func() error {
		_, err := te.dial(t, machines[0].Address()).ServiceInfo(short(t), "etcd")
		return err
	})
	run("bootstrap -n " + cp)
	for _, m := range machines {
		waitStage(t, te.dial(t, m.Address()), runtime.MachineStageRunning, true)
	}
	both := " -n " + cp + "," + worker
	run("version"+both, "NODE:", cp, worker, "v1.12.6")
	run("services"+both, "etcd", "apid", "Running", "OK")
	run("service etcd -n "+cp, "HEALTH", "OK")
	run("get machinestatus -n "+cp, "running", "true")
	run("get members -n "+cp, machines[1].State().Hostname, "worker", "controlplane")
	run("get nodeaddress -n "+worker, worker)
	run("get machineconfig -n "+worker+" -o yaml", "type: worker")
	run("get rd -n "+cp, "machinestatuses.runtime.talos.dev")
	run("etcd members -n "+cp, machines[0].State().Hostname)
	run("etcd status -n "+cp, cp)
	run("logs etcd -n "+cp, "ready to serve")
	run("dmesg -n "+cp, "Linux version")
	run("memory"+both, cp)
	run("time -n "+cp, cp)
	run("mounts -n "+cp, "/var")
	run("processes -n "+cp, "init")
	run("containers -n "+cp, "apid")
	run("read /proc/sys/kernel/random/boot_id -n "+cp, machines[0].State().BootID)
	run("kubeconfig "+filepath.Join(dir, "kubeconfig")+" -n "+cp, "")
	run("health --wait-timeout 20s -n "+cp, "all k8s nodes to report ready: OK")
	run("health --server=false --wait-timeout 30s -n "+cp+" --control-plane-nodes "+cp+" --worker-nodes "+worker, "OK")
	run("apply-config --dry-run -n "+worker+" -f "+workerFile, "No changes")
	run("apply-config -n "+worker+" -f "+workerFile, "without a reboot")
	boots := machines[1].State().Boots
	run("reboot --wait --timeout 30s -n " + worker)
	run("upgrade --wait --timeout 30s --image ghcr.io/siderolabs/installer:v1.12.7 -n " + worker)
	if n := machines[1].State().Boots; n != boots+2 {
		t.Errorf("%d boots after a reboot and an upgrade, want %d", n, boots+2)
	}
	waitStage(t, te.dial(t, machines[1].Address()), runtime.MachineStageRunning, true)
	run("reset --graceful=false --reboot --wait --timeout 30s -n " + worker)
	waitStage(t, insecure(t, machines[1].Address()), runtime.MachineStageMaintenance, true)
	run("shutdown --force --wait --timeout 30s -n " + cp)
	if st := machines[0].State(); st.Stage != "off" {
		t.Errorf("after shutdown: %+v", st)
	}
}
