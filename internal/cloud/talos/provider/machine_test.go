package provider

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sidero "github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"freehold.dev/freehold/internal/cloud/talos"
)

var clusters = sync.OnceValues(func() (pair [2]*talos.Secrets, err error) {
	for i := range pair {
		// The old contract spares an RSA key of 4096 bits.
		if pair[i], err = talos.NewSecrets("v1.6"); err != nil {
			return pair, err
		}
	}
	return pair, nil
})

func credentialsOf(t *testing.T, s *talos.Secrets) credentials {
	t.Helper()
	ca, cert, key, err := s.ClientCredentials(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return credentials{ca: ca, cert: cert, key: key}
}

// serverOf is a machine of a cluster: it wants a client certificate from the cluster's own authority.
func serverOf(t *testing.T, s *talos.Secrets, notBefore time.Time) *tls.Config {
	t.Helper()
	ca, err := sidero.NewCertificateAuthorityFromCertificateAndKey(s.Bundle().Certs.OS)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := sidero.NewKeyPair(ca, sidero.IPAddresses([]net.IP{net.IPv4(127, 0, 0, 1)}), sidero.NotBefore(notBefore), sidero.NotAfter(notBefore.Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.TalosCA())
	return &tls.Config{Certificates: []tls.Certificate{*pair.Certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
}

func maintenanceServer(t *testing.T) *tls.Config {
	t.Helper()
	ca, err := secrets.NewTalosCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(ca.CrtPEM, ca.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

func serveGRPC(t *testing.T, config *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(grpccredentials.NewTLS(config)))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func TestAMachineIsRecognisedByItsCertificate(t *testing.T) {
	pair, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	creds := credentialsOf(t, pair[0])
	old := func(c *tls.Config) *tls.Config {
		c = c.Clone()
		c.MaxVersion = tls.VersionTLS12
		return c
	}
	for name, c := range map[string]struct {
		server *tls.Config
		want   sighting
	}{
		"ours":                 {serverOf(t, pair[0], time.Now()), ours},
		"ours, TLS 1.2":        {old(serverOf(t, pair[0], time.Now())), ours},
		"ours, wrong clock":    {serverOf(t, pair[0], time.Now().Add(-30*24*time.Hour)), ours},
		"foreign":              {serverOf(t, pair[1], time.Now()), foreign},
		"foreign, TLS 1.2":     {old(serverOf(t, pair[1], time.Now())), foreign},
		"maintenance":          {maintenanceServer(t), maintenance},
		"maintenance, TLS 1.2": {old(maintenanceServer(t)), maintenance},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := newMachine(serveGRPC(t, c.server), "", creds)
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.look(t.Context())
			if err != nil || got != c.want {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestWhatIsNoMachineIsUnreachable(t *testing.T) {
	pair, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
			c.Close()
		}
	}()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, address := range map[string]string{"another service": l.Addr().String(), "closed port": closed.Addr().String()} {
		m, err := newMachine(address, "", credentialsOf(t, pair[0]))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := m.look(t.Context()); err == nil {
			t.Errorf("%s: taken for %v", name, got)
		}
	}
}

func TestASilentMachineDoesNotHoldAStoppedRun(t *testing.T) {
	pair, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := newMachine(l.Addr().String(), "", credentialsOf(t, pair[0]))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err = m.apply(ctx, time.Hour, nil, modeAuto)
	var stopped *interrupted
	if !errors.As(err, &stopped) {
		t.Errorf("got %v", err)
	}
}

func TestAddressesGetTheTalosPort(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:50000", "10.0.0.1:443": "10.0.0.1:443", "node": "node:50000", "node:1": "node:1",
		"fd00::1": "[fd00::1]:50000", "[fd00::1]": "[fd00::1]:50000", "[fd00::1]:7": "[fd00::1]:7",
	} {
		if got := withPort(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestOnlyAnotherHostForwards(t *testing.T) {
	pair, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node, endpoint string
		forwards       bool
	}{{"10.0.0.1", "", false}, {"10.0.0.1", "10.0.0.1:50000", false}, {"10.0.0.1:50000", "10.0.0.1", false}, {"10.0.0.1", "10.0.0.2", true}} {
		m, err := newMachine(c.node, c.endpoint, credentialsOf(t, pair[0]))
		if err != nil || m.forwards != c.forwards {
			t.Errorf("%+v: %v, %v", c, m.forwards, err)
		}
	}
}

func TestAttemptsEndAsTheyShould(t *testing.T) {
	transient := status.Error(codes.Unavailable, "booting")
	t.Run("success after a while", func(t *testing.T) {
		n := 0
		if err := attempts(t.Context(), time.Hour, func(context.Context) error {
			if n++; n < 3 {
				return transient
			}
			return nil
		}); err != nil || n != 3 {
			t.Errorf("%v after %d", err, n)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var over *gaveUpError
			err := attempts(t.Context(), time.Minute, func(context.Context) error { return transient })
			if !errors.As(err, &over) || !errors.Is(over.last, transient) || over.attempts == 0 {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("the deadline does not hide what was wrong before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var over *gaveUpError
			n := 0
			err := attempts(t.Context(), time.Minute, func(ctx context.Context) error {
				if n++; n == 1 {
					return transient
				}
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.As(err, &over) || !errors.Is(over.last, transient) || n != 2 {
				t.Errorf("got %v after %d", err, n)
			}
		})
	})
	t.Run("final", func(t *testing.T) {
		n := 0
		err := attempts(t.Context(), time.Hour, func(context.Context) error {
			n++
			return final{transient}
		})
		if !errors.Is(err, transient) || n != 1 {
			t.Errorf("%v after %d", err, n)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stopped *interrupted
		err := attempts(ctx, time.Hour, func(context.Context) error {
			cancel()
			return transient
		})
		if !errors.As(err, &stopped) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAMachineIsBelievedWhenItInsists(t *testing.T) {
	var stop final
	var r repeats
	if err := r.judge(status.Error(codes.InvalidArgument, "no")); !errors.As(err, &stop) {
		t.Error("a refused configuration was tried again")
	}
	odd := status.Error(codes.Unknown, "odd")
	for i := 1; i <= sureAfter; i++ {
		if err := r.judge(odd); errors.As(err, &stop) != (i == sureAfter) {
			t.Errorf("time %d: %v", i, err)
		}
	}
	r = repeats{}
	for range 10 {
		if errors.As(r.judge(odd), &stop) || errors.As(r.judge(status.Error(codes.Unavailable, "booting")), &stop) {
			t.Error("a machine that reboots in between was believed")
		}
	}
	r = repeats{}
	if errors.As(r.judge(errForeign), &stop) {
		t.Error("one look was enough to call a machine foreign")
	}
}

func TestDiagnosticsSayWhatToDoAndHideSecrets(t *testing.T) {
	pair, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine("10.0.0.9", "", credentialsOf(t, pair[0]))
	if err != nil {
		t.Fatal(err)
	}
	hide := func(s string) string { return strings.ReplaceAll(s, "hunter2", "[secret]") }
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connect: connection refused")}
	for _, c := range []struct {
		err  error
		want []string
	}{
		{&gaveUpError{after: time.Minute, attempts: 7, last: refused}, []string{"10.0.0.9 cannot be reached", "7 times in 1m0s", "10.0.0.9:50000", "switched on"}},
		{&gaveUpError{after: time.Minute, attempts: 7, last: errMaintenance}, []string{"has no configuration", "Apply its configuration first"}},
		{&gaveUpError{after: time.Minute, attempts: 7, last: status.Error(codes.FailedPrecondition, "time is not in sync yet")}, []string{"not ready in time", "time is not in sync"}},
		{errForeign, []string{"belongs to another cluster", "left as it is", "reset it first"}},
		{status.Error(codes.InvalidArgument, "bad token hunter2"), []string{"10.0.0.9 refuses its configuration", "bad token [secret]"}},
		{status.Error(codes.PermissionDenied, "not authorized"), []string{"denies access", "os:admin"}},
		{&interrupted{last: refused}, []string{"Interrupted", "run again"}},
	} {
		summary, detail := explain(m, applying, c.err, hide)
		for _, want := range c.want {
			if !strings.Contains(summary+"\n"+detail, want) {
				t.Errorf("%v: %q is missing in %q: %q", c.err, want, summary, detail)
			}
		}
	}
}
