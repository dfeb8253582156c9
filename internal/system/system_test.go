package system

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"freehold.dev/freehold/internal/kernel/rest"
)

// serve answers what a path says; as "" is nobody.
func serve(t *testing.T, c Config, as, path string) (int, string) {
	t.Helper()
	mux := http.NewServeMux()
	a := rest.New(mux, rest.Config{
		Prefixes: []string{"/"}, Logger: slog.New(slog.DiscardHandler),
		Authenticate: func(r *http.Request) (context.Context, error) {
			if r.Header.Get("Authorization") == "" {
				return nil, rest.Unauthorized("log in first")
			}
			return r.Context(), nil
		},
		Authorize: func(context.Context, rest.Access) error { return nil },
	})
	Register(a, c)
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if as != "" {
		r.Header.Set("Authorization", as)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestReadyOnlyWhenEveryCheckPasses(t *testing.T) {
	fine := Check{"store", func(context.Context) error { return nil }}
	broken := Check{"tofu", func(context.Context) error { return errors.New("not found") }}
	if code, body := serve(t, Config{Checks: []Check{fine}}, "", "/readyz"); code != 200 || !strings.Contains(body, `"store":"ok"`) {
		t.Errorf("%d %s", code, body)
	}
	code, body := serve(t, Config{Checks: []Check{fine, broken}}, "", "/readyz")
	if code != 503 || !strings.Contains(body, "not ready: tofu: not found") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := serve(t, Config{Checks: []Check{broken}}, "", "/healthz"); code != 200 {
		t.Errorf("a server that cannot serve is alive all the same: %d", code)
	}
}

func TestStatusTellsWhatIsWrong(t *testing.T) {
	c := Config{Version: "1.2", OpenTofu: "1.12.6", Checks: []Check{
		{"store", func(context.Context) error { return nil }},
		{"tofu", func(context.Context) error { return errors.New("not found") }},
	}}
	if code, _ := serve(t, c, "", "/api/v1/status"); code != 401 {
		t.Errorf("nobody may ask: %d", code)
	}
	code, body := serve(t, c, "someone", "/api/v1/status")
	var s Status
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	if diff := cmp.Diff(map[string]string{"store": "ok", "tofu": "not found"}, s.Checks); diff != "" || s.Status != "degraded" {
		t.Errorf("%s: %s", s.Status, diff)
	}
	if s.Version.Version != "1.2" || s.Version.OpenTofu != "1.12.6" || s.StartedAt.IsZero() {
		t.Errorf("%s", body)
	}
}

func TestMetricsAreForWhoIsLetIn(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "freehold_test"}))
	if code, _ := serve(t, Config{Metrics: registry}, "", "/metrics"); code != 401 {
		t.Errorf("nobody may read them: %d", code)
	}
	if code, body := serve(t, Config{Metrics: registry}, "someone", "/metrics"); code != 200 || !strings.Contains(body, "freehold_test 0") {
		t.Errorf("%d %s", code, body)
	}
}
