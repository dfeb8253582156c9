package talosim

import (
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
)

// certificateTTL is how long the server certificates of a simulated machine live; Talos renews its own in time, and
// these are renewed when half of it has passed.
const certificateTTL = 24 * time.Hour

var errNoTrustd = errors.New("no control plane of the cluster signs certificates yet")

// maintenanceTLS is the API's side of TLS without a config: a certificate of its own making, and no client's asked for.
func maintenanceTLS(m *Machine) (*tls.Config, error) {
	now := m.now()
	ca, err := x509.NewSelfSignedCertificateAuthority(x509.NotBefore(now.Add(-time.Minute)), x509.NotAfter(now.Add(certificateTTL)), x509.Organization("talos"))
	if err != nil {
		return nil, err
	}
	cert, err := serverCertificate(x509.NewCertificateAndKeyFromCertificateAuthority(ca), now, "maintenance-service.talos.dev",
		[]string{"maintenance-service.talos.dev"}, []net.IP{m.addr.AsSlice()})
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}}, nil
}

func serverCertificate(ca *x509.PEMEncodedCertificateAndKey, now time.Time, name string, dns []string, ips []net.IP, opts ...x509.Option) (*tls.Certificate, error) {
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, err
	}
	pair, err := x509.NewKeyPair(authority, append([]x509.Option{
		x509.CommonName(name), x509.DNSNames(dns), x509.IPAddresses(ips),
		x509.NotBefore(now.Add(-time.Minute)), x509.NotAfter(now.Add(certificateTTL)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}),
	}, opts...)...)
	if err != nil {
		return nil, err
	}
	return pair.Certificate, nil
}

// certificateCache makes a certificate when the config changed or half of its life is over.
type certificateCache struct {
	make func(cfg config.Provider) (*tls.Certificate, error)

	mu   sync.Mutex
	rev  int
	at   time.Time
	cert *tls.Certificate
}

func (c *certificateCache) get(s *session) (*tls.Certificate, error) {
	cfg, rev := s.config()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cert != nil && c.rev == rev && time.Since(c.at) < certificateTTL/2 {
		return c.cert, nil
	}
	cert, err := c.make(cfg)
	if err != nil {
		if c.cert != nil {
			return c.cert, nil
		}
		return nil, err
	}
	c.cert, c.rev, c.at = cert, rev, time.Now()
	return cert, nil
}

func pool(certs ...[]byte) *stdx509.CertPool {
	p := stdx509.NewCertPool()
	for _, c := range certs {
		p.AppendCertsFromPEM(c)
	}
	return p
}

// apidTLS is the secured API's side of TLS. The first certificate must be there before the API opens.
func (s *session) apidTLS() (*tls.Config, error) {
	cache := &certificateCache{make: s.apidCertificate}
	if _, err := cache.get(s); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, err := cache.get(s)
			if err != nil {
				return nil, err
			}
			cfg, _ := s.config()
			cas := [][]byte{cfg.Machine().Security().IssuingCA().Crt}
			for _, ca := range cfg.Machine().Security().AcceptedCAs() {
				cas = append(cas, ca.Crt)
			}
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				Certificates: []tls.Certificate{*cert},
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    pool(cas...),
				NextProtos:   []string{"h2"},
			}, nil
		},
	}, nil
}

func (s *session) apidCertificate(cfg config.Provider) (*tls.Certificate, error) {
	ca := cfg.Machine().Security().IssuingCA()
	if !cfg.Machine().Type().IsControlPlane() {
		ca = s.trustdCA(cfg.Machine().Security().Token())
		if ca == nil {
			return nil, errNoTrustd
		}
	}
	name := s.nodename()
	dns, ips := sans(cfg.Machine().Security().CertSANs())
	return serverCertificate(ca, s.m.now(), name, append(dns, name), append(ips, s.m.addr.AsSlice(), net.IPv4(127, 0, 0, 1)))
}

// trustdCA is the authority of a reachable control plane that knows the worker's token.
func (s *session) trustdCA(token string) *x509.PEMEncodedCertificateAndKey {
	s.m.mu.Lock()
	online := s.m.reach == reachOpen
	s.m.mu.Unlock()
	if !online {
		return nil
	}
	for _, v := range s.cluster.views() {
		if v.online && v.trustd != nil && v.token == token {
			return v.trustd
		}
	}
	return nil
}

// kubeCertificate is the Kubernetes API's.
func (s *session) kubeCertificate(cfg config.Provider) (*tls.Certificate, error) {
	cluster := cfg.Cluster()
	if cluster.IssuingCA() == nil || len(cluster.IssuingCA().Key) == 0 {
		return nil, fmt.Errorf("the config has no Kubernetes certificate authority")
	}
	name := s.nodename()
	domain := cluster.Network().DNSDomain()
	dns, ips := sans(append(cluster.CertSANs(), cluster.Endpoint().Hostname()))
	dns = append(dns, name, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc."+domain, "localhost")
	ips = append(ips, s.m.addr.AsSlice(), net.IPv4(127, 0, 0, 1))
	service, err := cluster.Network().APIServerIPs()
	if err != nil {
		return nil, err
	}
	for _, ip := range service {
		ips = append(ips, ip.AsSlice())
	}
	return serverCertificate(cluster.IssuingCA(), s.m.now(), "kube-apiserver", dns, ips, x509.Organization("kube-master"))
}

func sans(list []string) (dns []string, ips []net.IP) {
	for _, s := range list {
		if ip := net.ParseIP(s); ip != nil {
			ips = append(ips, ip)
		} else if s != "" {
			dns = append(dns, s)
		}
	}
	return dns, ips
}

// config returns the active config, and a number that grows with every change of it.
func (s *session) config() (config.Provider, int) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.cfg, s.cfgRev
}
