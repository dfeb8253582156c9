package main

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"freehold.dev/freehold/internal/agent/engine/lint"
	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub/agentapi"
	hubapi "freehold.dev/freehold/internal/hub/api"
	hubcontroller "freehold.dev/freehold/internal/hub/controller"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/secrets"
)

// hubParts is the Hub plane, joined from its parts.
type hubParts struct {
	ledger   *ledger.Ledger
	presence *presence.Registry
	workers  *hubcontroller.Plane
	audit    *audit.Recorder
	root     *secrets.Root
}

func (p *plane) buildHub(root *secrets.Root, registry *prometheus.Registry) error {
	h := &hubParts{
		ledger:   ledger.New(ledger.Config{}),
		presence: presence.New(time.Now),
		audit:    audit.NewRecorder(p.store, p.logger, time.Now),
		root:     root,
	}
	var err error
	h.workers, err = hubcontroller.New(hubcontroller.Config{
		Store: p.store, Ledger: h.ledger, Presence: h.presence, Logger: p.logger, Registry: registry,
	})
	if err != nil {
		return err
	}
	p.hub = h
	return h.workers.Add(p.controllers)
}

// serveHub adds the two APIs of the Hub plane to the mux: to operators, with the configuration that the operator API
// has, and to agents.
func (p *plane) serveHub(mux *http.ServeMux, config rest.Config, registry *prometheus.Registry) ([]*rest.API, error) {
	operators := rest.New(mux, hubapi.Configure(config, p.hub.audit.Record))
	hubapi.Register(operators, hubapi.Config{
		Store: p.store, Ledger: p.hub.ledger, Linter: lint.New(), Live: p.hub.presence, Sealer: p.hub.root,
		Caller: func(ctx context.Context) hubapi.Caller {
			c := identity.FromContext(ctx)
			return hubapi.Caller{User: c.User, Admin: c.Role.Allows(identity.RoleAdmin)}
		},
	})
	agents, err := agentapi.New(mux, agentapi.Config{
		Store: p.store, Ledger: p.hub.ledger, Presence: p.hub.presence, Key: p.hub.root.Key(agentapi.SessionKeyPurpose),
		Version: version, Logger: p.logger, Metrics: config.Metrics, Registry: registry, Audit: p.hub.audit.Record,
	})
	if err != nil {
		return nil, err
	}
	return []*rest.API{operators, agents}, nil
}

// run starts what the plane does by itself.
func (h *hubParts) run(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return h.workers.Run(ctx) })
	group.Go(func() error { return h.audit.Run(ctx) })
}
