package provider_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/talosim"
)

// simulate makes n machines in maintenance mode.
func simulate(t *testing.T, n int) []*talosim.Machine {
	t.Helper()
	sim, err := talosim.New(talosim.Options{Timing: talosim.Fast})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sim.Close() })
	addresses, err := talosim.FreeAddresses(n)
	if err != nil {
		t.Fatal(err)
	}
	machines := make([]*talosim.Machine, n)
	for i, a := range addresses {
		if machines[i], err = sim.Add(talosim.MachineSpec{Address: a}); err != nil {
			t.Fatal(err)
		}
	}
	return machines
}

// slot is one machine of a cluster's configuration.
type slot struct {
	Name    string
	Role    string
	Address netip.Addr
	// Endpoint stands before the machine, if it is valid.
	Endpoint netip.Addr
	Patches  []string
}

// cluster is a configuration: the first slot is bootstrapped.
type cluster struct {
	Name     string
	Endpoint string
	Slots    []slot
	Create   string
	Delete   string
	Mode     string
	Graceful bool
}

func controlPlane(m *talosim.Machine) slot {
	return slot{Name: "cp-0", Role: "controlplane", Address: m.Address()}
}

func worker(i int, m *talosim.Machine) slot {
	return slot{Name: fmt.Sprintf("worker-%d", i), Role: "worker", Address: m.Address()}
}

var clusterTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"json": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	},
}).Parse(required + `
locals {
  machines = {
{{- range .Slots}}
    {{.Name}} = { address = "{{.Address}}", role = "{{.Role}}", endpoint = {{if .Endpoint.IsValid}}"{{.Endpoint}}"{{else}}null{{end}}, patches = {{json .Patches}} }
{{- end}}
  }
}
resource "talos_machine_secrets" "this" {
  talos_version = "v1.6"
}
data "talos_machine_configuration" "role" {
  for_each           = toset(["controlplane", "worker"])
  cluster_name       = "{{.Name}}"
  cluster_endpoint   = "{{.Endpoint}}"
  machine_type       = each.key
  machine_secrets    = talos_machine_secrets.this.machine_secrets
  talos_version      = "1.12.6"
  kubernetes_version = "1.35.0"
}
resource "talos_machine_configuration_apply" "machine" {
  for_each                    = local.machines
  node                        = each.value.address
  endpoint                    = each.value.endpoint
  client_configuration        = talos_machine_secrets.this.client_configuration
  machine_configuration_input = data.talos_machine_configuration.role[each.value.role].machine_configuration
  config_patches              = each.value.patches
  {{- if .Mode}}
  apply_mode = "{{.Mode}}"
  {{- end}}
  on_destroy = { reset = true, reboot = true, graceful = {{.Graceful}} }
  timeouts   = { create = "{{or .Create "60s"}}", update = "{{or .Create "60s"}}", delete = "{{or .Delete "60s"}}" }
}
resource "talos_machine_bootstrap" "this" {
  depends_on           = [talos_machine_configuration_apply.machine]
  node                 = local.machines["cp-0"].address
  client_configuration = talos_machine_secrets.this.client_configuration
  timeouts             = { create = "{{or .Create "60s"}}" }
}
resource "talos_cluster_kubeconfig" "this" {
  depends_on           = [talos_machine_bootstrap.this]
  node                 = local.machines["cp-0"].address
  client_configuration = talos_machine_secrets.this.client_configuration
  timeouts             = { create = "{{or .Create "60s"}}" }
}
`))

