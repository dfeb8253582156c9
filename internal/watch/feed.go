package watch

import (
	"context"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// initialChunk is how many objects that exist are encoded at once: there may be many.
const initialChunk = 500

// feed encodes what a watcher of a scope is told.
type feed struct {
	server    *Server
	scope     Scope
	watcher   store.Watcher
	bookmarks bool
	// initial is what is still to be sent of the state at revision.
	initial  []store.Event
	revision int64
}

// next answers the next frames. Of the initial ones only the last carry the revision: who resumes has seen all of them.
func (f *feed) next(ctx context.Context) (rest.Frames, error) {
	if len(f.initial) > 0 {
		return f.chunk()
	}
	b, err := f.watcher.Next(ctx)
	if err != nil {
		return rest.Frames{}, err
	}
	events := f.scope.kept(b.Events)
	if b.Initial {
		f.initial, f.revision = events, b.Revision
		return f.chunk()
	}
	frames := rest.Frames{Revision: b.Revision, Events: make([][]byte, len(events))}
	for i, e := range events {
		// Changes come to many watchers.
		if frames.Events[i], err = f.server.recent.encode(f.scope, e); err != nil {
			return frames, err
		}
	}
	return frames, nil
}

func (f *feed) chunk() (rest.Frames, error) {
	n := min(initialChunk, len(f.initial))
	frames := rest.Frames{Events: make([][]byte, 0, n+1)}
	for _, e := range f.initial[:n] {
		event, err := f.scope.event(e)
		if err != nil {
			return frames, err
		}
		frame, err := rest.EncodeEvent(event)
		if err != nil {
			return frames, err
		}
		frames.Events = append(frames.Events, frame)
	}
	clear(f.initial[:n])
	if f.initial = f.initial[n:]; len(f.initial) > 0 {
		return frames, nil
	}
	f.initial, frames.Revision = nil, f.revision
	if f.bookmarks {
		frame, err := rest.EncodeEvent(bookmark(f.revision))
		if err != nil {
			return frames, err
		}
		frames.Events = append(frames.Events, frame)
	}
	return frames, nil
}

func bookmark(revision int64) client.Event[any] {
	var at struct {
		Metadata client.ListMetadata `json:"metadata"`
	}
	at.Metadata.ResourceVersion = revision
	return client.Event[any]{Type: client.Bookmark, Object: at}
}
