package provider_test

import (
	"os"
	"path/filepath"
	"strconv"
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
	secrets, rest, _ := strings.Cut(offline, "data ")
	configuration, _, _ := strings.Cut("data "+rest, "data \"talos_client_configuration\"")
	config := secrets
	mistakes := map[string]struct{ from, to, want string }{
		"endpoint":     {"https://10.0.0.1:6443", "http://10.0.0.1", "not an https URL"},
		"machine_type": {`"controlplane"`, `"boss"`, `got: "boss"`},
		"talos":        {`"1.12.6"`, `"1.99.0"`, "1.2 to 1.12"},
		"kubernetes":   {`"1.35.0"`, `"1.99.0"`, "too new"},
		"no_version":   {`"1.35.0"`, `"latest"`, "not a semantic version"},
		"unknown_key":  {`install = {`, `instal = {`, "machine.instal.disk"},
		"file":         {`yamlencode({ machine = { install = { disk = "/dev/vda" } } })`, `"@/etc/passwd"`, "not followed"},
	}
	for name, m := range mistakes {
		config += strings.Replace(strings.Replace(configuration, m.from, m.to, 1), `"cp"`, strconv.Quote(name), 1)
	}
	w.write(config + `resource "talos_machine_secrets" "old" { talos_version = "v9" }`)
	out, code := w.try("validate", "-no-color")
	if code == 0 {
		t.Fatal(out)
	}
	for name, m := range mistakes {
		_, told, found := strings.Cut(out, "with data.talos_machine_configuration."+name+",")
		told, _, _ = strings.Cut(told, "Error:")
		if !found || !strings.Contains(told, m.want) {
			t.Errorf("%s: want %q, got %q in %s", name, m.want, told, out)
		}
	}
	if !strings.Contains(out, "Talos version not usable with talos_machine_secrets.old,") {
		t.Errorf("secrets: %s", out)
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
