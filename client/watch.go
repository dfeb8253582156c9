package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// The types of a watch's events.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	// Bookmark: everything that existed when the watch began (or began again) was reported. Only the object's
	// ResourceVersion is set.
	Bookmark = "BOOKMARK"
)

// WatchOptions restrict a watch.
type WatchOptions struct {
	// Selector is a label selector in Kubernetes' grammar. What leaves it is reported as deleted.
	Selector string
	// Name watches one resource only. It must exist; the watch ends when it is gone.
	Name string
	// OnRetry is told why a connection ended, before the watch connects again.
	OnRetry func(error)
	// Poll is how often a kind is read again whose changes the server does not offer. Default: 1 s.
	Poll time.Duration
}

// feed tells which changes of a collection a server offers: at path/events, at path/NAME/events. Where it offers
// none, the collection is read again and again.
type feed struct{ all, one bool }

// Watch reports what exists, a Bookmark, and then every change, until ctx ends, the watched resource is gone, or the
// server refuses; an error is its last item. Connections that end are resumed where they ended. When the server no longer
// knows what changed meanwhile, the watch reads everything again and reports the differences: a consumer sees the
// latest state of each resource, though not each state between.
func (r Collection[S, T]) Watch(ctx context.Context, o WatchOptions) iter.Seq2[Event[Resource[S, T]], error] {
	return func(yield func(Event[Resource[S, T]], error) bool) {
		w := &watch[S, T]{r: r, o: o, yield: yield, seen: map[string]Resource[S, T]{}}
		if err := w.run(ctx); err != nil && !errors.Is(err, errStopped) {
			yield(Event[Resource[S, T]]{}, err)
		}
	}
}

var (
	errStopped = errors.New("the watch's consumer stopped")
	errEnded   = errors.New("the server closed the watch")
)

type watch[S, T any] struct {
	r        Collection[S, T]
	o        WatchOptions
	yield    func(Event[Resource[S, T]], error) bool
	selector labels.Selector
	// seen holds the resources by name, as they were reported.
	seen map[string]Resource[S, T]
	// listed: seen is what there was at the revision since, which is 0 where that is not known: the server then
	// tells again what there is.
	listed  bool
	since   int64
	started bool
	fails   int
	// blind: this server does not offer the changes of the collection.
	blind bool
}

func (w *watch[S, T]) run(ctx context.Context) (err error) {
	if w.selector, err = labels.Parse(w.o.Selector); err != nil {
		return &Error{Code: 400, Reason: "BadRequest", Message: "label selector: " + err.Error()}
	}
	for {
		err := w.once(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			continue
		case errors.Is(err, errStopped):
			return err
		case IsGone(err):
			w.listed = false
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

// once reads everything, or follows the changes, until there is something else to do.
func (w *watch[S, T]) once(ctx context.Context) error {
	if !w.listed {
		return w.relist(ctx)
	}
	path := w.feed()
	if path == "" {
		every := w.o.Poll
		if every == 0 {
			every = time.Second
		}
		w.listed = false
		return sleep(ctx, every)
	}
	q := url.Values{}
	if w.o.Selector != "" && w.o.Name == "" {
		q.Set("labelSelector", w.o.Selector)
	}
	err := w.r.c.stream(ctx, path, q, w.since, func(m message) error {
		w.fails = 0
		if len(m.data) > 0 {
			if err := w.receive(m.data); err != nil {
				return err
			}
		}
		w.since = max(w.since, m.id)
		return nil
	})
	if IsNotFound(err) {
		// What is watched is gone, which reading tells; or there are no changes to be had here.
		w.blind = w.o.Name == ""
		w.listed = false
		return nil
	}
	return err
}

// feed is the path of the changes to follow, "" if there is none.
func (w *watch[S, T]) feed() string {
	switch {
	case w.o.Name != "" && w.r.feed.one:
		return w.r.one(w.o.Name) + "/events"
	case w.o.Name == "" && w.r.feed.all && !w.blind:
		return w.r.path + "/events"
	}
	return ""
}

func (w *watch[S, T]) relist(ctx context.Context) error {
	items, revision, err := w.read(ctx)
	if err != nil {
		return err
	}
	now := map[string]bool{}
	for _, item := range items {
		now[item.Metadata.Name] = true
		if err := w.report(Modified, item); err != nil {
			return err
		}
	}
	for name, item := range w.seen {
		if !now[name] {
			if err := w.report(Deleted, item); err != nil {
				return err
			}
		}
	}
	w.listed, w.since, w.started = true, revision, true
	var mark Resource[S, T]
	mark.Metadata.ResourceVersion = revision
	if !w.yield(Event[Resource[S, T]]{Type: Bookmark, Object: mark}, nil) {
		return errStopped
	}
	return nil
}

func (w *watch[S, T]) read(ctx context.Context) ([]Resource[S, T], int64, error) {
	if w.o.Name == "" {
		l, err := w.r.List(ctx, ListOptions{Selector: w.o.Selector})
		if err != nil {
			return nil, 0, err
		}
		return l.Items, max(l.Metadata.ResourceVersion, 1), nil
	}
	item, err := w.r.Get(ctx, w.o.Name)
	switch {
	case IsNotFound(err) && len(w.seen) > 0:
		if err := w.report(Deleted, w.seen[w.o.Name]); err != nil {
			return nil, 0, err
		}
		return nil, 0, errStopped
	case err != nil:
		return nil, 0, err
	case !w.selector.Matches(labels.Set(item.Metadata.Labels)):
		return nil, 0, nil
	}
	return []Resource[S, T]{*item}, 0, nil
}

func (w *watch[S, T]) receive(data []byte) error {
	var e Event[json.RawMessage]
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	if e.Type == "ERROR" {
		var env envelope
		if err := json.Unmarshal(e.Object, &env); err != nil {
			return err
		}
		return env.toError()
	}
	if e.Type == Bookmark {
		return nil
	}
	var item Resource[S, T]
	if err := json.Unmarshal(e.Object, &item); err != nil {
		return err
	}
	if w.o.Name != "" && item.Metadata.Name != w.o.Name {
		return nil
	}
	if e.Type != Deleted && !w.selector.Matches(labels.Set(item.Metadata.Labels)) {
		e.Type = Deleted
	}
	if err := w.report(e.Type, item); err != nil {
		return err
	}
	if e.Type == Deleted && w.o.Name != "" {
		return errStopped
	}
	return nil
}

// report hands an event on unless it is known already, and calls it Added exactly when the resource was not known.
func (w *watch[S, T]) report(kind string, item Resource[S, T]) error {
	name := item.Metadata.Name
	known, ok := w.seen[name]
	same := ok && known.Metadata.UID == item.Metadata.UID
	switch {
	case kind == Deleted && !same, kind != Deleted && same && item.Metadata.ResourceVersion <= known.Metadata.ResourceVersion:
		return nil
	case kind == Deleted:
		delete(w.seen, name)
	case same:
		kind, w.seen[name] = Modified, item
	case ok: // made again under the old name, its deletion unseen
		if err := w.report(Deleted, known); err != nil {
			return err
		}
		kind, w.seen[name] = Added, item
	default:
		kind, w.seen[name] = Added, item
	}
	if !w.yield(Event[Resource[S, T]]{Type: kind, Object: item}, nil) {
		return errStopped
	}
	return nil
}

func retryable(err error) bool {
	if errors.Is(err, errEnded) {
		return true
	}
	var connect *ConnectError
	if errors.As(err, &connect) {
		return !connect.Untrusted()
	}
	var e *Error
	return errors.As(err, &e) && (e.Code >= 500 || e.Code == 429)
}
