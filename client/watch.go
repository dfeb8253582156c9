package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/url"
	"strings"
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

// feed tells where a collection's changes are to be had: all of them, or those of one resource. A collection
// without a feed is read again and again.
type feed struct {
	all, one string
	query    url.Values
	selector string // always asked for
	selects  bool   // the feed understands labelSelector
	only     string // the kind to pick from a feed of several
}

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
	// seen holds the reported resources by name, as reported; since is the revision to resume after, 0: read all.
	seen    map[string]Resource[S, T]
	since   int64
	started bool
	fails   int
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
			w.since = 0
			continue
		case !retryable(err) || !w.started:
			return err
		}
		if w.o.OnRetry != nil && !errors.Is(err, errEnded) {
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
	if w.since == 0 {
		return w.relist(ctx)
	}
	u, q := w.address()
	if u == "" {
		every := w.o.Poll
		if every == 0 {
			every = time.Second
		}
		w.since = 0
		return sleep(ctx, every)
	}
	err := w.r.c.stream(ctx, u, q, w.since, func(m message) error {
		w.fails = 0
		if len(m.data) > 0 {
			if err := w.receive(m.data); err != nil {
				return err
			}
		}
		w.since = max(w.since, m.id)
		return nil
	})
	if IsNotFound(err) && w.o.Name != "" {
		w.since = 0
		return nil
	}
	return err
}

func (w *watch[S, T]) address() (string, url.Values) {
	f := w.r.feed
	q := url.Values{}
	for k, v := range f.query {
		q[k] = v
	}
	if w.o.Name != "" && f.one != "" {
		return strings.ReplaceAll(f.one, "{name}", url.PathEscape(w.o.Name)), url.Values{}
	}
	if f.selects {
		for _, s := range []string{f.selector, w.o.Selector} {
			if s != "" {
				q.Add("labelSelector", s)
			}
		}
	}
	return f.all, q
}

func (w *watch[S, T]) relist(ctx context.Context) error {
	items, revision, err := w.read(ctx)
	if err != nil {
		return err
	}
	w.fails = 0
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
	w.since, w.started = max(revision, 1), true
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
		return l.Items, l.Metadata.ResourceVersion, nil
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
		return nil, item.Metadata.ResourceVersion, nil
	}
	return []Resource[S, T]{*item}, item.Metadata.ResourceVersion, nil
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
	if e.Type == Bookmark || !w.concerns(e.Kind) {
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

func (w *watch[S, T]) concerns(kind string) bool {
	want := w.r.feed.only
	return want == "" || kind == "" || want == strings.ToLower(strings.ReplaceAll(kind, "-", ""))
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
