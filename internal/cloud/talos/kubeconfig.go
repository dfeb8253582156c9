package talos

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"sigs.k8s.io/yaml"
)

// clockSkew is how far a client certificate reaches back, for machines whose clock is behind.
const clockSkew = 5 * time.Minute

// KubeconfigRequest asks for an administrator's kubeconfig.
type KubeconfigRequest struct {
	// Tenant names cluster and context.
	Tenant string
	// Endpoint of the control plane, an https URL.
	Endpoint string
	// User is who it is made for: the certificate's common name is "freehold:<user>".
	User string
	// TTL of the client certificate, from now.
	TTL time.Duration
}

// KubernetesCredentials makes an administrator's credentials for the Kubernetes API: PEM CA certificate, client
// certificate and key. The certificate carries commonName and the group system:masters.
func (s *Secrets) KubernetesCredentials(commonName string, ttl time.Duration) (ca, cert, key []byte, err error) {
	ttl, err = s.clampTTL(ttl, s.bundle.Certs.K8s.Crt)
	if err != nil {
		return nil, nil, nil, err
	}
	issuer, err := parseCertificate(s.bundle.Certs.K8s.Crt)
	if err != nil {
		return nil, nil, nil, err
	}
	issuerKey, err := s.bundle.Certs.K8s.GetKey()
	if err != nil {
		return nil, nil, nil, errors.New("the Kubernetes CA's key cannot be read")
	}
	clientKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make a client key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName, Organization: []string{"system:masters"}},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(ttl),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, issuer, clientKey.Public(), issuerKey)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("sign a Kubernetes client certificate: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(clientKey)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("encode the client key: %w", err)
	}
	return s.KubernetesCA(), pemBytes("CERTIFICATE", der), pemBytes("EC PRIVATE KEY", keyDER), nil
}

// Kubeconfig makes a kubeconfig with one cluster, one context and one user.
func Kubeconfig(s *Secrets, req KubeconfigRequest) ([]byte, error) {
	if req.Tenant == "" || req.User == "" {
		return nil, errors.New("a kubeconfig needs a tenant and a user")
	}
	if err := CheckEndpoint(req.Endpoint); err != nil {
		return nil, err
	}
	ca, cert, key, err := s.KubernetesCredentials("freehold:"+req.User, req.TTL)
	if err != nil {
		return nil, err
	}
	user := req.User + "@" + req.Tenant
	text, err := yaml.Marshal(kubeconfig{
		APIVersion:     "v1",
		Kind:           "Config",
		CurrentContext: req.Tenant,
		Clusters: []namedCluster{{Name: req.Tenant, Cluster: kubeCluster{
			Server: req.Endpoint, CertificateAuthorityData: ca}}},
		Contexts: []namedContext{{Name: req.Tenant, Context: kubeContext{
			Cluster: req.Tenant, Namespace: "default", User: user}}},
		Users: []namedUser{{Name: user, User: kubeUser{ClientCertificateData: cert, ClientKeyData: key}}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig: %w", err)
	}
	return text, nil
}

// The parts of a kubeconfig that are written here; bytes are base64.
type (
	kubeconfig struct {
		APIVersion     string         `json:"apiVersion"`
		Kind           string         `json:"kind"`
		Clusters       []namedCluster `json:"clusters"`
		Contexts       []namedContext `json:"contexts"`
		CurrentContext string         `json:"current-context"`
		Users          []namedUser    `json:"users"`
	}
	namedCluster struct {
		Name    string      `json:"name"`
		Cluster kubeCluster `json:"cluster"`
	}
	kubeCluster struct {
		Server                   string `json:"server"`
		CertificateAuthorityData []byte `json:"certificate-authority-data"`
	}
	namedContext struct {
		Name    string      `json:"name"`
		Context kubeContext `json:"context"`
	}
	kubeContext struct {
		Cluster   string `json:"cluster"`
		Namespace string `json:"namespace"`
		User      string `json:"user"`
	}
	namedUser struct {
		Name string   `json:"name"`
		User kubeUser `json:"user"`
	}
	kubeUser struct {
		ClientCertificateData []byte `json:"client-certificate-data"`
		ClientKeyData         []byte `json:"client-key-data"`
	}
)

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("a CA certificate is not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("a CA certificate cannot be read: %w", err)
	}
	return cert, nil
}
