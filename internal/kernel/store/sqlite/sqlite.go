// Package sqlite keeps a store in one SQLite file.
//
// One goroutine writes, and commits all updates that wait at one moment together; a few connections read. The
// write-ahead log is flushed to the disk before any update is answered.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"freehold.dev/freehold/internal/kernel/store"
)

// Options of a store. The zero value of a field takes the default.
type Options struct {
	// Kinds that the store holds.
	Kinds []store.Kind
	// Logger gets what no caller is told, such as failures of the automatic compaction. Default: none.
	Logger *slog.Logger
	// Keep and KeepEntries are what the automatic compaction leaves of the change log: entries younger than Keep
	// (default 24 h), and the last KeepEntries (default 10,000).
	Keep        time.Duration
	KeepEntries int
	// CompactEvery is the time between automatic compactions (default 10 min).
	CompactEvery time.Duration
	// Readers is the number of views that can run at one time (default 4).
	Readers int
	// RecentBytes bounds the recent changes held in memory for watchers, in about the bytes that they take
	// (default 8 MiB).
	RecentBytes int
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.Keep, 24*time.Hour)
	setDefault(&o.KeepEntries, 10_000)
	setDefault(&o.CompactEvery, 10*time.Minute)
	setDefault(&o.Readers, 4)
	setDefault(&o.RecentBytes, 8<<20)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

const (
	writerCacheKiB = 8 << 10
	readerCacheKiB = 2 << 10
)

// database implements [store.Store].
type database struct {
	kinds   kindSet
	lock    *os.File
	writer  *writer
	feed    *feed
	readers chan *conn
	// all lists the readers' connections, for Close.
	all []*conn

	closeOnce  sync.Once
	closeErr   error
	background sync.WaitGroup
	stop       context.CancelFunc
}

var _ store.Store = (*database)(nil)

// Open opens the store at path, and makes it if there is none; the file is readable by its owner alone. It refuses
// a file that another process has open, that is not a store, or that a newer program wrote.
func Open(ctx context.Context, path string, options Options) (store.Store, error) {
	kinds, err := newKindSet(options.Kinds)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, err
	}
	db := &database{kinds: kinds, lock: lock}
	options = options.withDefaults()
	if err := db.prepare(path, options); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, damage(err)), db.release())
	}
	db.start(options)
	return db, nil
}

// prepare opens the connections and brings the file up to date.
func (db *database) prepare(path string, o Options) error {
	// SQLite gives its other files the mode of the first.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return err
	}
	if err := syncFolders(filepath.Dir(path)); err != nil {
		return err
	}
	c, err := connect(path, writerCacheKiB)
	if err != nil {
		return err
	}
	db.all = append(db.all, c)
	if err := migrate(c); err != nil {
		return err
	}
	if err := reindex(c, db.kinds); err != nil {
		return err
	}
	revision, err := lastRevision(c)
	if err != nil {
		return err
	}
	newest, err := c.int64("SELECT time FROM log ORDER BY revision DESC LIMIT 1")
	if err != nil {
		return err
	}
	db.readers = make(chan *conn, o.Readers)
	for range o.Readers {
		r, err := connect(path, readerCacheKiB)
		if err != nil {
			return err
		}
		db.all = append(db.all, r)
		db.readers <- r
	}
	db.feed = newFeed(revision, o.RecentBytes)
	db.writer = &writer{
		conn: c, wal: wal{path: path + "-wal", limit: walLimit},
		kinds: db.kinds, feed: db.feed, logger: o.Logger,
		revision: revision, now: time.UnixMicro(newest).UTC(),
		queue: make(chan *request), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	return nil
}

// start starts the goroutines.
func (db *database) start(o Options) {
	ctx, stop := context.WithCancel(context.Background())
	db.stop = stop
	go db.writer.run(nil)
	db.background.Go(func() { db.keepCompact(ctx, o) })
}

// syncFolders makes the names of a new file and of its folder survive a loss of power.
func syncFolders(folder string) error {
	for _, name := range []string{folder, filepath.Dir(folder)} {
		f, err := os.Open(name)
		if err != nil {
			if name != folder && errors.Is(err, os.ErrPermission) {
				continue // not ours, and so not made by us
			}
			return err
		}
		err = f.Sync()
		if errors.Is(err, unix.EINVAL) {
			err = nil // a file system that has no flush for folders
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("flush folder %s: %w", name, err)
		}
	}
	return nil
}

// lastRevision is the highest revision that was given out.
func lastRevision(c *conn) (int64, error) {
	return c.int64("SELECT seq FROM sqlite_sequence WHERE name = 'log'")
}

// View implements [store.Store].
func (db *database) View(ctx context.Context, f func(store.Reader) error) error {
	return db.view(ctx, func(r *reader) error { return f(r) })
}

func (db *database) view(ctx context.Context, f func(*reader) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-db.writer.closing:
		return store.ErrClosed
	default:
	}
	var c *conn
	select {
	case c = <-db.readers:
	case <-ctx.Done():
		return ctx.Err()
	case <-db.writer.closing:
		return store.ErrClosed
	}
	defer func() {
		err = damage(err)
		db.readers <- c
	}()
	if err := c.exec("BEGIN"); err != nil {
		return fmt.Errorf("begin view: %w", err)
	}
	defer func() {
		if ended := c.rollback(); err == nil {
			err = ended
		}
	}()
	revision, err := lastRevision(c)
	if err != nil {
		return fmt.Errorf("begin view: %w", err)
	}
	r := &reader{conn: c, kinds: db.kinds, revision: revision}
	defer func() { r.ended = true }()
	return f(r)
}

// Update implements [store.Store].
func (db *database) Update(ctx context.Context, f func(store.Tx) error) error {
	return db.writer.submit(ctx, func(t *tx) error { return f(t) })
}

// Close implements [store.Store]: it waits for the updates and views that run, and refuses new ones.
func (db *database) Close() error {
	db.closeOnce.Do(func() {
		close(db.writer.closing)
		db.stop()
		<-db.writer.stopped
		db.background.Wait()
		for range cap(db.readers) {
			<-db.readers
		}
		db.closeErr = db.release()
	})
	return db.closeErr
}

// release closes the connections, the last of which moves the write-ahead log into the file, and gives up the lock.
func (db *database) release() error {
	var errs []error
	for i := len(db.all) - 1; i >= 0; i-- {
		errs = append(errs, db.all[i].Close())
	}
	return errors.Join(append(errs, db.lock.Close())...)
}
