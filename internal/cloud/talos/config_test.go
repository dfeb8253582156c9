package talos_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
)

func input(role cloud.Role) talos.ConfigInput {
	return talos.ConfigInput{Cluster: "prod", Endpoint: "https://10.0.0.1:6443", Role: role, TalosVersion: "1.12.6", KubernetesVersion: "1.35.0"}
}

var sharedSecrets = sync.OnceValues(func() (*talos.Secrets, error) { return talos.NewSecrets("1.6.0") })

// newSecrets are those of an older contract, which spares the tests an RSA key of 4096 bits.
func newSecrets(t testing.TB) *talos.Secrets {
	t.Helper()
	s, err := sharedSecrets()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryKnownVersionGeneratesAValidConfiguration(t *testing.T) {
	for talosVersion, kubernetes := range map[string]string{"1.12.6": "1.35.0", "1.11.0": "1.34.0", "1.10.0": "1.33.0", "1.9.0": "1.32.0", "1.8.0": "1.31.0",
		"1.7.0": "1.30.0", "1.6.0": "1.29.0", "1.5.0": "1.28.0", "1.4.0": "1.27.0", "1.3.0": "1.26.0", "1.2.0": "1.25.0"} {
		for _, role := range []cloud.Role{cloud.RoleControlPlane, cloud.RoleWorker} {
			in := input(role)
			in.TalosVersion, in.KubernetesVersion = talosVersion, kubernetes
			if err := talos.CheckVersions(talosVersion, kubernetes); err != nil {
				t.Errorf("%s: %v", talosVersion, err)
			}
			if err := talos.CheckConfig(in); err != nil {
				t.Errorf("Talos %s, %s: %v", talosVersion, role, err)
			}
		}
	}
}

func TestGeneratingTwiceGivesTheSameText(t *testing.T) {
	in := input(cloud.RoleControlPlane)
	in.Patches = []string{"machine:\n  sysctls:\n    b: \"2\"\n    a: \"1\"\n", `[{"op":"add","path":"/machine/sysctls/c","value":"3"}]`}
	first, err := talos.Generate(in, newSecrets(t))
	if err != nil {
		t.Fatal(err)
	}
	second, err := talos.Generate(in, newSecrets(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(first), string(second)); diff != "" {
		t.Fatal(diff)
	}
	cfg, err := configloader.NewFromBytes(first)
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Machine().Install().Image(); got != "ghcr.io/siderolabs/installer:v1.12.6" {
		t.Errorf("install image %s", got)
	}
	if cfg.Cluster().ID() != newSecrets(t).ClusterID() {
		t.Error("the configuration has another cluster's identity")
	}
}

func TestWorkersGetNoCAKey(t *testing.T) {
	s := newSecrets(t)
	text, err := talos.Generate(input(cloud.RoleWorker), s)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := configloader.NewFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Machine().Security().IssuingCA().Key) != 0 || !bytes.Equal(cfg.Machine().Security().IssuingCA().Crt, s.TalosCA()) {
		t.Error("a worker needs the CA's certificate and must not have its key")
	}
}

func TestWhatTalosRefusesIsRefusedBeforehand(t *testing.T) {
	for want, change := range map[string]func(*talos.ConfigInput){
		"install disk":     func(in *talos.ConfigInput) { in.Patches = []string{`[{"op":"remove","path":"/machine/install/disk"}]`} },
		"has no name":      func(in *talos.ConfigInput) { in.Cluster = "" },
		"not an https URL": func(in *talos.ConfigInput) { in.Endpoint = "http://x" },
		"neither":          func(in *talos.ConfigInput) { in.Role = "boss" },
		"not known here":   func(in *talos.ConfigInput) { in.TalosVersion = "1.99.0" },
		"leading":          func(in *talos.ConfigInput) { in.KubernetesVersion = "v1.35.0" },
		"node labels":      func(in *talos.ConfigInput) { in.Patches = []string{"machine:\n  nodeLabels:\n    \"a b\": c\n"} },
	} {
		in := input(cloud.RoleControlPlane)
		change(&in)
		if err := talos.CheckConfig(in); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want %q in one line", err, want)
		}
	}
}

func TestEndpointMayBeOpenWhileChecking(t *testing.T) {
	in := input(cloud.RoleControlPlane)
	in.Endpoint = ""
	if err := talos.CheckConfig(in); err != nil {
		t.Error(err)
	}
	if _, err := talos.Generate(in, newSecrets(t)); err == nil {
		t.Error("a configuration without an endpoint was generated")
	}
}

func TestTenantFieldsBecomePatches(t *testing.T) {
	in := input(cloud.RoleControlPlane)
	in.Patches = talos.BasePatches(cloud.TenantSpec{
		PodNetwork: []string{"10.1.0.0/16", "fd01::/64"}, ServiceNetwork: []string{"10.2.0.0/16"},
		Plugins: cloud.Plugins{CNI: cloud.CNI{Type: "none"}},
	})
	text, err := talos.Generate(in, newSecrets(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := configloader.NewFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	network := cfg.Cluster().Network()
	if network.CNI().Name() != "none" {
		t.Errorf("CNI %s", network.CNI().Name())
	}
	if diff := cmp.Diff([]string{"10.1.0.0/16", "fd01::/64"}, network.PodCIDRs()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"10.2.0.0/16"}, network.ServiceCIDRs()); diff != "" {
		t.Error(diff)
	}
	if got := talos.BasePatches(cloud.TenantSpec{Plugins: cloud.Plugins{CNI: cloud.CNI{Type: "flannel"}}}); got != nil {
		t.Errorf("nothing differs from the defaults, and yet: %v", got)
	}
}

func BenchmarkCheckConfig(b *testing.B) {
	in := input(cloud.RoleControlPlane)
	in.Patches = append(talos.BasePatches(cloud.TenantSpec{PodNetwork: []string{"10.1.0.0/16"}}), "machine:\n  install:\n    disk: /dev/vda\n")
	if err := talos.CheckConfig(in); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := talos.CheckConfig(in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckConfigWithJSONPatch(b *testing.B) {
	in := input(cloud.RoleControlPlane)
	in.Patches = []string{`[{"op":"replace","path":"/machine/install/disk","value":"/dev/vda"}]`}
	for b.Loop() {
		if err := talos.CheckConfig(in); err != nil {
			b.Fatal(err)
		}
	}
}
