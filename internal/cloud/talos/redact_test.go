package talos_test

import (
	"strings"
	"testing"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
)

func TestMachineAnswersAreRedacted(t *testing.T) {
	s := newSecrets(t)
	text, err := talos.Generate(input(cloud.RoleControlPlane), s)
	if err != nil {
		t.Fatal(err)
	}
	m := s.MachineSecrets()
	answer := "no: token " + m.TrustdInfo.Token + " with " + m.Cluster.Secret + " and " + string(m.Certs.OS.Key) + " at /dev/sda, not " + "extra-secret"
	got := talos.NewRedactor(text, "extra-secret").Redact(answer)
	for _, secret := range []string{m.TrustdInfo.Token, m.Cluster.Secret, string(m.Certs.OS.Key), "extra-secret"} {
		if strings.Contains(got, secret) {
			t.Errorf("%q is still in %q", secret, got)
		}
	}
	if !strings.Contains(got, "at /dev/sda, not") {
		t.Errorf("too much was taken out: %q", got)
	}
	if got := talos.NewRedactor([]byte("machine: [")).Redact(answer); strings.Contains(got, m.Cluster.Secret) {
		t.Errorf("a configuration that cannot be read protects nothing: %q", got)
	}
}

func TestPatchingTextWithoutPatchesChangesNothing(t *testing.T) {
	text, err := talos.Patch([]byte("machine: {} # mine\n"), nil)
	if err != nil || string(text) != "machine: {} # mine\n" {
		t.Errorf("%q, %v", text, err)
	}
	text, err = talos.Patch([]byte("machine:\n  type: worker\n"), []string{"machine:\n  install:\n    disk: /dev/vda\n"})
	if err != nil || !strings.Contains(string(text), "/dev/vda") || !strings.Contains(string(text), "type: worker") {
		t.Errorf("%q, %v", text, err)
	}
}
