package controller

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// metrics of intents and attempts. Their labels come from the states of package hub.
type metrics struct {
	intents, attempts *prometheus.CounterVec
	converged         prometheus.Histogram
	command           prometheus.Histogram

	mu sync.Mutex
	// states of the intents that are not through.
	states map[string]hub.IntentState
	// counted is the attempt of an intent that was counted last.
	counted map[string]string
}

func newMetrics(c Config) (*metrics, error) {
	latencies := prometheus.ExponentialBuckets(0.005, 3, 12)
	m := &metrics{
		states: map[string]hub.IntentState{}, counted: map[string]string{},
		intents: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "freehold_hub_intents_ended_total",
			Help: "Intents that were through, by their state then."}, []string{"state"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "freehold_hub_attempts_total",
			Help: "Attempts that ended, by outcome."}, []string{"outcome"}),
		converged: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "freehold_hub_convergence_seconds",
			Help: "Time from the acceptance of an intent to the report that proved it.", Buckets: latencies}),
		command: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "freehold_hub_command_seconds",
			Help: "Time from the dispatch of a command to its outcome.", Buckets: latencies}),
	}
	if c.Registry == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.intents, m.attempts, m.converged, m.command, newCensus(c, m)} {
		if err := c.Registry.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of the hub: %w", err)
		}
	}
	return m, nil
}

// begin forgets which intents are open: the watch starts again.
func (m *metrics) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.states)
	clear(m.counted)
}

// open notes an intent that is not through.
func (m *metrics) open(o *store.Object) {
	state := hub.IntentState(o.Labels[hub.LabelState])
	m.mu.Lock()
	m.states[o.Name] = state
	m.mu.Unlock()
	if state == hub.Retrying {
		if i, err := hub.Operations.Decode(o); err == nil {
			m.attempt(o.Name, i.Status.Attempt)
		}
	}
}

// ended counts an intent that is through.
func (m *metrics) ended(o *store.Object) {
	i, err := hub.Operations.Decode(o)
	if err != nil {
		return
	}
	s := &i.Status
	m.attempt(o.Name, s.Attempt)
	m.mu.Lock()
	delete(m.states, o.Name)
	delete(m.counted, o.Name)
	m.mu.Unlock()
	m.intents.WithLabelValues(string(s.State)).Inc()
	if s.State == hub.Converged && s.FinishedAt != nil {
		m.converged.Observe(s.FinishedAt.Sub(s.CreatedAt).Seconds())
	}
}

// attempt counts an attempt that ended, once.
func (m *metrics) attempt(intent string, a *hub.Attempt) {
	if a == nil || a.Active() {
		return
	}
	m.mu.Lock()
	before := m.counted[intent]
	m.counted[intent] = a.ID
	m.mu.Unlock()
	if before == a.ID {
		return
	}
	m.attempts.WithLabelValues(string(a.State)).Inc()
	if a.DispatchedAt != nil && a.FinishedAt != nil {
		m.command.Observe(a.FinishedAt.Sub(*a.DispatchedAt).Seconds())
	}
}

// byState counts the intents that are not through.
func (m *metrics) byState() map[hub.IntentState]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[hub.IntentState]int{}
	for _, s := range m.states {
		counts[s]++
	}
	return counts
}
