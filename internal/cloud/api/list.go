package api

import (
	"context"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type listOutput[R any] struct{ Body client.List[R] }

// list answers one page of what a query selects. Check runs first, on the same view.
func list[S, T, R any](ctx context.Context, s *service, t store.Type[S, T], q store.Query, in *rest.ListInput,
	render func(*store.Resource[S, T]) R, check func(store.Reader) error,
) (*listOutput[R], error) {
	var err error
	if q.Selector, err = in.Selector(); err != nil {
		return nil, err
	}
	q.Kind, q.Offset, q.Limit = t.Kind.Name, in.Offset, in.Limit
	var found *store.List
	err = s.Store.View(ctx, func(r store.Reader) error {
		if check != nil {
			if err := check(r); err != nil {
				return err
			}
		}
		found, err = r.List(q)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &listOutput[R]{client.List[R]{Items: make([]R, len(found.Objects)), Total: found.Total}}
	out.Body.Metadata.ResourceVersion = found.Revision
	for i, o := range found.Objects {
		resource, err := t.Decode(o)
		if err != nil {
			return nil, err
		}
		out.Body.Items[i] = render(resource)
	}
	return out, nil
}

// get answers one object. Check, if any, runs first, on the same view.
func get[S, T any](ctx context.Context, s *service, t store.Type[S, T], check func(store.Reader) error, what, stored, name string,
) (*store.Resource[S, T], error) {
	var found *store.Resource[S, T]
	err := s.Store.View(ctx, func(r store.Reader) (err error) {
		if check != nil {
			if err := check(r); err != nil {
				return err
			}
		}
		found, err = t.Get(r, stored)
		return named(err, what, name)
	})
	return found, err
}
