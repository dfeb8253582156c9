package rest

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// gathered reads the counters and gauges of a registry, by name and label values.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestMetricsHaveBoundedLabels(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	_, mux := newFixture(t, nil, m)
	before := len(gathered(t, reg))
	for _, name := range []string{"a", "b", "none", "panic"} {
		do(t, mux, call{method: "GET", path: "/api/v1/widgets/" + name, as: "view"})
	}
	for _, path := range []string{"/api/v1/x", "/api/v1/y"} {
		do(t, mux, call{method: "BREW", path: path})
	}
	got := gathered(t, reg)
	if len(got) != before {
		t.Errorf("requests made %d new series", len(got)-before)
	}
	for key, n := range map[string]float64{
		"freehold_http_requests_total 2xx get-widget": 2, "freehold_http_requests_total 4xx get-widget": 1,
		"freehold_http_requests_total 5xx get-widget": 1, "freehold_http_requests_total 4xx unknown": 2,
		"freehold_http_request_duration_seconds get-widget": 4, "freehold_http_requests_in_flight": 0,
	} {
		if v, ok := got[key]; !ok || v != n {
			t.Errorf("%s: %v", key, v)
		}
	}
	if _, err := NewMetrics(reg); err == nil || !strings.Contains(err.Error(), "HTTP metrics") {
		t.Errorf("registered twice: %v", err)
	}
}
