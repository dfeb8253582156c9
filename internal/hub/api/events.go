package api

import (
	"context"
	"reflect"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/watch"
)

type eventsInput struct {
	watch.Options
	Node        string `query:"node_id" doc:"Of this node only. It need not exist yet."`
	Stream      string `query:"stream_id" doc:"Of streams with this id only."`
	Convergence string `query:"convergence" doc:"Of streams with this convergence only; one that leaves it is DELETED to this watch."`
}

func (s *service) registerEvents(a *rest.API) {
	events := op("Streams").get(eventsPath, "watch-streams", "Recent changes of streams, or a watch of them")
	events.Description = watch.Description
	rest.Register(a, events, s.events)
	const event = "StreamEvent"
	schemas := a.OpenAPI().Components.Schemas
	schemas.Map()[event] = watch.EventSchema("Change of a stream", schemas.Schema(reflect.TypeFor[client.Stream](), true, ""))
	schemas.Map()[event+"List"] = watch.ListSchema(event, schemas.Schema(reflect.TypeFor[client.ListMetadata](), true, ""))
	watch.Describe(a.OpenAPI().Paths[eventsPath].Get, event)
}

func (s *service) events(ctx context.Context, in *eventsInput) (*rest.Stream, error) {
	q := store.Query{}
	var err error
	if q.Selector, err = convergenceSelector(in.Convergence); err != nil {
		return nil, err
	}
	switch {
	case in.Node != "" && in.Stream != "":
		q.Name = hub.StreamName(in.Node, in.Stream)
	case in.Node != "":
		q.Prefix = hub.StreamName(in.Node, "")
	}
	part := watch.PartOf(hub.Streams, "Stream", q, wireStream)
	if in.Stream != "" {
		part.Keep = func(o *store.Object) bool {
			_, resource := splitStream(o.Name)
			return resource == in.Stream
		}
	}
	return s.watches.Events(ctx, &in.Options, watch.Scope{Parts: []watch.Part{part}})
}