func (c cluster) config(t *testing.T) string {
	t.Helper()
	if c.Name == "" {
		c.Name = "prod"
	}
	if c.Endpoint == "" {
		c.Endpoint = fmt.Sprintf("https://%s:6443", c.Slots[0].Address)
	}
	for i := range c.Slots {
		if c.Slots[i].Patches == nil {
			c.Slots[i].Patches = []string{}
		}
	}
	var b bytes.Buffer
	if err := clusterTemplate.Execute(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 60 s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func wantRunning(t *testing.T, machines ...*talosim.Machine) {
	t.Helper()
	for _, m := range machines {
		eventually(t, m.Address().String()+" runs and is ready", func() bool {
			s := m.State()
			return s.Stage == "running" && s.Ready
		})
	}
}

func wantReset(t *testing.T, machines ...*talosim.Machine) {
	t.Helper()
	for _, m := range machines {
		if s := m.State(); s.Stage != "maintenance" || s.Installed || m.Config() != nil {
			t.Errorf("%s was not reset: %+v", m.Address(), s)
		}
	}
}

func applies(machines ...*talosim.Machine) (counts []int) {
	for _, m := range machines {
		counts = append(counts, m.State().Applies)
	}
	return counts
}

func TestAClusterFromNothingToNothing(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *workspace{"reattached": reattached, "installed": mirrored} {
		t.Run(name, func(t *testing.T) {
			if name == "installed" {
				deep(t) // the example of the reference page is applied with the built program too
			}
			w := open(t)
			machines := simulate(t, 4)
			cp, first, second, third := machines[0], machines[1], machines[2], machines[3]

			c := cluster{Slots: []slot{controlPlane(cp), worker(0, first), worker(1, second)}}
			w.apply(c.config(t))
			wantRunning(t, cp, first, second)
			w.wantNoChanges()
			var kubernetes struct {
				Host string `json:"host"`
				CA   []byte `json:"ca_certificate"`
				Cert []byte `json:"client_certificate"`
				Key  []byte `json:"client_key"`
			}
			if err := json.Unmarshal(w.attribute("talos_cluster_kubeconfig", "kubernetes_client_configuration"), &kubernetes); err != nil {
				t.Fatal(err)
			}
			if kubernetes.Host != fmt.Sprintf("https://%s:6443", cp.Address()) || !bytes.Contains(kubernetes.CA, []byte("CERTIFICATE")) ||
				!bytes.Contains(kubernetes.Cert, []byte("CERTIFICATE")) || !bytes.Contains(kubernetes.Key, []byte("PRIVATE KEY")) {
				t.Errorf("the kubeconfig's parts are wrong: host %s", kubernetes.Host)
			}

			// A machine's own patch touches that machine alone.
			before := applies(cp, first, second)
			c.Slots[1].Patches = []string{"machine:\n  nodeLabels:\n    tier: gold\n", `[{"op":"add","path":"/machine/sysctls","value":{"vm.swappiness":"1"}}]`}
			w.write(c.config(t))
			if diff := cmp.Diff(map[string]string{`talos_machine_configuration_apply.machine["worker-0"]`: "update"}, w.changes()); diff != "" {
				t.Error(diff)
			}
			w.apply(c.config(t))
			if diff := cmp.Diff([]int{before[0], before[1] + 1, before[2]}, applies(cp, first, second)); diff != "" {
				t.Errorf("applies: %s", diff)
			}
			if !bytes.Contains(first.Config(), []byte("tier: gold")) || !bytes.Contains(first.Config(), []byte("vm.swappiness")) {
				t.Error("the patches did not reach the machine")
			}
			w.wantNoChanges()

			// Another endpoint changes every machine in place.
			boots := cp.State().Boots
			c.Endpoint = "https://prod.k8s.example.com:6443"
			w.write(c.config(t))
			for address, action := range w.changes() {
				if action != "update" {
					t.Errorf("%s: %s", address, action)
				}
			}
			w.apply(c.config(t))
			for _, m := range []*talosim.Machine{cp, first, second} {
				if !bytes.Contains(m.Config(), []byte("prod.k8s.example.com")) {
					t.Errorf("%s does not know the endpoint", m.Address())
				}
			}
			if cp.State().Boots != boots {
				t.Error("a change that needs no reboot rebooted the machine")
			}
			w.wantNoChanges()

			// One more, then two fewer.
			c.Slots = append(c.Slots, worker(2, third))
			w.apply(c.config(t))
			wantRunning(t, third)
			w.wantNoChanges()
			c.Slots = c.Slots[:2]
			w.apply(c.config(t))
			wantReset(t, second, third)
			wantRunning(t, cp, first)
			w.wantNoChanges()

			w.run("destroy", "-auto-approve", "-no-color")
			wantReset(t, cp, first)
		})
	}
}

func TestDestroyAcceptsAMachineThatWasResetAlready(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 2)
	c := cluster{Slots: []slot{controlPlane(machines[0]), worker(0, machines[1])}}
	w.apply(c.config(t))
	wantRunning(t, machines...)
	resetBehindOurBack(t, machines[1], machines[0])
	resets := machines[1].State().Resets
	w.run("destroy", "-auto-approve", "-no-color")
	wantReset(t, machines...)
	if machines[1].State().Resets != resets {
		t.Error("a machine in maintenance mode was reset again")
	}
}

func TestBootstrappingTwiceIsNoError(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 1)
	c := cluster{Slots: []slot{controlPlane(machines[0])}}
	w.apply(c.config(t))
	wantRunning(t, machines[0])
	member := machines[0].State().EtcdMember
	w.run("state", "rm", "talos_machine_bootstrap.this")
	w.apply(c.config(t))
	w.run("state", "rm", "talos_machine_bootstrap.this")
	w.run("import", "-no-color", "talos_machine_bootstrap.this", "any")
	w.apply(c.config(t))
	w.wantNoChanges()
	if machines[0].State().EtcdMember != member {
		t.Error("etcd was bootstrapped anew")
	}
}

