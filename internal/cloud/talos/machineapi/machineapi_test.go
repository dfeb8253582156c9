package machineapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	machinepb "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
)

// authority is a certificate authority of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// leaf issues a certificate that serves and asks, for the address, valid until then.
func (a *authority) leaf(ip string, until time.Time) (certPEM, keyPEM []byte) {
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf", Organization: []string{"os:admin"}},
		IPAddresses: []net.IP{net.ParseIP(ip)}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func (a *authority) credentials() Credentials {
	cert, key := a.leaf("127.0.0.1", time.Now().Add(time.Hour))
	return Credentials{CA: a.pem(), Certificate: cert, Key: key}
}

// server is a machine that answers EtcdMemberList by what it is told to.
type server struct {
	machinepb.UnimplementedMachineServiceServer
	answer func(context.Context) (*machinepb.EtcdMemberListResponse, error)
}

func (s *server) EtcdMemberList(ctx context.Context, _ *machinepb.EtcdMemberListRequest) (*machinepb.EtcdMemberListResponse, error) {
	return s.answer(ctx)
}

// serve starts a machine whose certificate comes from issuer, and which wants one from clients (nil: none).
func serve(t *testing.T, issuer, clients *authority, ip string, until time.Time, answer func(context.Context) (*machinepb.EtcdMemberListResponse, error)) string {
	t.Helper()
	certPEM, keyPEM := issuer.leaf(ip, until)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		cfg.ClientCAs.AddCert(clients.cert)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	machinepb.RegisterMachineServiceServer(g, &server{answer: answer})
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return l.Addr().String()
}

func two(context.Context) (*machinepb.EtcdMemberListResponse, error) {
	return &machinepb.EtcdMemberListResponse{Messages: []*machinepb.EtcdMembers{{Members: []*machinepb.EtcdMember{
		{Id: 1 << 63, Hostname: "b"}, {Id: 7, Hostname: "a", IsLearner: true, PeerUrls: []string{"https://10.0.0.1:2380"}},
	}}}}, nil
}

func TestErrorsTellWhyAMachineCannotBeUsed(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	later := time.Now().Add(time.Hour)
	secured := func(address string) (*Client, error) { return DialSecured(address, ours.credentials()) }
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	answers := func(code codes.Code, text string) func(context.Context) (*machinepb.EtcdMemberListResponse, error) {
		return func(context.Context) (*machinepb.EtcdMemberListResponse, error) { return nil, status.Error(code, text) }
	}

	tests := []struct {
		name    string
		dial    func(string) (*Client, error)
		address string
		reason  error
		says    string
	}{
		{"nothing listens", secured, closed.Addr().String(), ErrUnreachable, "connection refused"},
		{"it never answers", secured, silent.Addr().String(), ErrUnreachable, "in time"},
		{"its certificate is another cluster's", secured, serve(t, theirs, theirs, "127.0.0.1", later, two), ErrUnauthorized, "belongs to another cluster"},
		{"it accepts another cluster's clients only", secured, serve(t, ours, theirs, "127.0.0.1", later, two), ErrUnauthorized, "does not accept this cluster's client certificate"},
		{"its certificate is for another address", secured, serve(t, ours, ours, "127.0.0.9", later, two), ErrUnauthorized, "certSANs"},
		{"its certificate has expired", secured, serve(t, ours, ours, "127.0.0.1", time.Now().Add(-time.Hour), two), ErrUnauthorized, "clocks"},
		{"it has a configuration already", DialMaintenance, serve(t, ours, ours, "127.0.0.1", later, two), ErrUnauthorized, "not in maintenance mode"},
		{"it does not grant it", secured, serve(t, ours, ours, "127.0.0.1", later, answers(codes.PermissionDenied, "not authorized")), ErrUnauthorized, "not authorized"},
		{"it declines", secured, serve(t, ours, ours, "127.0.0.1", later, answers(codes.FailedPrecondition, "etcd is not running")), ErrRefused, "etcd is not running"},
		{"it is busy starting", secured, serve(t, ours, ours, "127.0.0.1", later, answers(codes.Unavailable, "starting")), ErrUnreachable, "starting"},
		{"it is too slow", secured, serve(t, ours, ours, "127.0.0.1", later, func(ctx context.Context) (*machinepb.EtcdMemberListResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}), ErrUnreachable, "in time"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := tt.dial(tt.address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err = c.EtcdMembers(ctx)
			if !errors.Is(err, tt.reason) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), tt.address) {
				t.Errorf("got %v; want %v, saying %q", err, tt.reason, tt.says)
			}
		})
	}
}

func TestAContextThatWasGivenUpIsNotTheMachinesFault(t *testing.T) {
	ours := newAuthority(t)
	ctx, cancel := context.WithCancel(t.Context())
	address := serve(t, ours, ours, "127.0.0.1", time.Now().Add(time.Hour), func(inner context.Context) (*machinepb.EtcdMemberListResponse, error) {
		cancel()
		<-inner.Done()
		return nil, inner.Err()
	})
	c, err := DialSecured(address, ours.credentials())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.EtcdMembers(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want the context's error alone", err)
	}
}

