package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
)

func TestALongWriteAheadLogIsCutBack(t *testing.T) {
	db := idle(t)
	w := db.writer
	w.wal.limit = 1 << 20
	size := func() int64 {
		info, err := os.Stat(w.wal.path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	write := func(name string) {
		r := newRequest(context.Background(), func(tx store.Tx) error {
			return errors.Join(creates(name)(tx), tx.PutBlob(name, make([]byte, 100<<10)))
		})
		if w.commit([]*request{r}); r.err != nil {
			t.Fatal(r.err)
		}
	}
	tend := func() {
		w.wal.checked = w.wal.checked.Add(-walCheckEvery)
		if err := w.wal.tend(w.conn); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.View(context.Background(), func(r store.Reader) error {
		for i := range 100 {
			write(fmt.Sprint(i))
		}
		before := size()
		tend()
		if before < 5<<20 || size() != before {
			t.Errorf("with a view that lasts: %d bytes, then %d", before, size())
		}
		l, err := r.List(store.Query{Kind: "tenant"})
		if err == nil && len(l.Objects) != 0 {
			t.Errorf("the view moved")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	tend()
	if after := size(); after != 0 {
		t.Errorf("%d bytes after the cut", after)
	}
	write("after")
	if err := db.View(context.Background(), func(r store.Reader) error {
		l, err := r.List(store.Query{Kind: "tenant"})
		if err == nil && len(l.Objects) != 101 {
			t.Errorf("%d objects, want 101", len(l.Objects))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
