package talosim

import (
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"sigs.k8s.io/yaml"

	"freehold.dev/freehold/internal/talosim/kubeapi"
)

// kubeServer serves the cluster's Kubernetes API on one control plane.
func (s *session) kubeServer() (*http.Server, error) {
	cache := &certificateCache{make: s.kubeCertificate}
	cfg, _ := s.config()
	handler, err := kubeapi.NewServer(kubeapi.Config{
		Store:        s.cluster.kube,
		Version:      kubeletVersion(cfg.Cluster().APIServer().Image()),
		Authenticate: s.authenticateKube,
		Available: func() error {
			if !s.cluster.quorate(s.cluster.views()) {
				return errors.New("etcd failed: reason withheld")
			}
			return nil
		},
		Done: s.ctx.Done(),
	})
	if err != nil {
		return nil, err
	}
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			ClientAuth: tls.RequestClientCert,
			NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return cache.get(s)
			},
		},
	}, nil
}

// authenticateKube knows who calls by a client certificate of the cluster's Kubernetes authority.
func (s *session) authenticateKube(r *http.Request) (kubeapi.User, bool) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return kubeapi.User{}, false
	}
	cfg, _ := s.config()
	cas := [][]byte{cfg.Cluster().IssuingCA().Crt}
	for _, ca := range cfg.Cluster().AcceptedCAs() {
		cas = append(cas, ca.Crt)
	}
	intermediates := stdx509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	leaf := r.TLS.PeerCertificates[0]
	if _, err := leaf.Verify(stdx509.VerifyOptions{
		Roots: pool(cas...), Intermediates: intermediates, CurrentTime: s.m.now(), KeyUsages: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth},
	}); err != nil {
		return kubeapi.User{}, false
	}
	return kubeapi.User{Name: leaf.Subject.CommonName, Groups: leaf.Subject.Organization}, true
}

// adminKubeconfig is what Talos generates for its admins.
func adminKubeconfig(cfg config.Provider, now time.Time) ([]byte, error) {
	cluster := cfg.Cluster()
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(cluster.IssuingCA())
	if err != nil {
		return nil, err
	}
	admin := cluster.AdminKubeconfig()
	pair, err := x509.NewKeyPair(authority,
		x509.CommonName(admin.CommonName()), x509.Organization(admin.CertOrganization()),
		x509.NotBefore(now.Add(-10*time.Second)), x509.NotAfter(now.Add(admin.CertLifetime())),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}),
	)
	if err != nil {
		return nil, err
	}
	pem := x509.NewCertificateAndKeyFromKeyPair(pair)
	user := fmt.Sprintf("%s@%s", admin.CommonName(), cluster.Name())
	b64 := base64.StdEncoding.EncodeToString
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": user,
		"clusters": []any{map[string]any{"name": cluster.Name(), "cluster": map[string]any{
			"server": cluster.Endpoint().String(), "certificate-authority-data": b64(cluster.IssuingCA().Crt),
		}}},
		"users": []any{map[string]any{"name": user, "user": map[string]any{
			"client-certificate-data": b64(pem.Crt), "client-key-data": b64(pem.Key),
		}}},
		"contexts": []any{map[string]any{"name": user, "context": map[string]any{
			"cluster": cluster.Name(), "namespace": "default", "user": user,
		}}},
	})
}