func TestEtcdMembersAreOrdered(t *testing.T) {
	ours := newAuthority(t)
	c, err := DialSecured(serve(t, ours, ours, "127.0.0.1", time.Now().Add(time.Hour), two), ours.credentials())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := c.EtcdMembers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Name != "a" || !got[0].Learner || got[0].PeerURLs[0] != "https://10.0.0.1:2380" || got[1].ID != 1<<63 {
		t.Errorf("got %+v", got)
	}
}

func TestBadAddressesAndCredentialsAreRefused(t *testing.T) {
	if _, err := DialMaintenance(""); err == nil {
		t.Error("an empty address was accepted")
	}
	if _, err := DialSecured("10.0.0.1", Credentials{}); err == nil {
		t.Error("empty credentials were accepted")
	}
	c := newAuthority(t).credentials()
	c.CA = []byte("nonsense")
	if _, err := DialSecured("10.0.0.1", c); err == nil {
		t.Error("a nonsense CA was accepted")
	}
}

func TestTalosStagesAreTranslated(t *testing.T) {
	tests := []struct {
		talos       runtime.MachineStage
		ready       bool
		secured     bool
		stage       cloud.Stage
		maintenance bool
	}{
		{runtime.MachineStageUnknown, false, false, cloud.StageInitializing, false},
		{runtime.MachineStageBooting, false, false, cloud.StageInitializing, false},
		{runtime.MachineStageMaintenance, true, false, cloud.StageInitializing, true},
		{runtime.MachineStageInstalling, false, false, cloud.StageInstalling, false},
		{runtime.MachineStageUnknown, false, true, cloud.StageConfiguring, false},
		{runtime.MachineStageBooting, true, true, cloud.StageConfiguring, false},
		{runtime.MachineStageRunning, false, true, cloud.StageConfiguring, false},
		{runtime.MachineStageRunning, true, true, cloud.StageReady, false},
		{runtime.MachineStageRebooting, false, true, cloud.StageRestarting, false},
		{runtime.MachineStageUpgrading, false, true, cloud.StageRestarting, false},
		{runtime.MachineStageShuttingDown, false, true, cloud.StageStopping, false},
		{runtime.MachineStageResetting, false, true, cloud.StageStopping, false},
	}
	for _, tt := range tests {
		c := &Client{secured: tt.secured}
		got := c.statusOf(runtime.MachineStatusSpec{Stage: tt.talos, Status: runtime.MachineStatusStatus{Ready: tt.ready}})
		if got.Stage != tt.stage || got.Maintenance != tt.maintenance || got.Ready != (tt.stage == cloud.StageReady) {
			t.Errorf("%s, ready %v, secured %v: %+v", tt.talos, tt.ready, tt.secured, got)
		}
	}
}

func TestConfigDigestIgnoresCommentsAndOrder(t *testing.T) {
	secrets, err := talos.NewSecrets("1.12.6")
	if err != nil {
		t.Fatal(err)
	}
	generate := func(docs bool, version string) string {
		text, err := talos.Generate(talos.ConfigInput{
			Cluster: "prod", Endpoint: "https://10.0.0.1:6443", Role: cloud.RoleControlPlane, TalosVersion: "1.12.6",
			KubernetesVersion: version, Docs: docs,
		}, secrets)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := ConfigDigest(text)
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	if generate(false, "1.35.0") != generate(true, "1.35.0") {
		t.Error("comments count")
	}
	if generate(false, "1.35.0") == generate(false, "1.34.0") {
		t.Error("another version does not count")
	}
	if _, err := ConfigDigest([]byte("not: [a config")); err == nil {
		t.Error("nonsense has a digest")
	}
}

func TestImageVersion(t *testing.T) {
	for image, want := range map[string]string{
		"ghcr.io/siderolabs/kubelet:v1.35.0":            "1.35.0",
		"registry:5000/kubelet:v1.35.0-fat":             "1.35.0-fat",
		"registry:5000/kubelet":                         "",
		"ghcr.io/siderolabs/kubelet:v1.35.0@sha256:abc": "1.35.0",
	} {
		if got := imageVersion(image); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

// A machine may end the connection as soon as it has seen the client's certificate. Who writes then loses the alert that
// tells why, so the connection must not be handed out before the machine has judged.
func TestNothingIsWrittenBeforeTheMachineHasJudgedTheCertificate(t *testing.T) {
	ours := newAuthority(t)
	certPEM, keyPEM := ours.leaf("127.0.0.1", time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	defer here.Close()
	done := make(chan error, 1)
	go func() {
		defer there.Close()
		done <- tls.Server(there, &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"},
		}).Handshake()
	}()
	last := &lastFault{}
	_, _, err = recordingCredentials(&tls.Config{InsecureSkipVerify: true}, last).ClientHandshake(t.Context(), "machine", here)
	if !isAlert(err) || !isAlert(last.get()) {
		t.Errorf("got %v, noted %v, want the alert", err, last.get())
	}
	here.Close()
	if err := <-done; err == nil {
		t.Error("the machine accepted a client without a certificate")
	}
}
