package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/url"

	"freehold.dev/freehold/internal/hub"
)

// StreamWatch restricts a watch of streams. Empty fields do not.
type StreamWatch struct {
	// Node and Stream are the streams to watch. What does not exist yet is reported when it does.
	Node, Stream string
	// Convergence: a stream that leaves it is reported as deleted.
	Convergence hub.ConvergenceState
	// OnRetry is told why a connection ended, before the watch connects again.
	OnRetry func(error)
}

// Watch reports the streams that exist, a Bookmark (of which nothing but its type is set), and then every change, until
// ctx ends or the server refuses; an error is its last item. Connections that end are resumed where they ended. When the
// server no longer knows what changed meanwhile, everything is reported again: as MODIFIED what was known before, as
// DELETED what is no longer there.
func (h Hub) Watch(ctx context.Context, o StreamWatch) iter.Seq2[Event[Stream], error] {
	return func(yield func(Event[Stream], error) bool) {
		w := &streamWatch{h: h, o: o, yield: yield, known: map[string]Stream{}, fresh: map[string]bool{}}
		if err := w.run(ctx); err != nil && !errors.Is(err, errStopped) {
			yield(Event[Stream]{}, err)
		}
	}
}

type streamWatch struct {
	h     Hub
	o     StreamWatch
	yield func(Event[Stream], error) bool
	// known are the streams as they were reported, by node and name.
	known map[string]Stream
	// since is the revision to resume after; 0: the server tells first what there is, and fresh is what it told so far.
	since   int64
	fresh   map[string]bool
	started bool
	fails   int
}

func (w *streamWatch) run(ctx context.Context) error {
	for {
		err := w.once(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errStopped):
			return err
		case IsGone(err):
			w.since = 0
		case !retryable(err) || !w.started:
			return err
		}
		if w.o.OnRetry != nil && !errors.Is(err, errEnded) && !IsGone(err) {
			w.o.OnRetry(err)
		}
		w.fails++
		if err := sleep(ctx, retryDelay(w.fails, err)); err != nil {
			return err
		}
	}
}

// once follows the changes until the connection ends.
func (w *streamWatch) once(ctx context.Context) error {
	q := url.Values{"allowWatchBookmarks": {"true"}}
	if w.o.Node != "" {
		q.Set("node_id", w.o.Node)
	}
	if w.o.Stream != "" {
		q.Set("stream_id", w.o.Stream)
	}
	if w.o.Convergence != "" {
		q.Set("convergence", string(w.o.Convergence))
	}
	clear(w.fresh)
	return w.h.c.stream(ctx, api+"/streams/events", q, w.since, func(m message) error {
		w.fails, w.started = 0, true
		if len(m.data) > 0 {
			if err := w.receive(m.data); err != nil {
				return err
			}
		}
		if m.id == 0 {
			return nil
		}
		initial := w.since == 0
		w.since = max(w.since, m.id)
		if initial {
			return w.listed()
		}
		return nil
	})
}

// listed: what exists was told, and nothing of what was known and not told is left.
func (w *streamWatch) listed() error {
	for key, s := range w.known {
		if !w.fresh[key] {
			delete(w.known, key)
			if !w.yield(Event[Stream]{Type: Deleted, Object: s}, nil) {
				return errStopped
			}
		}
	}
	if !w.yield(Event[Stream]{Type: Bookmark}, nil) {
		return errStopped
	}
	return nil
}

func (w *streamWatch) receive(data []byte) error {
	var e Event[json.RawMessage]
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	switch e.Type {
	case "ERROR":
		var env envelope
		if err := json.Unmarshal(e.Object, &env); err != nil {
			return err
		}
		return env.toError()
	case Bookmark:
		return nil // its id tells the same
	}
	var s Stream
	if err := json.Unmarshal(e.Object, &s); err != nil {
		return err
	}
	return w.report(e.Type, s)
}

// report hands a change on, and calls it Added exactly when the stream was not known.
func (w *streamWatch) report(kind string, s Stream) error {
	key := hub.StreamName(s.NodeID, s.StreamID)
	_, known := w.known[key]
	switch {
	case kind == Deleted && !known:
		return nil
	case kind == Deleted:
		delete(w.known, key)
	case known:
		kind = Modified
	default:
		kind = Added
	}
	if kind != Deleted {
		w.known[key], w.fresh[key] = s, true
	}
	if !w.yield(Event[Stream]{Type: kind, Object: s}, nil) {
		return errStopped
	}
	return nil
}
