package talos

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// serviceAccountKeyBits is the length of the RSA key that signs service account tokens: as strong as the cluster's other
// keys, which are elliptic curves of 256 bits.
const serviceAccountKeyBits = 3072

// Secrets are a cluster's root secrets. They print as "[secret]" everywhere.
type Secrets struct {
	bundle *secrets.Bundle
}

// NewSecrets makes the secrets of a new cluster for a Talos version, full or short; "" is the newest known.
func NewSecrets(talosVersion string) (*Secrets, error) {
	contract, err := parseContract(talosVersion)
	if err != nil {
		return nil, err
	}
	rsa := contract.UseRSAServiceAccountKey()
	if rsa {
		// The machinery would make an RSA key of 4096 bits here, a second of work or several; the contract before that
		// differs in nothing else.
		contract = config.TalosVersion1_6
	}
	bundle, err := secrets.NewBundle(secrets.NewClock(), contract)
	if err != nil {
		return nil, fmt.Errorf("make the cluster's secrets: %w", err)
	}
	if rsa {
		key, err := x509.NewRSAKey(x509.Bits(serviceAccountKeyBits))
		if err != nil {
			return nil, fmt.Errorf("make the service account key: %w", err)
		}
		bundle.Certs.K8sServiceAccount = &x509.PEMEncodedKey{Key: key.KeyPEM}
	}
	return &Secrets{bundle: bundle}, nil
}

// FromBundle wraps a complete bundle, as Talos' own tools write it ("talosctl gen secrets").
func FromBundle(bundle *secrets.Bundle) (*Secrets, error) {
	if bundle == nil {
		return nil, errors.New("there are no secrets")
	}
	if bundle.Clock == nil {
		bundle.Clock = secrets.NewClock()
	}
	if err := bundle.Validate(); err != nil {
		return nil, fmt.Errorf("the cluster's secrets are not complete: %w", plainError(err))
	}
	return &Secrets{bundle: bundle}, nil
}

// Bundle is the machinery's own form, for generating with it. It must not be changed.
func (s *Secrets) Bundle() *secrets.Bundle { return s.bundle }

// ClusterID identifies the cluster; it is no secret.
func (s *Secrets) ClusterID() string { return s.bundle.Cluster.ID }

// KubernetesCA is the PEM certificate that the cluster's API server is verified with.
func (s *Secrets) KubernetesCA() []byte { return bytes.Clone(s.bundle.Certs.K8s.Crt) }

// TalosCA is the PEM certificate that the machines' Talos API is verified with.
func (s *Secrets) TalosCA() []byte { return bytes.Clone(s.bundle.Certs.OS.Crt) }

// ClientCredentials makes an admin's credentials for the machines' Talos API: PEM CA certificate, client certificate
// and key. The certificate is valid for ttl from now, or as long as the CA if that is shorter.
func (s *Secrets) ClientCredentials(ttl time.Duration) (ca, cert, key []byte, err error) {
	return s.credentials(ttl, role.MakeSet(role.Admin))
}

func (s *Secrets) credentials(ttl time.Duration, roles role.Set) (ca, cert, key []byte, err error) {
	ttl, err = s.clampTTL(ttl, s.bundle.Certs.OS.Crt)
	if err != nil {
		return nil, nil, nil, err
	}
	pair, err := s.bundle.GenerateTalosAPIClientCertificateWithTTL(roles, ttl)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("sign a Talos client certificate: %w", err)
	}
	return s.TalosCA(), pair.Crt, pair.Key, nil
}

// clampTTL refuses a time to live that is none, and keeps a certificate from outliving its CA.
func (s *Secrets) clampTTL(ttl time.Duration, caPEM []byte) (time.Duration, error) {
	if ttl <= 0 {
		return 0, fmt.Errorf("a client certificate cannot be valid for %s: give a positive duration", ttl)
	}
	ca, err := parseCertificate(caPEM)
	if err != nil {
		return 0, err
	}
	left := time.Until(ca.NotAfter)
	if left <= 0 {
		return 0, fmt.Errorf("the cluster's CA expired on %s: rotate it", ca.NotAfter.Format(time.DateOnly))
	}
	return min(ttl, left), nil
}

// String hides the secrets.
func (s *Secrets) String() string { return "[secret]" }

// Format hides the secrets from every verb of fmt.
func (s *Secrets) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue hides the secrets from slog.
func (s *Secrets) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON hides the secrets from encoders that meet them by accident.
func (s *Secrets) MarshalJSON() ([]byte, error) { return []byte(`"[secret]"`), nil }

func pemBytes(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
