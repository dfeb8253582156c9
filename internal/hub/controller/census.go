package controller

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// censusAge is how old the counts from the store may be: whoever scrapes often does not count often.
	censusAge     = 10 * time.Second
	censusTimeout = 5 * time.Second
)

var convergenceStates = []hub.ConvergenceState{
	hub.Unknown, hub.Pending, hub.Applying, hub.InSync, hub.Degraded, hub.ConvergenceBlocked,
}

var intentStates = []hub.IntentState{hub.Accepted, hub.Converging, hub.Retrying, hub.Blocked}

var presences = []hub.Presence{hub.PresencePending, hub.PresenceOnline, hub.PresenceOffline}

// census counts what there is when it is asked.
type census struct {
	Config
	metrics *metrics

	intents, convergence, nodes, conflicts, outbox, reportAge, polls *prometheus.Desc

	mu      sync.Mutex
	taken   time.Time
	counted counts
}

// counts are from the store.
type counts struct {
	blocked     int
	convergence map[hub.ConvergenceState]int
	nodes       map[hub.Presence]int
	conflicts   int
}

func newCensus(c Config, m *metrics) *census {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &census{
		Config: c, metrics: m,
		intents:     desc("freehold_hub_intents", "Intents that are not through, and those that wait for an operator, by state.", "state"),
		convergence: desc("freehold_hub_streams", "Streams by convergence.", "convergence"),
		nodes:       desc("freehold_hub_nodes", "Nodes by presence.", "state"),
		conflicts:   desc("freehold_hub_identity_conflicts", "Nodes whose identity two agents seem to use."),
		outbox:      desc("freehold_hub_outbox_depth", "Intents that wait to be sent to their nodes."),
		reportAge:   desc("freehold_hub_report_age_max_seconds", "Age of the oldest latest report of a node that counts as online."),
		polls:       desc("freehold_hub_polls", "Nodes that wait for work at this server."),
	}
}

// Describe implements [prometheus.Collector].
func (c *census) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.intents, c.convergence, c.nodes, c.conflicts, c.outbox, c.reportAge, c.polls} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *census) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	open := c.metrics.byState()
	gauge(c.outbox, float64(open[hub.Accepted]+open[hub.Retrying]))
	gauge(c.polls, float64(c.Presence.Polls()))
	oldest := time.Duration(0)
	if ages := c.Presence.ReportAges(); len(ages) > 0 {
		oldest = slices.Max(ages)
	}
	gauge(c.reportAge, oldest.Seconds())
	n, ok := c.count()
	if !ok {
		return
	}
	open[hub.Blocked] = n.blocked
	for _, s := range intentStates {
		gauge(c.intents, float64(open[s]), string(s))
	}
	for _, s := range convergenceStates {
		gauge(c.convergence, float64(n.convergence[s]), string(s))
	}
	for _, p := range presences {
		gauge(c.nodes, float64(n.nodes[p]), string(p))
	}
	gauge(c.conflicts, float64(n.conflicts))
}

// count answers the counts from the store, a little old perhaps.
func (c *census) count() (counts, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.Now(); c.taken.IsZero() || now.Sub(c.taken) >= censusAge || now.Before(c.taken) {
		ctx, cancel := context.WithTimeout(context.Background(), censusTimeout)
		defer cancel()
		var fresh counts
		if err := c.Store.View(ctx, func(r store.Reader) (err error) {
			fresh, err = count(r)
			return err
		}); err != nil {
			c.Logger.Warn("the hub's records cannot be counted for metrics", slog.Any("error", err))
			return counts{}, false
		}
		c.counted, c.taken = fresh, now
	}
	return c.counted, true
}

func count(r store.Reader) (counts, error) {
	out := counts{convergence: map[hub.ConvergenceState]int{}, nodes: map[hub.Presence]int{}}
	for _, s := range convergenceStates {
		n, err := labelled(r, hub.Streams.Kind.Name, hub.LabelConvergence, string(s))
		if err != nil {
			return out, err
		}
		out.convergence[s] = n
	}
	var err error
	if out.blocked, err = labelled(r, hub.Operations.Kind.Name, hub.LabelState, string(hub.Blocked)); err != nil {
		return out, err
	}
	nodes, _, err := hub.Nodes.List(r, store.Query{})
	for _, n := range nodes {
		out.nodes[n.Status.Presence]++
		if slices.ContainsFunc(n.Status.Conditions, func(c hub.Condition) bool { return c.Type == hub.ConditionIdentityConflict }) {
			out.conflicts++
		}
	}
	return out, err
}

func labelled(r store.Reader, kind, label, value string) (int, error) {
	l, err := r.List(store.Query{Kind: kind, Selector: labels.SelectorFromValidatedSet(labels.Set{label: value}), Limit: 1})
	if err != nil {
		return 0, err
	}
	return l.Total, nil
}
