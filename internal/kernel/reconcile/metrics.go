package reconcile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcomes of a run, the label values of freehold_reconcile_runs_total.
const (
	outcomeOK       = "ok"
	outcomeError    = "error"
	outcomeRetry    = "retry_after"
	outcomeTerminal = "terminal"
	outcomePanic    = "panic"
)

// metrics of one controller; they carry its name as a constant label.
type metrics struct {
	duration    prometheus.Histogram
	runs        *prometheus.CounterVec
	retries     prometheus.Counter
	lastSuccess prometheus.Gauge
	running     prometheus.Gauge
	depth       prometheus.GaugeFunc
}

func newMetrics(controller string, depth func() float64) *metrics {
	labels := prometheus.Labels{"controller": controller}
	return &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "freehold_reconcile_duration_seconds", Help: "How long one run of a key took.",
			ConstLabels: labels, Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "freehold_reconcile_runs_total", Help: "Runs that ended, by outcome.", ConstLabels: labels,
		}, []string{"outcome"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "freehold_reconcile_retries_total", Help: "Runs that were queued again because one failed.", ConstLabels: labels,
		}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "freehold_reconcile_last_success_timestamp_seconds", Help: "When a run last ended without error.", ConstLabels: labels,
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "freehold_reconcile_running", Help: "Keys that are being run now.", ConstLabels: labels,
		}),
		depth: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "freehold_reconcile_depth", Help: "Keys that wait for a worker.", ConstLabels: labels,
		}, depth),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.runs, m.retries, m.lastSuccess, m.running, m.depth}
}

// register registers all collectors or none.
func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for i, c := range m.collectors() {
		if err := r.Register(c); err != nil {
			for _, done := range m.collectors()[:i] {
				r.Unregister(done)
			}
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.collectors() {
		r.Unregister(c)
	}
}

func (m *metrics) observe(outcome string, took time.Duration) {
	m.duration.Observe(took.Seconds())
	m.runs.WithLabelValues(outcome).Inc()
	if outcome == outcomeOK {
		m.lastSuccess.SetToCurrentTime()
	}
}
