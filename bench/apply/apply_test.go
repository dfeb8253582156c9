// Package apply measures what the plane adds to, or saves of, an OpenTofu run: the same main.tf.json against the same
// simulated machines, once by hand (tofu init, tofu apply, the provider's binary from a mirror) and once by the plane.
package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	talosprovider "freehold.dev/freehold/internal/cloud/talos/provider"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
	"freehold.dev/freehold/internal/talosim"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "tofu-run" {
		os.Exit(tofu.RunMain(context.Background(), os.Args[2:], tofu.Providers{talosprovider.Address: talosprovider.New("bench")}))
	}
	os.Exit(m.Run())
}

// rounds of each measurement; by hand and by the plane alternate, so that the machine's other load meets both.
const rounds = 5

func BenchmarkApply(b *testing.B) {
	binary, err := tofu.Find(b.Context(), os.Getenv("FREEHOLD_TOFU"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		// The .tf.json is the same; the key derivation is what whoever runs tofu asks for in TF_ENCRYPTION. By hand that is
		// OpenTofu's default, or, to see the rest alone, as few rounds as the plane asks for.
		ways := []way{newHand(b, binary, true), newHand(b, binary, false), newPlane(b, binary)}
		times := map[string]*[3][]time.Duration{}
		for i := range rounds {
			for j, way := range ways {
				sim, addrs := machines(b, 3)
				way.fresh(fmt.Sprintf("t%d", i))
				for _, step := range []struct {
					name   string
					config []byte
				}{
					{"create", config(addrs, "1")}, {"nothing", config(addrs, "1")}, {"change", config(addrs, "2")},
				} {
					started := time.Now()
					way.apply(step.config)
					if times[step.name] == nil {
						times[step.name] = new([3][]time.Duration)
					}
					times[step.name][j] = append(times[step.name][j], time.Since(started))
				}
				_ = sim.Close()
			}
		}
		for name, all := range times {
			h, few, p := median(all[0]), median(all[1]), median(all[2])
			b.ReportMetric(float64(h.Milliseconds()), name+"-hand-ms")
			b.ReportMetric(float64(few.Milliseconds()), name+"-hand-few-rounds-ms")
			b.ReportMetric(float64(p.Milliseconds()), name+"-plane-ms")
			b.ReportMetric(float64(p)/float64(h), name+"-ratio")
			b.ReportMetric(float64(p)/float64(few), name+"-ratio-few-rounds")
		}
	}
	b.ReportMetric(0, "ns/op")
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func machines(b *testing.B, n int) (*talosim.Sim, []netip.Addr) {
	sim, err := talosim.New(talosim.Options{Timing: talosim.Fast})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = sim.Close() })
	addrs, err := talosim.FreeAddresses(n)
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range addrs {
		if _, err := sim.Add(talosim.MachineSpec{Address: a}); err != nil {
			b.Fatal(err)
		}
	}
	return sim, addrs
}

// config is a tenant of one control plane and two workers, as the plane renders it. With no machines it is the
// secrets alone.
func config(addrs []netip.Addr, sysctl string) []byte {
	resources := map[string]any{"talos_machine_secrets": map[string]any{"cluster": map[string]any{"talos_version": "v1.12.6"}}}
	root := map[string]any{
		"terraform": map[string]any{
			"required_providers": map[string]any{"talos": map[string]any{"source": "siderolabs/talos"}},
			"backend":            map[string]any{"http": map[string]any{}},
		},
		"resource": resources,
	}
	if len(addrs) > 0 {
		groups, slots := map[string]any{}, map[string]any{}
		for i, a := range addrs {
			group := "worker"
			if i == 0 {
				group = "controlplane"
			}
			groups[group] = map[string]any{"type": group, "patches": []string{"machine:\n  sysctls:\n    vm.swappiness: \"" + sysctl + "\"\n"}}
			slots[fmt.Sprintf("m-%d", i)] = map[string]any{"group": group, "node": a.String()}
		}
		root["locals"] = map[string]any{"groups": groups, "machines": slots}
		root["data"] = map[string]any{"talos_machine_configuration": map[string]any{"group": map[string]any{
			"for_each": "${local.groups}", "cluster_name": "bench", "cluster_endpoint": "https://" + addrs[0].String() + ":6443",
			"machine_type": "${each.value.type}", "machine_secrets": "${talos_machine_secrets.cluster.machine_secrets}",
			"talos_version": "v1.12.6", "kubernetes_version": "1.35.0", "config_patches": "${each.value.patches}", "docs": false, "examples": false,
		}}}
		resources["talos_machine_configuration_apply"] = map[string]any{"machine": map[string]any{
			"for_each": "${local.machines}", "client_configuration": "${talos_machine_secrets.cluster.client_configuration}",
			"machine_configuration_input": "${data.talos_machine_configuration.group[each.value.group].machine_configuration}",
			"node":                        "${each.value.node}",
		}}
		resources["talos_machine_bootstrap"] = map[string]any{"cluster": map[string]any{
			"client_configuration": "${talos_machine_secrets.cluster.client_configuration}", "node": addrs[0].String(),
			"lifecycle": map[string]any{"ignore_changes": "all"},
		}}
	}
	raw, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return raw
}

// way is one way to apply a configuration to a tenant.
type way interface {
	fresh(tenant string)
	apply(config []byte)
}

