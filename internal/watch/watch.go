// Package watch serves the changes of stored objects: the recent ones as a list, or all that follow as a stream.
package watch

import (
	"context"
	"net/http"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// Options is embedded in the input of every watch.
type Options struct {
	rest.WatchInput
	Bookmarks bool `query:"allowWatchBookmarks" doc:"Send a BOOKMARK when all objects that exist were sent."`
}

// Description of an operation that serves a scope.
const Description = "Without watch: the most recent changes, oldest first, as a list: at most 500, from the last 1000 revisions. With watch=true: an ADDED event for each object that exists, " +
	"then every change as it happens, one JSON object a line; with sse=true as Server-Sent Events, whose id is the revision to resume after. " +
	"With resourceVersion=N: the changes after revision N only; 410 when they are no longer kept. " +
	"Every 15 seconds without an event an empty line (SSE: a comment) is sent."

// Scope is what one route covers.
type Scope struct {
	Parts []Part
	// Kinds: each event tells its kind.
	Kinds bool
	// Check refuses the request, on the view that it starts from.
	Check func(store.Reader) error
}

// Part is the objects of one kind in a scope.
type Part struct {
	Query  store.Query
	Kind   string
	Render func(*store.Object) (any, error)
	// Keep leaves out what the query selects and the scope does not want (nil: nothing). It looks at nothing that
	// changes in an object's life.
	Keep func(*store.Object) bool
}

// PartOf renders the objects of a type by its wire form.
func PartOf[S, T, R any](t store.Type[S, T], kind string, q store.Query, wire func(*store.Resource[S, T]) R) Part {
	q.Kind = t.Kind.Name
	return Part{Query: q, Kind: kind, Render: func(o *store.Object) (any, error) {
		r, err := t.Decode(o)
		if err != nil {
			return nil, err
		}
		return wire(r), nil
	}}
}

// Server serves the changes in a store. It remembers encoded events: make one for an API.
type Server struct {
	store  store.Store
	recent *frames
}

// NewServer makes a server.
func NewServer(s store.Store) *Server { return &Server{store: s, recent: newFrames()} }

// Events answers a watch of a scope, or its recent changes.
func (s *Server) Events(ctx context.Context, in *Options, sc Scope) (*rest.Stream, error) {
	since, err := resumeAfter(in.WatchInput)
	if err != nil {
		return nil, err
	}
	queries := make([]store.Query, len(sc.Parts))
	for i, p := range sc.Parts {
		queries[i] = p.Query
	}
	var current int64
	var changes []store.Batch
	err = s.store.View(ctx, func(r store.Reader) error {
		current = r.Revision()
		// Who resumes a watch may have missed the end of what was watched, and is to learn it.
		if sc.Check != nil && (since == 0 || !in.Watch) {
			if err := sc.Check(r); err != nil {
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
	w, err := s.store.Watch(ctx, since, queries...)
	if err != nil {
		return nil, err
	}
	f := &feed{server: s, scope: sc, watcher: w, bookmarks: in.Bookmarks}
	return rest.WatchStream(rest.Watch{SSE: in.SSE, Close: w.Close, Next: f.next}), nil
}

// resumeAfter: a browser that reconnects repeats its first URL, and tells in Last-Event-ID how far it came.
func resumeAfter(in rest.WatchInput) (int64, error) {
	if in.SSE && in.LastEventID != "" {
		in.ResourceVersion = ""
	}
	return in.Since()
}

// part of the scope that an object belongs to.
func (sc Scope) part(o *store.Object) *Part {
	for i := range sc.Parts {
		if p := &sc.Parts[i]; p.Query.Kind == o.Kind {
			return p
		}
	}
	return nil
}

// kept are the events that the scope wants. It changes no event in place: watchers share them.
func (sc Scope) kept(events []store.Event) []store.Event {
	kept := make([]store.Event, 0, len(events))
	for _, e := range events {
		if p := sc.part(e.Object); p != nil && (p.Keep == nil || p.Keep(e.Object)) {
			kept = append(kept, e)
		}
	}
	return kept
}

func (sc Scope) event(e store.Event) (client.Event[any], error) {
	out := client.Event[any]{Type: string(e.Type)}
	p := sc.part(e.Object)
	if p == nil {
		return out, nil
	}
	if sc.Kinds {
		out.Kind = p.Kind
	}
	var err error
	out.Object, err = p.Render(e.Object)
	return out, err
}
