package talos_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"sigs.k8s.io/yaml"

	"freehold.dev/freehold/internal/cloud/talos"
)

func TestSecretsSurviveTheState(t *testing.T) {
	s := newSecrets(t)
	state, err := json.Marshal(s.MachineSecrets())
	if err != nil {
		t.Fatal(err)
	}
	back, err := talos.SecretsFromState(state)
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(back.MachineSecrets())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(state, again) {
		t.Error("the secrets changed on their way through the state")
	}
}

func TestIncompleteStateIsNamedWithoutItsContent(t *testing.T) {
	good, err := json.Marshal(newSecrets(t).MachineSecrets())
	if err != nil {
		t.Fatal(err)
	}
	for name, state := range map[string]string{
		"none": "", "null": "null", "other shape": `[1]`, "empty": "{}",
		"broken base64": strings.Replace(string(good), `"cert":"`, `"cert":"!`, 1),
		"no token":      strings.Replace(string(good), newSecrets(t).MachineSecrets().TrustdInfo.Token, "", 1),
	} {
		_, err := talos.SecretsFromState([]byte(state))
		if err == nil {
			t.Errorf("%s was accepted", name)
		} else if strings.Contains(err.Error(), newSecrets(t).MachineSecrets().Cluster.Secret) {
			t.Errorf("%s: the error shows a secret", name)
		}
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	s := newSecrets(t)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secrets", s, "in", struct{ S *talos.Secrets }{s})
	encoded, _ := json.Marshal(map[string]any{"s": s})
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v %#v %v", s, s, struct{ S *talos.Secrets }{s}), log.String(), string(encoded)} {
		if strings.Contains(text, "PRIVATE") || strings.Contains(text, s.MachineSecrets().Cluster.Secret) {
			t.Errorf("secrets in %q", text)
		}
	}
}

func TestKubeconfigIsSignedByTheClusterAndNamedAfterTheTenant(t *testing.T) {
	s := newSecrets(t)
	text, err := talos.Kubeconfig(s, talos.KubeconfigRequest{Tenant: "prod", Endpoint: "https://10.0.0.1:6443", User: "alice", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		CurrentContext string `json:"current-context"`
		Clusters       []struct {
			Name    string
			Cluster struct {
				Server string
				CA     []byte `json:"certificate-authority-data"`
			}
		}
		Contexts []struct {
			Name    string
			Context struct{ Cluster, User string }
		}
		Users []struct {
			Name string
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	if k.CurrentContext != "prod" || k.Contexts[0].Name != "prod" || k.Clusters[0].Name != "prod" || k.Contexts[0].Context.User != k.Users[0].Name {
		t.Errorf("names: %+v", k.Contexts)
	}
	cert := verify(t, k.Clusters[0].Cluster.CA, k.Users[0].User.Cert, k.Users[0].User.Key)
	if cert.Subject.CommonName != "freehold:alice" || cert.Subject.Organization[0] != "system:masters" {
		t.Errorf("subject %s", cert.Subject)
	}
	if left := time.Until(cert.NotAfter); left <= 0 || left > time.Hour {
		t.Errorf("valid for %s", left)
	}
}

func TestTalosconfigIsSignedByTheClusterAndCarriesTheRoles(t *testing.T) {
	s := newSecrets(t)
	text, err := talos.Talosconfig(s, talos.TalosconfigRequest{Tenant: "prod", Endpoints: []string{"10.0.0.1"}, Nodes: []string{"10.0.0.2"}, TTL: time.Hour, Roles: []string{"os:reader"}})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientconfig.FromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	c := cfg.Contexts["prod"]
	if cfg.Context != "prod" || c.Endpoints[0] != "10.0.0.1" || c.Nodes[0] != "10.0.0.2" {
		t.Errorf("context: %+v", c)
	}
	creds, err := talos.Talosconfig(s, talos.TalosconfigRequest{Tenant: "prod", TTL: time.Hour, Roles: []string{"os:boss"}})
	if err == nil {
		t.Errorf("an unknown role was granted: %s", creds)
	}
	ca, certPEM, key, err := s.ClientCredentials(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if cert := verify(t, ca, certPEM, key); cert.Subject.Organization[0] != "os:admin" {
		t.Errorf("subject %s", cert.Subject)
	}
}

func TestCertificatesDoNotOutliveTheirCA(t *testing.T) {
	s := newSecrets(t)
	ca, certPEM, key, err := s.KubernetesCredentials("x", 100*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(ca)
	issuer, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if cert := verify(t, ca, certPEM, key); cert.NotAfter.After(issuer.NotAfter.Add(time.Second)) {
		t.Errorf("valid until %s, its CA until %s", cert.NotAfter, issuer.NotAfter)
	}
	if _, _, _, err := s.ClientCredentials(0); err == nil {
		t.Error("a certificate that is valid for no time was made")
	}
}

func verify(t *testing.T, ca, certPEM, key []byte) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(certPEM, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("the CA is not PEM")
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestServiceAccountTokensAreSignedAsTheTalosVersionExpects(t *testing.T) {
	for version, want := range map[string]string{"1.6.0": "EC PRIVATE KEY", "1.12.6": "RSA PRIVATE KEY"} {
		s, err := talos.NewSecrets(version)
		if err != nil {
			t.Fatal(err)
		}
		m := s.MachineSecrets()
		block, _ := pem.Decode(m.Certs.K8sServiceAccount.Key)
		if block == nil || block.Type != want {
			t.Errorf("Talos %s: the service account key is no %s", version, want)
		}
		if m.Secrets.SecretboxEncryptionSecret == "" || m.Secrets.AESCBCEncryptionSecret != "" {
			t.Errorf("Talos %s: wrong encryption of Kubernetes secrets", version)
		}
		if _, err := m.ToSecrets(); err != nil {
			t.Errorf("Talos %s: %v", version, err)
		}
	}
}
