package api_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/identity/api"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// BenchmarkAuthenticatedCreates is a durable create of 1 KiB through TLS, authentication, strict decoding and the
// store, with its 64 clients on the same cores.
func BenchmarkAuthenticatedCreates(b *testing.B) {
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "store.db"), sqlite.Options{Kinds: append(identity.Kinds(), cloud.Kinds()...)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	logger := slog.New(slog.NewJSONHandler(io.MultiWriter(), nil))
	svc, err := identity.New(identity.Config{Store: s, Logger: logger, BcryptCost: bcrypt.MinCost})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := svc.Bootstrap(b.Context(), "pw"); err != nil {
		b.Fatal(err)
	}
	metrics, err := rest.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	a, mux := api.New(svc), http.NewServeMux()
	r := rest.New(mux, rest.Config{Logger: logger, Metrics: metrics, Authenticate: a.Authenticate, Authorize: api.Authorize, Caller: api.Caller, Problem: api.Problem})
	a.Register(r)
	type tenantBody struct{ Body client.Tenant }
	rest.Register(r, rest.Operation{Method: "POST", Path: "/api/v1/tenants", ID: "create-tenant", Access: rest.Edit, Status: 201},
		func(ctx context.Context, in *tenantBody) (*tenantBody, error) {
			t := &cloud.Tenant{Metadata: store.Metadata{Name: in.Body.Metadata.Name, Labels: in.Body.Metadata.Labels, Annotations: in.Body.Metadata.Annotations}, Spec: in.Body.Spec}
			if err := s.Update(ctx, func(tx store.Tx) error { return cloud.Tenants.Create(tx, t) }); err != nil {
				return nil, err
			}
			return &tenantBody{client.Tenant{Metadata: client.Metadata{Name: t.Name, UID: t.UID, ResourceVersion: t.Revision, CreatedAt: t.CreatedAt}, Spec: t.Spec}}, nil
		})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	served := make(chan error, 1)
	go func() { served <- rest.Serve(ctx, l, mux, rest.Serving{Logger: logger, TLS: selfSigned(b)}) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()
	// HTTP/1.1: one connection per client, as the comparison has it.
	hc := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 64, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}}
	defer hc.CloseIdleConnections()
	login, err := svc.Login(b.Context(), "admin", "pw", l.Addr().(*net.TCPAddr).AddrPort().Addr())
	if err != nil {
		b.Fatal(err)
	}
	spec, err := json.Marshal(cloud.TenantSpec{
		KubernetesVersion: "1.35.0", TalosVersion: "1.12.6", ControlPlaneEndpoint: "https://prod.k8s.example.com:6443",
		PodNetwork: []string{"10.244.0.0/16"}, ServiceNetwork: []string{"10.96.0.0/12"},
		ConfigPatches: []cloud.InlinePatch{{Name: "p", Patch: string(bytes.Repeat([]byte("machine: {}\n"), 60))}},
	})
	if err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	b.SetParallelism(32)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			body := fmt.Sprintf(`{"metadata":{"name":"t-%d"},"spec":%s}`, n.Add(1), spec)
			req, err := http.NewRequest("POST", "https://"+l.Addr().String()+"/api/v1/tenants", bytes.NewReader([]byte(body)))
			if err != nil {
				b.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+login.Token)
			req.Header.Set("Content-Type", "application/json")
			resp, err := hc.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 201 {
				b.Errorf("%d", resp.StatusCode)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
}

func selfSigned(b *testing.B) *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}
