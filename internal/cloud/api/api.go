// Package api serves the Cloud plane over HTTP: tenants, node groups, machines and providers, their events, and the
// kubeconfigs and talosconfigs of tenants. It translates; the rules are in package cloud.
package api

import (
	"context"
	"log/slog"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/watch"
)

// Secrets hands out the secrets of a tenant. An error that wraps [store.ErrNotFound] means that the tenant has none
// yet.
type Secrets interface {
	TenantSecrets(ctx context.Context, tenantName string) (*talos.Secrets, error)
}

// Caller is who makes a request.
type Caller struct {
	User  string
	Admin bool
}

// Config of the Cloud plane's API. All fields are needed.
type Config struct {
	Store   store.Store
	Rules   cloud.Rules
	Secrets Secrets
	// Caller finds the caller in the context of an authenticated request.
	Caller func(context.Context) Caller
	Logger *slog.Logger
}

type service struct {
	Config
	tenantPatches    patcher[client.Tenant]
	nodeGroupPatches patcher[NodeGroupInput]
	machinePatches   patcher[client.Machine]
	watches          *watch.Server
}

// Register adds the plane's operations to an API that owns /api/v1.
func Register(a *rest.API, config Config) {
	s := &service{
		Config:           config,
		tenantPatches:    newPatcher(func(t *client.Tenant) *client.Metadata { return &t.Metadata }),
		nodeGroupPatches: newPatcher(func(g *NodeGroupInput) *client.Metadata { return &g.Metadata }),
		machinePatches:   newPatcher(func(m *client.Machine) *client.Metadata { return &m.Metadata }),
		watches:          watch.NewServer(config.Store),
	}
	s.registerTenants(a)
	s.registerNodeGroups(a)
	s.registerMachines(a)
	s.registerProviders(a)
	s.registerAccess(a)
	s.registerEvents(a)
	describe(a)
}

func now() time.Time { return time.Now().UTC() }
