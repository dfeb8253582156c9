package talos

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
)

// MachineSecrets is the attribute machine_secrets of the resource talos_machine_secrets: certificates and keys are
// PEM in base64.
type MachineSecrets struct {
	Cluster struct {
		ID     string `json:"id"`
		Secret string `json:"secret"`
	} `json:"cluster"`
	Secrets struct {
		BootstrapToken            string `json:"bootstrap_token"`
		SecretboxEncryptionSecret string `json:"secretbox_encryption_secret"`
		AESCBCEncryptionSecret    string `json:"aescbc_encryption_secret"`
	} `json:"secrets"`
	TrustdInfo struct {
		Token string `json:"token"`
	} `json:"trustdinfo"`
	Certs struct {
		Etcd              CertAndKey `json:"etcd"`
		K8s               CertAndKey `json:"k8s"`
		K8sAggregator     CertAndKey `json:"k8s_aggregator"`
		K8sServiceAccount struct {
			Key []byte `json:"key"`
		} `json:"k8s_serviceaccount"`
		OS CertAndKey `json:"os"`
	} `json:"certs"`
}

// CertAndKey is a PEM certificate and key; in JSON they are base64.
type CertAndKey struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

// SecretsFromState reads the attribute machine_secrets of talos_machine_secrets from a pulled state.
func SecretsFromState(machineSecrets json.RawMessage) (*Secrets, error) {
	if len(machineSecrets) == 0 || string(machineSecrets) == "null" {
		return nil, errors.New("the state holds no machine secrets yet")
	}
	var m MachineSecrets
	if err := json.Unmarshal(machineSecrets, &m); err != nil {
		return nil, errors.New("the state's machine_secrets have another shape than talos_machine_secrets writes")
	}
	return m.ToSecrets()
}

// ToSecrets makes usable secrets of the attribute.
func (m MachineSecrets) ToSecrets() (*Secrets, error) {
	pair := func(c CertAndKey) *x509.PEMEncodedCertificateAndKey {
		return &x509.PEMEncodedCertificateAndKey{Crt: c.Cert, Key: c.Key}
	}
	s, err := FromBundle(&secrets.Bundle{
		Cluster: &secrets.Cluster{ID: m.Cluster.ID, Secret: m.Cluster.Secret},
		Secrets: &secrets.Secrets{
			BootstrapToken:            m.Secrets.BootstrapToken,
			AESCBCEncryptionSecret:    m.Secrets.AESCBCEncryptionSecret,
			SecretboxEncryptionSecret: m.Secrets.SecretboxEncryptionSecret,
		},
		TrustdInfo: &secrets.TrustdInfo{Token: m.TrustdInfo.Token},
		Certs: &secrets.Certs{
			Etcd:              pair(m.Certs.Etcd),
			K8s:               pair(m.Certs.K8s),
			K8sAggregator:     pair(m.Certs.K8sAggregator),
			K8sServiceAccount: &x509.PEMEncodedKey{Key: m.Certs.K8sServiceAccount.Key},
			OS:                pair(m.Certs.OS),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("machine_secrets: %w", err)
	}
	return s, nil
}

// MachineSecrets is the attribute that these secrets are stored as.
func (s *Secrets) MachineSecrets() MachineSecrets {
	b := s.bundle
	pair := func(p *x509.PEMEncodedCertificateAndKey) CertAndKey { return CertAndKey{Cert: p.Crt, Key: p.Key} }
	var m MachineSecrets
	m.Cluster.ID, m.Cluster.Secret = b.Cluster.ID, b.Cluster.Secret
	m.Secrets.BootstrapToken = b.Secrets.BootstrapToken
	m.Secrets.SecretboxEncryptionSecret = b.Secrets.SecretboxEncryptionSecret
	m.Secrets.AESCBCEncryptionSecret = b.Secrets.AESCBCEncryptionSecret
	m.TrustdInfo.Token = b.TrustdInfo.Token
	m.Certs.Etcd, m.Certs.K8s, m.Certs.OS = pair(b.Certs.Etcd), pair(b.Certs.K8s), pair(b.Certs.OS)
	m.Certs.K8sAggregator = pair(b.Certs.K8sAggregator)
	m.Certs.K8sServiceAccount.Key = b.Certs.K8sServiceAccount.Key
	return m
}
