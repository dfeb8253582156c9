package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
)

// idle opens a store whose writer does not run, so that a test makes the batches.
func idle(t *testing.T) *database {
	t.Helper()
	kinds, err := newKindSet([]store.Kind{{Name: "tenant"}, {Name: "machine"}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "store.db")
	lock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	db := &database{kinds: kinds, lock: lock}
	if err := db.prepare(path, Options{}.withDefaults()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.release(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func newRequest(ctx context.Context, f func(store.Tx) error) *request {
	return &request{ctx: ctx, f: func(t *tx) error { return f(t) }, done: make(chan struct{})}
}

func creates(name string) func(store.Tx) error {
	return func(tx store.Tx) error { return tx.Create(&store.Object{Kind: "tenant", Name: name}) }
}

func TestOneOfABatchDoesNotSpoilTheOthers(t *testing.T) {
	refused := errors.New("refused")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, fault := range []string{"ABORT", "ROLLBACK", "FAIL"} {
		t.Run(fault, func(t *testing.T) {
			db := idle(t)
			// The backend fails in the middle of a statement, and with ROLLBACK takes the whole transaction
			// along, as SQLite does when the disk is full.
			if err := db.writer.conn.exec("CREATE TRIGGER fault BEFORE INSERT ON blobs WHEN new.name = 'poison' BEGIN SELECT RAISE(" + fault + ", 'injected fault'); END"); err != nil {
				t.Fatal(err)
			}
			poison := func(tx store.Tx) error {
				if err := creates("half")(tx); err != nil {
					return err
				}
				_ = tx.PutBlob("poison", nil) // an error that is overlooked
				return nil
			}
			batch := []*request{
				newRequest(context.Background(), creates("a")),
				newRequest(context.Background(), poison),
				newRequest(context.Background(), creates("b")),
				newRequest(context.Background(), func(store.Tx) error { return refused }),
				newRequest(context.Background(), func(store.Tx) error { panic("a bug") }),
				newRequest(ended, creates("late")),
				newRequest(context.Background(), creates("b")),
			}
			db.writer.commit(batch)
			for i, want := range []func(error) bool{
				func(err error) bool { return err == nil },
				func(err error) bool { return err != nil && strings.Contains(err.Error(), "injected fault") },
				func(err error) bool { return err == nil },
				func(err error) bool { return errors.Is(err, refused) },
				func(err error) bool { return err != nil && strings.Contains(err.Error(), "a bug") },
				func(err error) bool { return errors.Is(err, context.Canceled) },
				func(err error) bool { return errors.Is(err, store.ErrExists) },
			} {
				if !batch[i].answered() || !want(batch[i].err) {
					t.Errorf("request %d: answered %v, %v", i, batch[i].answered(), batch[i].err)
				}
			}
			if err := db.View(context.Background(), func(r store.Reader) error {
				l, err := r.List(store.Query{Kind: "tenant"})
				if err == nil && (len(l.Objects) != 2 || l.Objects[0].Name != "a" || l.Objects[1].Name != "b") {
					t.Errorf("stored: %v", l.Objects)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestABatchIsOneTransaction(t *testing.T) {
	db := idle(t)
	names := []string{"a", "b", "c"}
	var batch []*request
	for _, name := range names {
		batch = append(batch, newRequest(context.Background(), creates(name)))
	}
	first := db.writer.revision + 1
	commits, err := db.writer.attempt(batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range commits {
		if c.revision != first+int64(i) || len(c.changes) != 1 || c.changes[0].object.Name != names[i] {
			t.Errorf("commit %d: revision %d of %v", i, c.revision, c.changes)
		}
	}
	if len(commits) != len(names) {
		t.Errorf("%d commits", len(commits))
	}
}

func TestABatchWakesWatchersOfItsKindsAlone(t *testing.T) {
	db := idle(t)
	watch := func(kind string) *watcher {
		w, err := db.Watch(context.Background(), db.writer.revision, store.Query{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w.(*watcher)
	}
	tenants, machines := watch("tenant"), watch("machine")
	db.writer.commit([]*request{newRequest(context.Background(), creates("a")), newRequest(context.Background(), creates("b"))})
	if len(tenants.woken) != 1 || len(machines.woken) != 0 {
		t.Errorf("woken: tenants %d, machines %d; want 1 and 0", len(tenants.woken), len(machines.woken))
	}
}

func TestCommitsAreFlushed(t *testing.T) {
	db := idle(t)
	for pragma, want := range map[string]int64{"synchronous": 2 /* FULL */} {
		if got, err := db.writer.conn.int64("PRAGMA " + pragma); got != want || err != nil {
			t.Errorf("%s is %d (%v), want %d", pragma, got, err, want)
		}
	}
	var mode string
	if err := db.writer.conn.query(func(r row) error { mode = r.ColumnText(0); return nil }, "PRAGMA journal_mode"); mode != "wal" || err != nil {
		t.Errorf("journal mode %q, %v", mode, err)
	}
}

func TestNoRoomForPagesIsErrFull(t *testing.T) {
	db := idle(t)
	pages, err := db.writer.conn.int64("PRAGMA page_count")
	if err != nil {
		t.Fatal(err)
	}
	limit := func(n int64) {
		if _, err := db.writer.conn.int64("PRAGMA max_page_count = " + strconv.FormatInt(n, 10)); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages + 20)
	big := make([]byte, 200<<10)
	write := func(tx store.Tx) error { return errors.Join(creates("b")(tx), tx.PutBlob("big", big)) }
	fits, tooBig := newRequest(context.Background(), creates("a")), newRequest(context.Background(), write)
	db.writer.commit([]*request{fits, tooBig})
	if fits.err != nil || !errors.Is(tooBig.err, store.ErrFull) {
		t.Errorf("what fits: %v; what does not: %v, want ErrFull", fits.err, tooBig.err)
	}
	limit(pages + 1000)
	again := newRequest(context.Background(), write)
	db.writer.commit([]*request{again})
	if again.err != nil {
		t.Errorf("with room again: %v", again.err)
	}
}
