package rest

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of HTTP operations. Their labels are bounded: operation ids, status classes, stream formats.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inflight prometheus.Gauge
	streams  prometheus.Gauge
}

// NewMetrics registers the collectors.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "freehold_http_requests_total",
			Help: "Requests served, by operation and class of status."}, []string{"operation", "class"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "freehold_http_request_duration_seconds",
			Help: "Time from the request's header to the end of its answer; watches are not counted.", Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12)},
			[]string{"operation"}),
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "freehold_http_requests_in_flight",
			Help: "Requests being served, watches included."}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "freehold_http_watches",
			Help: "Watches being served."}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inflight, m.streams} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register HTTP metrics: %w", err)
		}
	}
	return m, nil
}

// operationMetrics are one operation's, looked up once. The zero value records nothing.
type operationMetrics struct {
	m        *Metrics
	classes  [6]prometheus.Counter
	duration prometheus.Observer
}

func (m *Metrics) operation(id string) operationMetrics {
	if m == nil {
		return operationMetrics{}
	}
	om := operationMetrics{m: m, duration: m.duration.WithLabelValues(id)}
	for class := 2; class < len(om.classes); class++ {
		om.classes[class] = m.requests.WithLabelValues(id, fmt.Sprintf("%dxx", class))
	}
	return om
}

func (om operationMetrics) begin() {
	if om.m != nil {
		om.m.inflight.Inc()
	}
}

func (om operationMetrics) end(status int, elapsed time.Duration, streamed bool) {
	if om.m == nil {
		return
	}
	om.m.inflight.Dec()
	if class := status / 100; class >= 2 && class < len(om.classes) {
		om.classes[class].Inc()
	}
	if !streamed {
		om.duration.Observe(elapsed.Seconds())
	}
}
