package provider_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/internal/cloud/talos"
)

const required = `
terraform {
  required_providers {
    talos = { source = "siderolabs/talos" }
  }
}
`

// offline is everything that needs no machine.
const offline = required + `
resource "talos_machine_secrets" "this" {
  talos_version = "v1.6"
}
data "talos_machine_configuration" "cp" {
  cluster_name       = "prod"
  cluster_endpoint   = "https://10.0.0.1:6443"
  machine_type       = "controlplane"
  machine_secrets    = talos_machine_secrets.this.machine_secrets
  talos_version      = "1.12.6"
  kubernetes_version = "1.35.0"
  config_patches     = [yamlencode({ machine = { install = { disk = "/dev/vda" } } })]
}
data "talos_client_configuration" "this" {
  cluster_name         = "prod"
  client_configuration = talos_machine_secrets.this.client_configuration
  endpoints            = ["10.0.0.1"]
  nodes                = ["10.0.0.2"]
}
output "config" {
  value     = data.talos_machine_configuration.cp.machine_configuration
  sensitive = true
}
output "talosconfig" {
  value     = data.talos_client_configuration.this.talos_config
  sensitive = true
}
`

func TestSecretsAndConfigurationsAreMadeOnceAndStay(t *testing.T) {
	w := reattached(t)
	w.apply(offline)
	w.wantNoChanges()

	s, err := talos.SecretsFromState(w.attribute("talos_machine_secrets", "machine_secrets"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := talos.Generate(talos.ConfigInput{Cluster: "prod", Endpoint: "https://10.0.0.1:6443", Role: "controlplane", TalosVersion: "1.12.6",
		KubernetesVersion: "1.35.0", Patches: []string{"machine:\n  install:\n    disk: /dev/vda\n"}}, s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.command("output", "-raw", "config").Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the configuration differs from the one that is generated from the state's secrets:\n%s", diff)
	}

	// A newer Talos keeps the secrets.
	w.write(strings.Replace(offline, `"v1.6"`, `"v1.12"`, 1))
	if diff := cmp.Diff(map[string]string{"talos_machine_secrets.this": "update"}, w.changes()); diff != "" {
		t.Error(diff)
	}
	w.run("apply", "-auto-approve", "-no-color")
	again, err := talos.SecretsFromState(w.attribute("talos_machine_secrets", "machine_secrets"))
	if err != nil {
		t.Fatal(err)
	}
	if again.ClusterID() != s.ClusterID() {
		t.Error("another Talos version made another cluster")
	}
	w.wantNoChanges()

	out, code := w.tryApply(strings.Replace(offline, `"v1.6"`, `"v1.2"`, 1))
	if code == 0 || !strings.Contains(out, "Secrets cannot change their encryption") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestMistakesAreFoundBeforeAnythingIsMade(t *testing.T) {
	w := reattached(t)
	w.write(offline)
	for name, c := range map[string]struct{ from, to, want string }{
		"endpoint":        {"https://10.0.0.1:6443", "http://10.0.0.1", "not an https URL"},
		"machine type":    {`"controlplane"`, `"boss"`, "controlplane"},
		"talos version":   {`"1.12.6"`, `"1.99.0"`, "1.2 to 1.12"},
		"kubernetes":      {`"1.35.0"`, `"1.99.0"`, "too new"},
		"no version":      {`"1.35.0"`, `"latest"`, "not a semantic version"},
		"unknown key":     {`install = {`, `instal = {`, "machine.instal.disk"},
		"file":            {`yamlencode({ machine = { install = { disk = "/dev/vda" } } })`, `"@/etc/passwd"`, "not followed"},
		"secrets version": {`"v1.6"`, `"v9"`, "Talos version not usable"},
	} {
		w.write(strings.Replace(offline, c.from, c.to, 1))
		out, code := w.try("validate", "-no-color")
		if code == 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit code %d, want %q: %s", name, code, c.want, out)
		}
	}
}

func TestSecretsOfTalosctlCanBeImported(t *testing.T) {
	s, err := talos.NewSecrets("v1.6")
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(s.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w := reattached(t)
	w.write(strings.Replace(offline, `talos_version = "v1.6"`, "", 1))
	w.run("import", "-no-color", "talos_machine_secrets.this", file)
	imported, err := talos.SecretsFromState(w.attribute("talos_machine_secrets", "machine_secrets"))
	if err != nil {
		t.Fatal(err)
	}
	if imported.ClusterID() != s.ClusterID() {
		t.Error("another cluster was imported")
	}
	w.run("apply", "-auto-approve", "-no-color")
	w.wantNoChanges()
	if out, code := w.try("import", "-no-color", "talos_machine_secrets.other", "/nowhere"); code == 0 {
		t.Errorf("a file that is not there was imported: %s", out)
	}
}
