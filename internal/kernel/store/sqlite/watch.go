package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/kernel/store"
)

// scanLimit bounds how many log entries a watcher reads in one view of the store.
const scanLimit = 1000

// watcher is a cursor in the log. Its reader calls Next from one goroutine at a time.
type watcher struct {
	db *database
	queries
	// cursor is the revision up to which everything was reported; 0: the snapshot is still to come.
	cursor int64
	// woken gets a token when a kind of the queries changed.
	woken     chan struct{}
	closed    chan struct{}
	closeOnce sync.Once
}

var _ store.Watcher = (*watcher)(nil)

// Watch implements [store.Store].
func (db *database) Watch(ctx context.Context, since int64, qs ...store.Query) (store.Watcher, error) {
	if len(qs) == 0 {
		return nil, fmt.Errorf("a watch needs at least one query")
	}
	if err := db.kinds.know(qs); err != nil {
		return nil, err
	}
	if since != 0 {
		if err := db.view(ctx, func(r *reader) error { return r.reaches(since) }); err != nil {
			return nil, err
		}
	}
	w := &watcher{
		db: db, queries: slices.Clone(qs), cursor: since,
		woken: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	db.feed.subscribe(w)
	return w, nil
}

// Close implements [store.Watcher].
func (w *watcher) Close() {
	w.closeOnce.Do(func() {
		w.db.feed.unsubscribe(w)
		close(w.closed)
	})
}

func (w *watcher) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// Next implements [store.Watcher].
func (w *watcher) Next(ctx context.Context) (store.Batch, error) {
	for {
		if err := w.done(ctx); err != nil {
			return store.Batch{}, err
		}
		if w.cursor == 0 {
			return w.snapshot(ctx)
		}
		batch, waiting, err := w.advance(ctx)
		if err != nil || len(batch.Events) > 0 {
			return batch, err
		}
		if waiting {
			select {
			case <-w.woken:
			case <-w.closed:
			case <-w.db.writer.stopped:
			case <-ctx.Done():
			}
		}
	}
}

// done tells why there is nothing more to wait for.
func (w *watcher) done(ctx context.Context) error {
	select {
	case <-w.closed:
		return store.ErrClosed
	case <-w.db.writer.stopped:
		return store.ErrClosed
	default:
		return ctx.Err()
	}
}

// snapshot answers the state, and starts the cursor behind it.
func (w *watcher) snapshot(ctx context.Context) (store.Batch, error) {
	batch := store.Batch{Initial: true}
	err := w.db.view(ctx, func(r *reader) error {
		batch.Revision, batch.Events = r.revision, nil
		seen := map[objectKey]bool{}
		for _, q := range w.queries {
			q.Offset, q.Limit, q.NewestFirst = 0, 0, false
			l, err := r.List(q)
			if err != nil {
				return err
			}
			for _, o := range l.Objects {
				if key := (objectKey{o.Kind, o.Name}); !seen[key] {
					seen[key] = true
					batch.Events = append(batch.Events, store.Event{Type: store.Added, Object: o})
				}
			}
		}
		return nil
	})
	if err != nil {
		return store.Batch{}, err
	}
	w.cursor = batch.Revision
	return batch, nil
}

// advance moves the cursor to the next commit that concerns the watcher and answers its events. waiting: the
// cursor is at the end of the log.
func (w *watcher) advance(ctx context.Context) (batch store.Batch, waiting bool, err error) {
	for {
		c, held := w.db.feed.at(w.cursor + 1)
		switch {
		case !held:
			batch, err := w.catchUp(ctx)
			return batch, false, err
		case c == nil:
			return store.Batch{}, true, nil
		}
		w.cursor = c.revision
		if events := w.events(c.changes); len(events) > 0 {
			return store.Batch{Revision: c.revision, Events: events}, false, nil
		}
	}
}

// catchUp is advance by the log table, for commits that are no longer in memory.
func (w *watcher) catchUp(ctx context.Context) (batch store.Batch, err error) {
	cursor := w.cursor
	err = w.db.view(ctx, func(r *reader) error {
		if err := r.reaches(cursor); err != nil {
			return err
		}
		return r.eachCommit(cursor, scanLimit, func(c *commit) bool {
			cursor = c.revision
			batch = store.Batch{Revision: c.revision, Events: w.events(c.changes)}
			return len(batch.Events) == 0
		})
	})
	if err != nil {
		return store.Batch{}, err
	}
	w.cursor = cursor
	return batch, nil
}

// queries are what a watcher looks at.
type queries []store.Query

// events are the changes as one who looks at them sees them.
func (qs queries) events(changes []change) []store.Event {
	var events []store.Event
	for i := range changes {
		c := &changes[i]
		was := c.op != created && qs.selects(c.object, c.previousLabels, c.previousTerms)
		is := c.op != deleted && qs.selects(c.object, c.object.Labels, c.indexTerms)
		switch {
		case was && is:
			events = append(events, store.Event{Type: store.Modified, Object: c.object})
		case is:
			events = append(events, store.Event{Type: store.Added, Object: c.object})
		case was:
			events = append(events, store.Event{Type: store.Deleted, Object: c.object})
		}
	}
	return events
}

func (qs queries) selects(o *store.Object, set map[string]string, terms []term) bool {
	for i := range qs {
		q := &qs[i]
		if q.Kind == o.Kind &&
			(q.Name == "" || q.Name == o.Name) &&
			(q.Prefix == "" || strings.HasPrefix(o.Name, q.Prefix)) &&
			(q.Selector == nil || q.Selector.Matches(labels.Set(set))) &&
			(q.Index == "" || slices.Contains(terms, term{indexField(q.Index), q.Value})) {
			return true
		}
	}
	return false
}

// Changes implements [store.Reader].
func (r *reader) Changes(since int64, last int, qs ...store.Query) ([]store.Batch, error) {
	if r.ended {
		return nil, errEnded
	}
	if err := r.kinds.know(qs); err != nil {
		return nil, err
	}
	if since != 0 {
		if err := r.reaches(since); err != nil {
			return nil, err
		}
	}
	var batches []store.Batch
	err := r.eachCommit(max(since, r.revision-int64(last)), last, func(c *commit) bool {
		if events := queries(qs).events(c.changes); len(events) > 0 {
			batches = append(batches, store.Batch{Revision: c.revision, Events: events})
		}
		return true
	})
	return batches, err
}

// know tells whether the kinds of the queries are declared.
func (s kindSet) know(qs []store.Query) error {
	for _, q := range qs {
		if _, err := s.get(q.Kind); err != nil {
			return err
		}
	}
	return nil
}

// reaches tells whether the log holds everything after the revision.
func (r *reader) reaches(revision int64) error {
	compacted, err := r.conn.int64("SELECT value FROM facts WHERE name = 'compacted'")
	switch {
	case err != nil:
		return fmt.Errorf("read the log: %w", err)
	case revision < compacted:
		return fmt.Errorf("changes after %d: %w up to %d", revision, store.ErrCompacted, compacted)
	case revision > r.revision:
		return fmt.Errorf("changes after %d: %w, or the store was restored: its last is %d", revision, store.ErrCompacted, r.revision)
	}
	return nil
}

// eachCommit reads at most limit commits after a revision, while f answers true.
func (r *reader) eachCommit(after int64, limit int, f func(*commit) bool) error {
	more := true
	for more && limit > 0 {
		more = false
		var data []byte
		err := r.conn.query(func(row row) error {
			after, data = row.ColumnInt64(0), columnBytes(row, 1)
			return nil
		}, "SELECT revision, changes FROM log WHERE revision > ? ORDER BY revision LIMIT 1", after)
		if err == nil && data != nil {
			var c *commit
			if c, err = r.kinds.decodeCommit(after, data); err == nil {
				more = f(c)
			}
		}
		if err != nil {
			return fmt.Errorf("read the log after %d: %w", after, err)
		}
		limit--
	}
	return nil
}

// decodeCommit reads a log entry and brings its objects to the present version of their kinds. Objects of kinds
// that are no longer declared are left out: no watcher can ask for them.
func (s kindSet) decodeCommit(revision int64, data []byte) (*commit, error) {
	changes, err := decodeChanges(data)
	if err != nil {
		return nil, err
	}
	changes = slices.DeleteFunc(changes, func(c change) bool { return s[c.object.Kind] == nil })
	for i := range changes {
		if err := s[changes[i].object.Kind].upgrade(&changes[i].record); err != nil {
			return nil, err
		}
	}
	return &commit{revision: revision, changes: changes, size: len(data)}, nil
}
