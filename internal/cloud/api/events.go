package api

import (
	"context"
	"net/http"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/watch"
)

type (
	collectionEvents struct {
		watch.Options
		rest.Selectors
	}
	tenantEvents struct {
		TenantPath
		watch.Options
		Scope string `query:"scope" enum:"tenant,all" default:"tenant" doc:"all: the tenant's node groups and machines too; each event then tells its kind."`
	}
	tenantCollectionEvents struct {
		TenantPath
		watch.Options
		rest.Selectors
	}
	nodeGroupEvents struct {
		NodeGroupPath
		watch.Options
	}
	machineEvents struct {
		MachinePath
		watch.Options
	}
	tenantMachineEvents struct {
		TenantMachinePath
		watch.Options
	}
	providerEvents struct {
		ProviderPath
		watch.Options
	}
)

func tenantsPart(q store.Query) watch.Part {
	return watch.PartOf(cloud.Tenants, "Tenant", q, wireTenant)
}
func nodeGroupsPart(q store.Query) watch.Part {
	return watch.PartOf(cloud.NodeGroups, "NodeGroup", q, wireNodeGroup)
}
func machinesPart(q store.Query) watch.Part {
	return watch.PartOf(cloud.Machines, "Machine", q, wireMachine)
}
func providersPart(q store.Query) watch.Part {
	return watch.PartOf(cloud.Providers, "Provider", q, wireProvider)
}

func (s *service) registerEvents(a *rest.API) {
	op := func(tag, path, id, what string) rest.Operation {
		return rest.Operation{
			Method: http.MethodGet, Path: path, ID: id, Access: rest.View, Tags: []string{tag},
			Summary: "Recent changes of " + what + ", or a watch of them", Description: watch.Description,
		}
	}
	rest.Register(a, op("Tenants", tenantsPath+"/events", "watch-tenants", "all tenants"),
		func(ctx context.Context, in *collectionEvents) (*rest.Stream, error) {
			return s.selected(ctx, in, store.Query{}, tenantsPart, nil)
		})
	rest.Register(a, op("Tenants", tenantsPath+"/{name}/events", "watch-tenant", "a tenant"), s.tenantEvents)
	rest.Register(a, op("NodeGroups", nodeGroupsPath+"/events", "watch-node-groups", "a tenant's node groups"),
		func(ctx context.Context, in *tenantCollectionEvents) (*rest.Stream, error) {
			q := store.Query{Prefix: cloud.SubName(in.Name, "")}
			return s.selected(ctx, &collectionEvents{in.Options, in.Selectors}, q, nodeGroupsPart, tenantExists(in.Name))
		})
	rest.Register(a, op("NodeGroups", nodeGroupsPath+"/{ng}/events", "watch-node-group", "a node group"),
		func(ctx context.Context, in *nodeGroupEvents) (*rest.Stream, error) {
			one := nodeGroupsPart(store.Query{Name: in.stored()})
			return s.watches.Events(ctx, &in.Options, watch.Scope{Parts: []watch.Part{one}, Check: func(r store.Reader) error {
				_, _, err := tenantAndGroup(r, &in.NodeGroupPath)
				return err
			}})
		})
	rest.Register(a, op("Machines", machinesPath+"/events", "watch-machines", "all machines"),
		func(ctx context.Context, in *collectionEvents) (*rest.Stream, error) {
			return s.selected(ctx, in, store.Query{}, machinesPart, nil)
		})
	rest.Register(a, op("Machines", machinesPath+"/{id}/events", "watch-machine", "a machine"),
		func(ctx context.Context, in *machineEvents) (*rest.Stream, error) {
			return s.machineEvents(ctx, &in.Options, in.ID, "")
		})
	rest.Register(a, op("Machines", tenantMachinesPath+"/events", "watch-tenant-machines", "a tenant's machines"),
		func(ctx context.Context, in *tenantCollectionEvents) (*rest.Stream, error) {
			q := store.Query{Index: "tenant", Value: in.Name}
			return s.selected(ctx, &collectionEvents{in.Options, in.Selectors}, q, machinesPart, tenantExists(in.Name))
		})
	rest.Register(a, op("Machines", tenantMachinesPath+"/{id}/events", "watch-tenant-machine", "a tenant's machine"),
		func(ctx context.Context, in *tenantMachineEvents) (*rest.Stream, error) {
			return s.machineEvents(ctx, &in.Options, in.ID, in.Name)
		})
	rest.Register(a, op("Providers", providersPath+"/{type}/events", "watch-provider", "a provider module"),
		func(ctx context.Context, in *providerEvents) (*rest.Stream, error) {
			one := providersPart(store.Query{Name: in.Type})
			return s.watches.Events(ctx, &in.Options, watch.Scope{Parts: []watch.Part{one}, Check: func(r store.Reader) error {
				_, err := r.Get(cloud.Providers.Kind.Name, in.Type)
				return named(err, "provider", in.Type)
			}})
		})
}

func (s *service) tenantEvents(ctx context.Context, in *tenantEvents) (*rest.Stream, error) {
	sc := watch.Scope{Parts: []watch.Part{tenantsPart(store.Query{Name: in.Name})}, Check: tenantExists(in.Name)}
	if in.Scope == "all" {
		sc.Kinds = true
		sc.Parts = append(sc.Parts,
			nodeGroupsPart(store.Query{Prefix: cloud.SubName(in.Name, "")}),
			machinesPart(store.Query{Index: "tenant", Value: in.Name}))
	}
	return s.watches.Events(ctx, &in.Options, sc)
}

func (s *service) machineEvents(ctx context.Context, in *watch.Options, id, tenant string) (*rest.Stream, error) {
	q := store.Query{Name: id}
	if tenant != "" {
		q.Index, q.Value = "tenant", tenant
	}
	return s.watches.Events(ctx, in, watch.Scope{Parts: []watch.Part{machinesPart(q)}, Check: func(r store.Reader) error {
		_, err := s.machine(r, id, tenant)
		return err
	}})
}

// selected are the events of a collection, restricted by label selectors.
func (s *service) selected(ctx context.Context, in *collectionEvents, q store.Query, of func(store.Query) watch.Part, check func(store.Reader) error) (*rest.Stream, error) {
	var err error
	if q.Selector, err = in.Selector(); err != nil {
		return nil, err
	}
	return s.watches.Events(ctx, &in.Options, watch.Scope{Parts: []watch.Part{of(q)}, Check: check})
}
