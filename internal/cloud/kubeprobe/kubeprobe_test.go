package kubeprobe

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/internal/cloud/talos"
)

// cluster is the secrets of a cluster: they take seconds to make.
var cluster = sync.OnceValues(func() (*talos.Secrets, error) { return talos.NewSecrets("1.12.6") })

// target makes credentials of the cluster; its CA is replaced by that of the test server.
func target(t *testing.T, s *httptest.Server) Target {
	t.Helper()
	secrets, err := cluster()
	if err != nil {
		t.Fatal(err)
	}
	var out Target
	if _, out.Certificate, out.Key, err = secrets.KubernetesCredentials("freehold:probe", time.Hour); err != nil {
		t.Fatal(err)
	}
	out.Endpoint = s.URL
	out.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return out
}

func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestProbeTellsAnswersFromReadiness(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		want   Result
	}{
		{"ready", 200, "ok", Result{Available: true, Ready: true}},
		{"not ready", 500, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed", Result{Available: true, Message: "the Kubernetes API is not ready (500): etcd"}},
		{"no reason", 503, "", Result{Available: true, Message: "the Kubernetes API is not ready (503)"}},
		{"refused", 401, "", Result{Available: true, Message: "the Kubernetes API does not accept the tenant's client certificate (401)"}},
		{"elsewhere", 302, "", Result{Available: true, Message: "the Kubernetes API is not ready (302)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := server(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/readyz" {
					t.Errorf("asked for %s", r.URL)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			if got := Probe(t.Context(), target(t, s), 60*time.Second); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestSomethingElseAtTheEndpointIsNotAvailable(t *testing.T) {
	s := server(t, func(http.ResponseWriter, *http.Request) {})
	other := target(t, s)
	secrets, err := cluster()
	if err != nil {
		t.Fatal(err)
	}
	other.CA = secrets.KubernetesCA()
	if got := Probe(t.Context(), other, 60*time.Second); got.Available || !strings.Contains(got.Message, "not from this tenant's CA") {
		t.Errorf("got %+v", got)
	}
	gone := target(t, s)
	s.Close()
	if got := Probe(t.Context(), gone, 60*time.Second); got.Available || !strings.Contains(got.Message, "refused") {
		t.Errorf("got %+v", got)
	}
	if got := Probe(t.Context(), Target{Endpoint: s.URL}, 60*time.Second); got.Available || got.Message == "" {
		t.Errorf("without credentials: %+v", got)
	}
}

func TestASilentEndpointCostsNoMoreThanTheTimeout(t *testing.T) {
	release := make(chan struct{})
	s := server(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	if got := Probe(t.Context(), target(t, s), 200*time.Millisecond); got.Available || !strings.Contains(got.Message, "in time") {
		t.Errorf("got %+v", got)
	}
}
