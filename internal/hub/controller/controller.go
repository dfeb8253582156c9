// Package controller does what the Hub plane owes to the clock and to its own records: it wakes the polls of nodes that
// have work, ends attempts whose lease ran out, retries, tells which nodes are offline, finishes deletions, and lets go of
// what is kept long enough.
package controller

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

// Names of the controllers.
const (
	IntentsName = "hub-intents"
	NodesName   = "hub-nodes"
	JanitorName = "hub-janitor"
)

// Config of the controllers. Fields without a default are needed.
type Config struct {
	Store    store.Store
	Ledger   *ledger.Ledger
	Presence *presence.Registry
	Logger   *slog.Logger
	// Registry of the plane's metrics, if any.
	Registry prometheus.Registerer
	// Now is the clock (default time.Now).
	Now func() time.Time
}

// Plane is the part of the Hub plane that works by itself.
type Plane struct {
	// Intents, Nodes and Janitor are the reconcilers, which a test may call by hand.
	Intents *Intents
	Nodes   *Nodes
	Janitor *Janitor

	feed *feed
}

// New makes the controllers and registers the plane's metrics.
func New(c Config) (*Plane, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	m, err := newMetrics(c)
	if err != nil {
		return nil, err
	}
	return &Plane{
		Intents: &Intents{Config: c},
		Nodes:   &Nodes{Config: c},
		Janitor: &Janitor{Config: c},
		feed:    &feed{Config: c, metrics: m},
	}, nil
}

// Add adds the controllers to a manager.
func (p *Plane) Add(m *reconcile.Manager) error {
	for _, c := range []reconcile.Controller{p.Intents.Controller(), p.Nodes.Controller(), p.Janitor.Controller()} {
		if err := m.Add(c); err != nil {
			return err
		}
	}
	m.Wake(JanitorName, janitorKey)
	return nil
}

// openOperations selects the intents that are not through. Those that end leave it.
func openOperations() store.Query {
	open, err := labels.NewRequirement(hub.LabelOpen, selection.Exists, nil)
	if err != nil {
		panic(err) // the label's name is a constant
	}
	return store.Query{Kind: hub.Operations.Kind.Name, Selector: labels.NewSelector().Add(*open)}
}