func TestAMachineOfThisClusterThatTheStateForgotIsTakenBack(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 2)
	c := cluster{Slots: []slot{controlPlane(machines[0]), worker(0, machines[1])}}
	w.apply(c.config(t))
	wantRunning(t, machines...)
	boots := machines[1].State().Boots
	w.run("state", "rm", `talos_machine_configuration_apply.machine["worker-0"]`)
	w.apply(c.config(t))
	w.wantNoChanges()
	if machines[1].State().Boots != boots {
		t.Error("a machine that was as declared was rebooted")
	}
}

func TestStagedWhereARebootWouldBeNeeded(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 1)
	c := cluster{Slots: []slot{controlPlane(machines[0])}, Mode: "staged_if_needing_reboot"}
	w.apply(c.config(t))
	wantRunning(t, machines[0])
	boots := machines[0].State().Boots
	for _, step := range []struct{ patch, mode string }{
		{"machine:\n  sysctls:\n    vm.swappiness: \"1\"\n", `"auto"`},
		{"machine:\n  env:\n    A: b\n", `"staged"`},
	} {
		c.Slots[0].Patches = []string{step.patch}
		w.apply(c.config(t))
		if got := string(w.attribute("talos_machine_configuration_apply", "resolved_apply_mode")); got != step.mode {
			t.Errorf("%q: resolved to %s, want %s", step.patch, got, step.mode)
		}
		w.wantNoChanges()
	}
	if machines[0].State().Boots != boots {
		t.Error("the machine was rebooted")
	}
}

func TestTheExampleOfTheReferencePageWorks(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/reference/terraform-provider-talos.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```terraform\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there is no example")
	}
	machines := simulate(t, 2)
	w := mirrored(t)
	w.apply(strings.NewReplacer("10.0.0.2", machines[0].Address().String(), "10.0.0.3", machines[1].Address().String()).Replace(example))
	wantRunning(t, machines...)
	w.wantNoChanges()
	if out := w.run("output", "-raw", "kubeconfig"); !strings.Contains(out, "kind: Config") {
		t.Errorf("not a kubeconfig: %s", out)
	}
	w.run("destroy", "-auto-approve", "-no-color")
	wantReset(t, machines...)
}

func TestAMachineBehindAnotherIsReachedAndNotMistakenForIt(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 2)
	behind := worker(0, machines[1])
	behind.Endpoint = machines[0].Address()
	c := cluster{Slots: []slot{controlPlane(machines[0]), behind}}
	// Both are in maintenance mode at first: the worker's configuration must not end up on the machine at its endpoint.
	w.apply(c.config(t))
	wantRunning(t, machines...)
	if cp, other := machines[0].State().Role, machines[1].State().Role; cp != "controlplane" || other != "worker" {
		t.Fatalf("the machines are %s and %s", cp, other)
	}
	c.Slots[1].Patches = []string{"machine:\n  nodeLabels:\n    tier: gold\n"}
	w.apply(c.config(t))
	if !bytes.Contains(machines[1].Config(), []byte("tier: gold")) || bytes.Contains(machines[0].Config(), []byte("tier: gold")) {
		t.Error("the patch did not reach the machine behind the other one, and only that")
	}
	w.run("destroy", "-auto-approve", "-no-color")
	wantReset(t, machines...)
}

func TestAStateOfANewerPublishedProviderIsUnderstood(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 1)
	w.apply(cluster{Slots: []slot{controlPlane(machines[0])}}.config(t))
	file := w.dir + "/terraform.tfstate"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var state map[string]any
	if err := json.Unmarshal(text, &state); err != nil {
		t.Fatal(err)
	}
	for _, r := range state["resources"].([]any) {
		if r := r.(map[string]any); r["mode"] == "managed" {
			for _, i := range r["instances"].([]any) {
				attributes := i.(map[string]any)["attributes"].(map[string]any)
				attributes["machine_configuration_hash"], attributes["client_configuration_wo"] = "00ff", nil
			}
		}
	}
	if text, err = json.Marshal(state); err != nil {
		t.Fatal(err)
	}
	w.writeTo(file, string(text))
	w.wantNoChanges()
}