// hand is what people do without the plane.
type hand struct {
	*testing.B
	tofu string
	// encryption is TF_ENCRYPTION.
	encryption string
	mirror     string
	folder     string
	url        string
	mu         sync.Mutex
	states     map[string][]byte
	first      bool
}

func newHand(b *testing.B, binary tofu.Binary, defaults bool) *hand {
	h := &hand{B: b, tofu: binary.Path, mirror: b.TempDir(), states: map[string][]byte{}}
	encryption := tofu.Encryption(strings.Repeat("passphrase", 3))
	if defaults {
		encryption["key_provider"] = map[string]any{"pbkdf2": map[string]any{"tenant": map[string]any{"passphrase": strings.Repeat("passphrase", 3)}}}
	}
	raw, err := json.Marshal(encryption)
	if err != nil {
		b.Fatal(err)
	}
	h.encryption = string(raw)
	at := filepath.Join(h.mirror, "registry.opentofu.org/siderolabs/talos/0.0.1/linux_amd64")
	if err := os.MkdirAll(at, 0o700); err != nil {
		b.Fatal(err)
	}
	program := filepath.Join(at, "terraform-provider-talos_v0.0.1")
	if built := filepath.Join(os.Getenv("FREEHOLD_BIN"), "terraform-provider-talos"); os.Getenv("FREEHOLD_BIN") != "" && os.Symlink(built, program) == nil {
		if _, err := os.Stat(program); err == nil {
			program = ""
		} else {
			_ = os.Remove(program)
		}
	}
	if program != "" {
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "freehold.dev/freehold/cmd/terraform-provider-talos")
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("build the provider: %v\n%s", err, out)
		}
	}
	rc := fmt.Sprintf("disable_checkpoint = true\nprovider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", h.mirror)
	if err := os.WriteFile(filepath.Join(h.mirror, "rc"), []byte(rc), 0o600); err != nil {
		b.Fatal(err)
	}
	s := httptest.NewServer(h)
	b.Cleanup(s.Close)
	h.url = s.URL
	return h
}

func (h *hand) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch state := h.states[r.URL.Path]; {
	case r.Method == http.MethodPost:
		h.states[r.URL.Path] = body
	case r.Method == http.MethodGet && state == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		_, _ = w.Write(state)
	}
}

func (h *hand) fresh(string) {
	h.folder = h.TempDir()
	h.first = true
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = map[string][]byte{}
}

func (h *hand) apply(config []byte) {
	h.Helper()
	if err := os.WriteFile(filepath.Join(h.folder, "main.tf.json"), config, 0o600); err != nil {
		h.Fatal(err)
	}
	if h.first {
		h.run("init", "-input=false")
		h.first = false
	}
	h.run("apply", "-input=false", "-auto-approve")
}

func (h *hand) run(args ...string) {
	h.Helper()
	cmd := exec.Command(h.tofu, args...)
	cmd.Dir = h.folder
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(h.mirror, "rc"), "TF_ENCRYPTION="+h.encryption,
		"TF_HTTP_ADDRESS="+h.url+"/s", "TF_HTTP_LOCK_ADDRESS="+h.url+"/lock", "TF_HTTP_UNLOCK_ADDRESS="+h.url+"/lock")
	if out, err := cmd.CombinedOutput(); err != nil {
		h.Fatalf("tofu %v: %v\n%s", args, err, out)
	}
}

// plane is the apply service, as the server runs it.
type plane struct {
	*testing.B
	service *apply.Service
	store   store.Store
	ended   chan string
	tenant  *cloud.Tenant
}

func newPlane(b *testing.B, binary tofu.Binary) *plane {
	p := &plane{B: b, ended: make(chan string, 10)}
	folder := b.TempDir()
	var err error
	if p.store, err = sqlite.Open(b.Context(), filepath.Join(folder, "db"), sqlite.Options{Kinds: cloud.Kinds()}); err != nil {
		b.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	root, err := secrets.Open(b.Context(), p.store, filepath.Join(folder, "root.key"))
	if err != nil {
		b.Fatal(err)
	}
	p.service, err = apply.New(b.Context(), apply.Config{
		Store: p.store, Folder: filepath.Join(folder, "tofu"), Root: root, Tofu: binary,
		Self: []string{self, "tofu-run"}, Wake: func(t string) { p.ended <- t },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = p.service.Close(context.Background())
		_ = p.store.Close()
	})
	return p
}

func (p *plane) fresh(name string) {
	p.tenant = &cloud.Tenant{}
	p.tenant.Name = name
	if err := p.store.Update(p.Context(), func(tx store.Tx) error { return cloud.Tenants.Create(tx, p.tenant) }); err != nil {
		p.Fatal(err)
	}
}

func (p *plane) apply(text []byte) {
	p.Helper()
	rec, err := p.service.Record(p.Context(), p.tenant.UID)
	if err != nil {
		p.Fatal(err)
	}
	stages := []tofu.Stage{{Name: "machines", Config: text}}
	if rec.State == nil {
		stages = slices.Insert(stages, 0, tofu.Stage{Name: "secrets", Config: config(nil, "")})
	}
	if err := p.service.Begin(p.Context(), apply.Spec{UID: p.tenant.UID, Tenant: p.tenant.Name, Digest: "d", Stages: stages}); err != nil {
		p.Fatal(err)
	}
	<-p.ended
	if rec, err = p.service.Record(p.Context(), p.tenant.UID); err != nil || rec.Last.Result != string(tofu.Succeeded) {
		p.Fatalf("%+v, %v", rec.Last, err)
	}
}
