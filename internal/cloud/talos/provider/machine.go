package provider

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
)

const (
	talosPort = "50000"
	// probeTimeout bounds one look at a machine, callTimeout one call of its API.
	probeTimeout = 5 * time.Second
	callTimeout  = time.Minute
)

// sighting is what one look at a machine showed.
type sighting int

const (
	// maintenance: Talos runs without a configuration.
	maintenance sighting = iota
	// ours: the machine's certificate comes from the cluster's own authority.
	ours
	// foreign: the machine has a configuration, of another cluster.
	foreign
)

// machine is one Talos machine and the credentials of the cluster it should belong to.
type machine struct {
	node string
	// address is where its API is reached: its own, or that of a machine which forwards to it.
	address     string
	forwards    bool
	creds       credentials
	pair        tls.Certificate
	authorities []*x509.Certificate
	roots       *x509.CertPool
}

// newMachine prepares a machine; an empty endpoint is the node itself.
func newMachine(node, endpoint string, creds credentials) (*machine, error) {
	if endpoint == "" {
		endpoint = node
	}
	pair, err := tls.X509KeyPair(creds.cert, creds.key)
	if err != nil {
		return nil, errors.New("client_certificate and client_key of client_configuration do not belong together")
	}
	m := &machine{node: node, address: withPort(endpoint), creds: creds, pair: pair, roots: x509.NewCertPool()}
	for rest := creds.ca; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("ca_certificate of client_configuration cannot be read")
		}
		m.authorities = append(m.authorities, ca)
		m.roots.AddCert(ca)
	}
	if len(m.authorities) == 0 {
		return nil, errors.New("ca_certificate of client_configuration is no PEM certificate")
	}
	m.forwards = host(m.address) != host(withPort(node))
	return m, nil
}

// direct is the same machine, reached at its own address.
func (m *machine) direct() *machine {
	d := *m
	d.address, d.forwards = withPort(m.node), false
	return &d
}

func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	if ip := net.ParseIP(trimBrackets(address)); ip != nil {
		return net.JoinHostPort(ip.String(), talosPort)
	}
	return net.JoinHostPort(address, talosPort)
}

func host(address string) string {
	h, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return h
}

func trimBrackets(s string) string {
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		return s[1 : len(s)-1]
	}
	return s
}

// look finds out what the machine is, without credentials: by the certificate that it shows, and by whether it lets
// somebody in who has none. The error says why it could not be reached.
func (m *machine) look(ctx context.Context) (sighting, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", m.address)
	if err != nil {
		return 0, err
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	var shown []*x509.Certificate
	conn := tls.Client(raw, &tls.Config{
		// Which authority the certificate comes from is the question here, not a condition.
		InsecureSkipVerify: true,
		NextProtos:         []string{"h2"},
		MinVersion:         tls.VersionTLS12,
		VerifyConnection: func(s tls.ConnectionState) error {
			shown = s.PeerCertificates
			return nil
		},
	})
	err = conn.HandshakeContext(ctx)
	if m.issued(shown) {
		return ours, nil
	}
	if err == nil {
		// The machine greets with its HTTP/2 settings when it lets us in, and refuses with an alert when it does not.
		// Nothing is said before: a connection that is written to while the other side ends it may be reset, and the
		// alert is gone with it.
		_, err = io.ReadFull(conn, make([]byte, 9))
	}
	var alert *net.OpError
	switch {
	case err == nil:
		return maintenance, nil
	case errors.As(err, &alert) && alert.Op == "remote error":
		return foreign, nil
	case ctx.Err() != nil:
		return 0, fmt.Errorf("the connection was made, and nothing was answered for %s", probeTimeout)
	}
	return 0, err
}

// issued tells whether the cluster's own authority signed the certificate. Names and dates do not matter: a machine
// whose clock is wrong still belongs to its cluster.
func (m *machine) issued(chain []*x509.Certificate) bool {
	return len(chain) > 0 && slices.ContainsFunc(m.authorities, func(ca *x509.Certificate) bool {
		return chain[0].CheckSignatureFrom(ca) == nil
	})
}

// call runs f with a client of the machine's API: the maintenance API, or the secured one.
func (m *machine) call(ctx context.Context, as sighting, f func(context.Context, sighting, *client.Client) error) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: m.roots, Certificates: []tls.Certificate{m.pair}}
	if as == maintenance {
		config = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	}
	c, err := client.New(ctx, client.WithTLSConfig(config), client.WithEndpoints(m.address), client.WithGRPCDialOptions(grpc.WithNoProxy()))
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if m.forwards && as == ours {
		ctx = client.WithNode(ctx, host(withPort(m.node)))
	}
	return f(ctx, as, c)
}
