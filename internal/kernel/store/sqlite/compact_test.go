package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

func TestTheStoreCompactsByItself(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	s, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "store.db"), sqlite.Options{
		Kinds: tenants, Keep: time.Nanosecond, KeepEntries: 3, CompactEvery: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	create := func(name string) (revision int64) {
		o := &store.Object{Kind: "tenant", Name: name}
		if err := s.Update(ctx, func(tx store.Tx) error { return tx.Create(o) }); err != nil {
			t.Fatal(err)
		}
		return o.Revision
	}
	first := create("a")
	for _, name := range []string{"b", "c", "d", "e"} {
		create(name)
	}
	for {
		w, err := s.Watch(ctx, first, store.Query{Kind: "tenant"})
		if errors.Is(err, store.ErrCompacted) {
			break
		}
		if err != nil {
			t.Fatalf("waiting for the compaction: %v", err)
		}
		w.Close()
	}
	w, err := s.Watch(ctx, first+1, store.Query{Kind: "tenant"})
	if err != nil {
		t.Fatalf("the last entries were not kept: %v", err)
	}
	w.Close()
}
