package api

import (
	"context"
	"errors"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// recentRevisions is how far back the recent changes reach, unless the request says after which revision.
	recentRevisions = 1000
	// recentEvents is the most that is answered; the newest are.
	recentEvents = 500
	// lookTimeout ends the look at a log whose last entry the watch does not select.
	lookTimeout = 100 * time.Millisecond
)

// recent answers the latest changes of a scope as a list, oldest first.
func (s *service) recent(ctx context.Context, sc scope, since, current int64) (*rest.Stream, error) {
	events, err := s.changes(ctx, sc, since, current)
	if err != nil {
		return nil, err
	}
	if len(events) > recentEvents {
		events = events[len(events)-recentEvents:]
	}
	list := client.List[client.Event[any]]{Items: make([]client.Event[any], len(events)), Total: len(events)}
	list.Metadata.ResourceVersion = current
	for i, e := range events {
		if list.Items[i], err = sc.event(e); err != nil {
			return nil, err
		}
	}
	data, err := rest.EncodeEvent(list)
	if err != nil {
		return nil, err
	}
	return &rest.Stream{Body: func(hc huma.Context) {
		hc.SetHeader("Content-Type", "application/json")
		_, _ = hc.BodyWriter().Write(append(data, '\n'))
	}}, nil
}

// changes reads the log after a revision (0: as far back as recentRevisions and the log reach) up to the current one.
func (s *service) changes(ctx context.Context, sc scope, since, current int64) ([]store.Event, error) {
	if current == 0 || since >= current {
		return nil, nil
	}
	w, err := s.openLog(ctx, sc, since, current)
	if w == nil || err != nil {
		return nil, err
	}
	defer w.Close()
	var events []store.Event
	for {
		look, cancel := context.WithTimeout(ctx, lookTimeout)
		b, err := w.Next(look)
		cancel()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			return events, nil
		case err != nil:
			return nil, err
		}
		if b.Revision <= current {
			events = append(events, b.Events...)
		}
		if b.Revision >= current {
			return events, nil
		}
	}
}

// openLog opens the log after a revision; where none is asked for, as far back as it is kept. A nil watcher: nothing
// is kept.
func (s *service) openLog(ctx context.Context, sc scope, since, current int64) (store.Watcher, error) {
	queries := make([]store.Query, len(sc.parts))
	for i, p := range sc.parts {
		queries[i] = p.query
	}
	if since > 0 {
		return s.Store.Watch(ctx, since, queries...)
	}
	for back := int64(recentRevisions); back > 0; back /= 2 {
		w, err := s.Store.Watch(ctx, max(current-back, 1), queries...)
		if !errors.Is(err, store.ErrCompacted) {
			return w, err
		}
	}
	return nil, nil
}
