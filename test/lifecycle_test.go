package test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTenantLifecycleEndToEnd follows the API design's section of that name, request by request.
func TestTenantLifecycleEndToEnd(t *testing.T) {
	sim := startSim(t, 8)
	p := startPlane(t, t.TempDir())
	p.register(t, sim.addresses)

	// 1. User creates tenant.
	tenant := p.want(http.StatusCreated, "POST", "/api/v1/tenants", `{"metadata":{"name":"prod","labels":{"rezuscloud.io/environment":"prod"},
		"annotations":{"rezuscloud.io/description":"Production cluster"}},
		"spec":{"kubernetesVersion":"1.35.0","talosVersion":"1.12.6","podNetwork":["10.244.0.0/16"],"serviceNetwork":["10.96.0.0/12"],
		"plugins":{"cni":{"type":"flannel"},"csi":{"type":"none"}},
		"configPatches":[{"name":"label","patch":"machine:\n  nodeLabels:\n    tier: gold\n"}]}}`)
	if tenant.str("status.phase") != "forming" || tenant.bool("status.available") {
		t.Fatalf("a new tenant is forming and not available: %s", tenant.json())
	}

	// 2. User creates node groups.
	cp := p.want(http.StatusCreated, "POST", "/api/v1/tenants/prod/node-groups",
		`{"metadata":{"labels":{"rezuscloud.io/role":"controlplane"}},"spec":{"count":3,"providerClass":"metal"}}`)
	if cp.str("metadata.name") != "prod-control-plane" {
		t.Fatalf("the default name of a control-plane group: %s", cp.json())
	}
	labels, _ := cp.at("metadata.labels").(map[string]any)
	if labels["rezuscloud.io/tenant"] != "prod" {
		t.Fatalf("the server labels node groups with their tenant: %s", cp.json())
	}
	p.want(http.StatusCreated, "POST", "/api/v1/tenants/prod/node-groups",
		`{"metadata":{"labels":{"rezuscloud.io/role":"worker"}},"spec":{"count":5,"providerClass":"metal","providerConfig":{}}}`)

	// 3 to 5. Apply, boot, join: forming → active.
	p.untilActive(t, "prod", 8)
	machines := p.want(http.StatusOK, "GET", "/api/v1/tenants/prod/machines?labelSelector=rezuscloud.io/role%3Dcontrolplane", "")
	if machines.num("total") != 3 {
		t.Fatalf("three control-plane machines: %s", machines.json())
	}

	// 6. User retrieves kubeconfig, and the cluster accepts it.
	status, kubeconfig := p.call("GET", "/api/v1/tenants/prod/kubeconfig", "")
	if status != http.StatusOK {
		t.Fatalf("kubeconfig: %d %s", status, kubeconfig)
	}
	out := kubectl(t, kubeconfig, "get", "nodes", "--no-headers")
	if n := strings.Count(out, " Ready "); n != 8 {
		t.Fatalf("eight nodes are Ready, kubectl sees:\n%s", out)
	}
	if out := kubectl(t, kubeconfig, "get", "--raw", "/readyz"); strings.TrimSpace(out) != "ok" {
		t.Fatalf("/readyz: %s", out)
	}
	if out := kubectl(t, kubeconfig, "version"); !strings.Contains(out, "Server Version: v1.35.0") {
		t.Fatalf("kubectl version: %s", out)
	}

	// Every object that was read can be sent back as it is.
	for _, path := range []string{"/api/v1/tenants/prod", "/api/v1/tenants/prod/node-groups/prod-worker", "/api/v1/tenants/prod/node-groups/prod-control-plane"} {
		eventually(t, "PUT "+path+" unchanged", func() string {
			before := p.want(http.StatusOK, "GET", path, "")
			status, data := p.call("PUT", path, before.json())
			switch status {
			case http.StatusOK:
				return ""
			case http.StatusConflict: // a status was written in between
				return string(data)
			}
			t.Fatalf("PUT of what was read: %d %s", status, data)
			return ""
		})
	}

	// 7. User deletes tenant.
	deleted := p.want(http.StatusOK, "DELETE", "/api/v1/tenants/prod", "")
	finalizers := fmt.Sprint(deleted.at("metadata.finalizers"))
	if deleted.str("metadata.deletionTimestamp") == "" || !strings.Contains(finalizers, "rezuscloud.io/machines") || !strings.Contains(finalizers, "rezuscloud.io/secrets") {
		t.Fatalf("deletion waits for the finalizers: %s", deleted.json())
	}
	p.untilGone(t, "prod")
	for _, m := range sim.machines(t) {
		if m.Stage != "maintenance" {
			t.Errorf("machine %s was not reset: %+v", m.Address, m)
		}
	}
	assertNothingLeaked(t, p)
}

// kubectl runs the real one with a kubeconfig and answers what it prints.
func kubectl(t *testing.T, kubeconfig []byte, args ...string) string {
	t.Helper()
	program := findKubectl()
	if program == "" {
		t.Fatal("no kubectl: run make kubectl, or name one with FREEHOLD_KUBECTL")
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{"--kubeconfig", file}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
