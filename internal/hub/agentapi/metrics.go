package agentapi

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"freehold.dev/freehold/internal/hub"
)

// Outcomes of requests, the values of metrics' labels.
const (
	outcomeAccepted  = "accepted"
	outcomeRefused   = "refused"
	outcomeLimited   = "rate_limited"
	outcomeConflict  = "identity_conflict"
	outcomeChanged   = "changed"
	outcomeHeartbeat = "heartbeat"
	outcomeStale     = "stale"
)

type metrics struct {
	enrolments, sessions, reports *prometheus.CounterVec
	commands                      prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	vec := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"outcome"})
	}
	m := &metrics{
		enrolments: vec("freehold_hub_enrolments_total", "Enrolments of agents, by outcome."),
		sessions:   vec("freehold_hub_sessions_total", "Sessions that agents asked for, by outcome."),
		reports:    vec("freehold_hub_reports_total", "Reports of agents: heartbeats changed nothing."),
		commands: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "freehold_hub_commands_total", Help: "Commands handed to agents, those sent again included."}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.enrolments, m.sessions, m.reports, m.commands} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the agent API: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) enrolment(outcome string) { m.enrolments.WithLabelValues(outcome).Inc() }
func (m *metrics) session(outcome string)   { m.sessions.WithLabelValues(outcome).Inc() }

func (m *metrics) report(changed bool, err error) {
	var stale *hub.StaleReportError
	outcome := outcomeHeartbeat
	switch {
	case errors.As(err, &stale):
		outcome = outcomeStale
	case err != nil:
		outcome = outcomeRefused
	case changed:
		outcome = outcomeChanged
	}
	m.reports.WithLabelValues(outcome).Inc()
}
