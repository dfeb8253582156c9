package talos_test

import (
	"strings"
	"testing"

	"freehold.dev/freehold/internal/cloud/talos"
)

func TestVersionsThatFitTogetherAreAccepted(t *testing.T) {
	for _, v := range [][2]string{
		{"1.12.6", "1.35.0"}, {"1.12.0", "1.30.0"}, {"1.11.5", "1.34.1"}, {"1.2.0", "1.25.0"}, {"1.12.0-beta.1", "1.35.2"},
	} {
		if err := talos.CheckVersions(v[0], v[1]); err != nil {
			t.Errorf("Talos %s with Kubernetes %s: %v", v[0], v[1], err)
		}
	}
}

func TestVersionsThatCannotBeUsedSayWhy(t *testing.T) {
	for _, c := range []struct{ talos, kubernetes, want string }{
		{"", "1.35.0", "Talos version is missing"},
		{"1.12.6", "", "Kubernetes version is missing"},
		{"v1.12.6", "1.35.0", `write "1.12.6"`},
		{"1.12.6", "v1.35.0", `write "1.35.0"`},
		{"1.12", "1.35.0", "not a semantic version"},
		{"1.12.6", "1.35", "not a semantic version"},
		{"1.13.0", "1.35.0", "1.2 to 1.12"},
		{"2.0.0", "1.35.0", "not known here"},
		{"1.1.0", "1.24.0", "not known here"},
		{"1.12.6", "1.29.9", "too old"},
		{"1.12.6", "1.36.0", "too new"},
		{"01.12.6", "1.35.0", "not a semantic version"},
		{"1.12.6 ", "1.35.0", "not a semantic version"},
		{"1.12.99999999999999999999", "1.35.0", "not a semantic version"},
	} {
		err := talos.CheckVersions(c.talos, c.kubernetes)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Talos %q with Kubernetes %q: got %v, want %q", c.talos, c.kubernetes, err, c.want)
		}
	}
}

func TestEndpointIsAnHTTPSURLOfHostAndPort(t *testing.T) {
	for _, good := range []string{"https://prod.k8s.example.com:6443", "https://10.0.0.1:6443", "https://[fd00::1]:6443", "https://cp", "https://cp:443/"} {
		if err := talos.CheckEndpoint(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "cp:6443", "http://cp:6443", "https://", "https://:6443", "https://cp:0", "https://cp:70000", "https://cp:x",
		"https://user:pw@cp:6443", "https://cp/path", "https://cp?x=1", "https://cp#x", "https://a b", "https://-cp", "https://cp_1", "::"} {
		if err := talos.CheckEndpoint(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if err := talos.CheckEndpoint("https://user:hunter2@cp:6443"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("credentials in the endpoint: %v", err)
	}
}
