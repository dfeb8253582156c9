package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

var errDied = errors.New("the process died here")

// crashStore is the store of a process that can die at a chosen write, before or after it became durable, and whose
// disk can be full.
type crashStore struct {
	store.Store
	// writes counts down to the death; 0: none is planned.
	writes  int
	durable bool
	dead    bool
	full    bool
	// commits counts the transactions that became durable.
	commits int
}

func openStore(w *world, path string, kinds []store.Kind) *crashStore {
	w.t.Helper()
	s, err := sqlite.Open(ctx, path, sqlite.Options{Kinds: kinds, Readers: 1})
	if err != nil {
		w.t.Fatalf("open %s: %v", path, err)
	}
	return &crashStore{Store: s}
}

func (s *crashStore) Update(ctx context.Context, f func(store.Tx) error) error {
	if s.dead {
		return errDied
	}
	if s.full {
		return fmt.Errorf("write: %w", store.ErrFull)
	}
	if s.writes > 0 {
		if s.writes--; s.writes == 0 {
			s.dead = true
			if !s.durable {
				return errDied
			}
		}
	}
	if err := s.Store.Update(ctx, f); err != nil {
		return err
	}
	s.commits++
	if s.dead {
		return errDied
	}
	return nil
}

func (s *crashStore) View(ctx context.Context, f func(store.Reader) error) error {
	if s.dead {
		return errDied
	}
	return s.Store.View(ctx, f)
}

// copyStore copies the files of a store that is closed.
func copyStore(w *world, from, to string) {
	w.t.Helper()
	old, err := filepath.Glob(to + "*")
	if err != nil {
		w.t.Fatalf("copy a store: %v", err)
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			w.t.Fatalf("copy a store: %v", err)
		}
	}
	files, err := filepath.Glob(from + "*")
	if err != nil || len(files) == 0 {
		w.t.Fatalf("copy %s: %v", from, err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(to+path[len(from):], content, 0o600)
		}
		if err != nil {
			w.t.Fatalf("copy a store: %v", err)
		}
	}
}
