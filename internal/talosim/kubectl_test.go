package talosim_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// findKubectl prefers the one named by the environment.
func findKubectl(t *testing.T) string {
	if p := os.Getenv("FREEHOLD_KUBECTL"); p != "" {
		return p
	}
	p, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl on PATH and FREEHOLD_KUBECTL is not set")
	}
	return p
}

func TestKubectlWorksOnACluster(t *testing.T) {
	kubectl := findKubectl(t)
	sim := newSim(t, "")
	machines := addMachines(t, sim, 2)
	te := form(t, machines, 1)
	data, err := te.dial(t, machines[0].Address()).Kubeconfig(short(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cp, worker := machines[0].State(), machines[1].State()
	for _, step := range []struct {
		args string
		want []string
	}{
		{"get --raw /readyz", []string{"ok"}},
		{"get --raw /readyz?verbose", []string{"[+]etcd ok", "readyz check passed"}},
		{"version", []string{"Server Version: v1.35.0"}},
		{"get nodes", []string{cp.Hostname + " ", "Ready", "control-plane", worker.Hostname + " ", "<none>", "v1.35.0"}},
		{"get nodes -o wide", []string{"INTERNAL-IP", machines[1].Address().String(), "Talos (v1.12.6)", "containerd://"}},
		{"get node " + worker.Hostname + " -o yaml", []string{"kind: Node", "kubeletVersion: v1.35.0"}},
		{"get nodes -l node-role.kubernetes.io/control-plane -o name", []string{"node/" + cp.Hostname}},
		{"describe node " + worker.Hostname, []string{"KubeletReady", "InternalIP"}},
		{"cordon " + worker.Hostname, []string{"cordoned"}},
		{"get nodes", []string{"Ready,SchedulingDisabled"}},
		{"uncordon " + worker.Hostname, []string{"uncordoned"}},
		{"label node " + worker.Hostname + " zone=a", []string{"labeled"}},
		{"get namespaces", []string{"default", "kube-system", "Active"}},
		{"create namespace web", []string{"namespace/web created"}},
		{"create configmap a -n web --from-literal=k=v", []string{"configmap/a created"}},
		{"get cm -n web", []string{"a "}},
		{"delete namespace web", []string{"deleted"}},
		{"api-resources", []string{"nodes", "deployments"}},
		{"auth can-i delete nodes", []string{"yes"}},
		{"auth whoami", []string{"system:masters"}},
		{"cluster-info", []string{"is running at"}},
		{"get pods -A", []string{"kube-apiserver-" + cp.Hostname, "Running", "coredns"}},
	} {
		args := append([]string{"--kubeconfig", path, "--cache-dir", filepath.Join(t.TempDir(), "cache")}, strings.Fields(step.args)...)
		cmd := exec.CommandContext(t.Context(), kubectl, args...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("kubectl %s: %v\n%s", step.args, err, out.String())
			continue
		}
		for _, want := range step.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("kubectl %s misses %q:\n%s", step.args, want, out.String())
			}
		}
	}
}
