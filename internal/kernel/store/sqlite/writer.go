package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"syscall"
	"time"

	"zombiezen.com/go/sqlite"

	"freehold.dev/freehold/internal/kernel/store"
)

// maxBatch bounds how many updates share one commit, and with it how long the first of them waits for the others.
const maxBatch = 256

// errExited is answered to an update whose function ended its goroutine (a test's Fatal does that).
var errExited = errors.New("the update's function did not return: it called runtime.Goexit")

// request is an update on its way through the writer.
type request struct {
	ctx  context.Context
	f    func(*tx) error
	err  error
	done chan struct{}
}

// writer owns the one connection that writes. Its goroutine commits updates in groups: all that wait at one
// moment share a transaction and its fsync.
type writer struct {
	conn   *conn
	wal    wal
	kinds  kindSet
	feed   *feed
	logger *slog.Logger
	// revision is the last committed one.
	revision int64
	// now is the time of the last batch: log times do not go back when the clock does.
	now     time.Time
	queue   chan *request
	closing chan struct{}
	stopped chan struct{}
	// current is the request whose function runs, nil between functions.
	current *request
}

// submit hands f to the writer and waits for its outcome. A ctx that ends before the writer took f over means that
// f is not run; later it changes nothing.
func (w *writer) submit(ctx context.Context, f func(*tx) error) error {
	r := &request{ctx: ctx, f: f, done: make(chan struct{})}
	select {
	case <-w.closing:
		return store.ErrClosed
	default:
	}
	select {
	case w.queue <- r:
		<-r.done
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.closing:
		return store.ErrClosed
	}
}

// run commits the given requests, then what comes, until the store closes.
func (w *writer) run(batch []*request) {
	defer func() {
		if exited := w.current; exited != nil {
			w.survive(exited, batch)
		} else {
			close(w.stopped)
		}
	}()
	for {
		w.commit(batch)
		if err := w.wal.tend(w.conn); err != nil {
			w.logger.Warn("the store's write-ahead log was not cut back; it is tried again", "error", err)
		}
		select {
		case r := <-w.queue:
			batch = w.gather(r)
		case <-w.closing:
			return
		}
	}
}

// survive goes on in a new goroutine after a request's function has ended this one.
func (w *writer) survive(exited *request, batch []*request) {
	w.current = nil
	exited.err = errors.Join(errExited, w.conn.rollback())
	close(exited.done)
	var rest []*request
	for _, r := range batch {
		if !r.answered() {
			rest = append(rest, r)
		}
	}
	go w.run(rest)
}

func (r *request) answered() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// gather takes what waits behind the first request.
func (w *writer) gather(first *request) []*request {
	batch := []*request{first}
	for len(batch) < maxBatch {
		select {
		case r := <-w.queue:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// commit makes a batch durable and answers its requests. If it fails as a whole, each is run again alone, so
// that each learns its own truth.
func (w *writer) commit(batch []*request) {
	if len(batch) == 0 {
		return
	}
	commits, err := w.attempt(batch)
	if err != nil && len(batch) > 1 {
		for i := range batch {
			w.commit(batch[i : i+1])
		}
		return
	}
	if err != nil {
		batch[0].err = failure(err)
	}
	w.feed.publish(commits)
	for _, r := range batch {
		close(r.done)
	}
}

// attempt runs the batch in one transaction. An error means that nothing of it was kept.
func (w *writer) attempt(batch []*request) ([]*commit, error) {
	var commits []*commit
	revision := w.revision
	if now := time.Now().UTC().Truncate(time.Microsecond); now.After(w.now) {
		w.now = now
	}
	err := w.conn.transact(func() error {
		for _, r := range batch {
			c, err := w.perform(r, revision)
			if err != nil {
				return err
			}
			if c != nil {
				commits, revision = append(commits, c), c.revision
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.revision = revision
	return commits, nil
}

// perform runs one request in its savepoint. What the request's own function answers goes into the request; the
// error is a failure of the backend, which spoils the whole transaction.
func (w *writer) perform(r *request, revision int64) (*commit, error) {
	if r.err = r.ctx.Err(); r.err != nil {
		return nil, nil
	}
	if err := w.conn.exec("SAVEPOINT request"); err != nil {
		return nil, err
	}
	t := &tx{
		reader: reader{conn: w.conn, kinds: w.kinds, revision: revision, recent: &recent{}},
		now:    w.now,
		next:   revision + 1,
	}
	defer func() { t.ended = true }()
	r.err = w.call(r, t)
	var c *commit
	if r.err == nil || t.broken != nil {
		var err error
		if c, err = t.finish(); err != nil {
			return nil, err
		}
	} else if err := w.conn.exec("ROLLBACK TO request"); err != nil {
		return nil, err
	}
	return c, w.conn.exec("RELEASE request")
}

// call runs the request's function and turns a panic into an error.
func (w *writer) call(r *request, t *tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.current = nil
			err = fmt.Errorf("panic in a store update: %v\n%s", p, debug.Stack())
		}
	}()
	w.current = r
	err = r.f(t)
	w.current = nil
	return err
}

// failure names a failure of the backend in the store's terms.
func failure(err error) error {
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultFull || errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return fmt.Errorf("write to the store: %w", damage(err))
}

// damage says what to do about a file that is no whole database; other errors, and none, stay as they are.
func damage(err error) error {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultCorrupt, sqlite.ResultNotADB:
		return fmt.Errorf("the store's file is damaged: stop the server and restore the data folder from a backup: %w", err)
	}
	return err
}
