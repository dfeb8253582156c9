package api

import (
	"context"
	"net/http"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// WatchOptions is embedded in the input of every watch.
type WatchOptions struct {
	rest.WatchInput
	Bookmarks bool `query:"allowWatchBookmarks" doc:"Send a BOOKMARK when all objects that exist were sent."`
}

type (
	collectionEvents struct {
		WatchOptions
		rest.Selectors
	}
	tenantEvents struct {
		TenantPath
		WatchOptions
		Scope string `query:"scope" enum:"tenant,all" default:"tenant" doc:"all: the tenant's node groups and machines too; each event then tells its kind."`
	}
	tenantCollectionEvents struct {
		TenantPath
		WatchOptions
		rest.Selectors
	}
	nodeGroupEvents struct {
		NodeGroupPath
		WatchOptions
	}
	machineEvents struct {
		MachinePath
		WatchOptions
	}
	tenantMachineEvents struct {
		TenantMachinePath
		WatchOptions
	}
	providerEvents struct {
		ProviderPath
		WatchOptions
	}
)

// scope is what one events route covers.
type scope struct {
	parts []part
	// kinds: each event tells its kind.
	kinds bool
	// check refuses the request, on the view that it starts from.
	check func(store.Reader) error
}

// part is the objects of one kind in a scope.
type part struct {
	query  store.Query
	kind   string
	render func(*store.Object) (any, error)
}

func partOf[S, T, R any](t store.Type[S, T], kind string, q store.Query, wire func(*store.Resource[S, T]) R) part {
	q.Kind = t.Kind.Name
	return part{query: q, kind: kind, render: func(o *store.Object) (any, error) {
		r, err := t.Decode(o)
		if err != nil {
			return nil, err
		}
		return wire(r), nil
	}}
}

func tenantsPart(q store.Query) part { return partOf(cloud.Tenants, "Tenant", q, wireTenant) }
func nodeGroupsPart(q store.Query) part {
	return partOf(cloud.NodeGroups, "NodeGroup", q, wireNodeGroup)
}
func machinesPart(q store.Query) part  { return partOf(cloud.Machines, "Machine", q, wireMachine) }
func providersPart(q store.Query) part { return partOf(cloud.Providers, "Provider", q, wireProvider) }

func (s *service) registerEvents(a *rest.API) {
	op := func(tag, path, id, what string) rest.Operation {
		return rest.Operation{
			Method: http.MethodGet, Path: path, ID: id, Access: rest.View, Tags: []string{tag},
			Summary: "Recent changes of " + what + ", or a watch of them", Description: eventsDescription,
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
			return s.selected(ctx, &collectionEvents{in.WatchOptions, in.Selectors}, q, nodeGroupsPart, tenantExists(in.Name))
		})
	rest.Register(a, op("NodeGroups", nodeGroupsPath+"/{ng}/events", "watch-node-group", "a node group"),
		func(ctx context.Context, in *nodeGroupEvents) (*rest.Stream, error) {
			one := nodeGroupsPart(store.Query{Name: in.stored()})
			return s.events(ctx, &in.WatchOptions, scope{parts: []part{one}, check: func(r store.Reader) error {
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
			return s.machineEvents(ctx, &in.WatchOptions, in.ID, "")
		})
	rest.Register(a, op("Machines", tenantMachinesPath+"/events", "watch-tenant-machines", "a tenant's machines"),
		func(ctx context.Context, in *tenantCollectionEvents) (*rest.Stream, error) {
			q := store.Query{Index: "tenant", Value: in.Name}
			return s.selected(ctx, &collectionEvents{in.WatchOptions, in.Selectors}, q, machinesPart, tenantExists(in.Name))
		})
	rest.Register(a, op("Machines", tenantMachinesPath+"/{id}/events", "watch-tenant-machine", "a tenant's machine"),
		func(ctx context.Context, in *tenantMachineEvents) (*rest.Stream, error) {
			return s.machineEvents(ctx, &in.WatchOptions, in.ID, in.Name)
		})
	rest.Register(a, op("Providers", providersPath+"/{type}/events", "watch-provider", "a provider module"),
		func(ctx context.Context, in *providerEvents) (*rest.Stream, error) {
			one := providersPart(store.Query{Name: in.Type})
			return s.events(ctx, &in.WatchOptions, scope{parts: []part{one}, check: func(r store.Reader) error {
				_, err := r.Get(cloud.Providers.Kind.Name, in.Type)
				return named(err, "provider", in.Type)
			}})
		})
}

const eventsDescription = "Without watch: the most recent changes, oldest first, as a list: at most 500, from the last 1000 revisions. With watch=true: an ADDED event for each object that exists, " +
	"then every change as it happens, one JSON object a line; with sse=true as Server-Sent Events, whose id is the revision to resume after. " +
	"With resourceVersion=N: the changes after revision N only; 410 when they are no longer kept. " +
	"Every 15 seconds without an event an empty line (SSE: a comment) is sent."

func (s *service) tenantEvents(ctx context.Context, in *tenantEvents) (*rest.Stream, error) {
	sc := scope{parts: []part{tenantsPart(store.Query{Name: in.Name})}, check: tenantExists(in.Name)}
	if in.Scope == "all" {
		sc.kinds = true
		sc.parts = append(sc.parts,
			nodeGroupsPart(store.Query{Prefix: cloud.SubName(in.Name, "")}),
			machinesPart(store.Query{Index: "tenant", Value: in.Name}))
	}
	return s.events(ctx, &in.WatchOptions, sc)
}

func (s *service) machineEvents(ctx context.Context, in *WatchOptions, id, tenant string) (*rest.Stream, error) {
	q := store.Query{Name: id}
	if tenant != "" {
		q.Index, q.Value = "tenant", tenant
	}
	return s.events(ctx, in, scope{parts: []part{machinesPart(q)}, check: func(r store.Reader) error {
		_, err := s.machine(r, id, tenant)
		return err
	}})
}

// selected are the events of a collection, restricted by label selectors.
func (s *service) selected(ctx context.Context, in *collectionEvents, q store.Query, of func(store.Query) part, check func(store.Reader) error) (*rest.Stream, error) {
	var err error
	if q.Selector, err = in.Selector(); err != nil {
		return nil, err
	}
	return s.events(ctx, &in.WatchOptions, scope{parts: []part{of(q)}, check: check})
}

// events answers a watch of a scope, or its recent changes.
func (s *service) events(ctx context.Context, in *WatchOptions, sc scope) (*rest.Stream, error) {
	since, err := resumeAfter(in.WatchInput)
	if err != nil {
		return nil, err
	}
	queries := make([]store.Query, len(sc.parts))
	for i, p := range sc.parts {
		queries[i] = p.query
	}
	var current int64
	var changes []store.Batch
	err = s.Store.View(ctx, func(r store.Reader) error {
		current = r.Revision()
		// Who resumes a watch may have missed the end of what was watched, and is to learn it.
		if sc.check != nil && (since == 0 || !in.Watch) {
			if err := sc.check(r); err != nil {
				return err
			}
		}
		if in.Watch || since > current {
			return nil
		}
		changes, err = r.Changes(since, recentRevisions, queries...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if since > current {
		return nil, &rest.Problem{Status: http.StatusGone, Message: "the asked resourceVersion lies ahead of this server's: it is from another server or from data that was lost; start again without resourceVersion"}
	}
	if !in.Watch {
		return recent(sc, changes, current)
	}
	w, err := s.Store.Watch(ctx, since, queries...)
	if err != nil {
		return nil, err
	}
	f := &feed{service: s, scope: sc, watcher: w, bookmarks: in.Bookmarks}
	return rest.WatchStream(rest.Watch{SSE: in.SSE, Close: w.Close, Next: f.next}), nil
}

// resumeAfter: a browser that reconnects repeats its first URL, and tells in Last-Event-ID how far it came.
func resumeAfter(in rest.WatchInput) (int64, error) {
	if in.SSE && in.LastEventID != "" {
		in.ResourceVersion = ""
	}
	return in.Since()
}

func (sc scope) event(e store.Event) (client.Event[any], error) {
	out := client.Event[any]{Type: string(e.Type)}
	for _, p := range sc.parts {
		if p.query.Kind != e.Object.Kind {
			continue
		}
		if sc.kinds {
			out.Kind = p.kind
		}
		var err error
		out.Object, err = p.render(e.Object)
		return out, err
	}
	return out, nil
}
