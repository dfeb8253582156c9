package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Store is what a Manager needs of a store.
type Store interface {
	Watch(ctx context.Context, since int64, queries ...store.Query) (store.Watcher, error)
}

// Pauses between attempts to open a watch that fails.
const (
	rewatchMin = 100 * time.Millisecond
	rewatchMax = 30 * time.Second
)

// follower follows one source. It remembers the keys of each object that exists, so that an object which moves
// from one key to another, or which vanishes while the log is compacted, wakes the key that it leaves.
type follower struct {
	source Source
	store  Store
	log    *slog.Logger
	// changed gets keys of changes, initial gets keys of a snapshot, gone those of objects that need no run any more.
	changed, initial, gone func(key string)

	mu   sync.Mutex
	keys map[string][]string
}

// run follows the source until ctx ends (nil) or the store is closed (ErrClosed).
func (f *follower) run(ctx context.Context) error {
	var revision int64
	pause := rewatchMin
	for {
		next, err := f.follow(ctx, revision)
		if next > revision {
			pause = rewatchMin
		}
		revision = next
		switch {
		case ended(ctx):
			return nil
		case errors.Is(err, store.ErrClosed):
			return err
		case errors.Is(err, store.ErrCompacted):
			f.log.Info("the change log was compacted past this watch; starting again from a snapshot", "kind", f.source.Query.Kind, "revision", revision)
			revision = 0
			continue
		}
		f.log.Warn("watch failed; it will be resumed", "kind", f.source.Query.Kind, "revision", revision, "error", err, "after", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, rewatchMax)
	}
}

func ended(ctx context.Context) bool { return ctx.Err() != nil }

// follow watches from the revision (0: a snapshot) until an error, and answers the revision it got to.
func (f *follower) follow(ctx context.Context, revision int64) (int64, error) {
	w, err := f.store.Watch(ctx, revision, f.source.Query)
	if err != nil {
		return revision, err
	}
	defer w.Close()
	for {
		b, err := w.Next(ctx)
		if err != nil {
			return revision, err
		}
		if b.Initial {
			f.snapshot(b.Events)
		} else {
			for _, e := range b.Events {
				f.change(e)
			}
		}
		revision = b.Revision
	}
}

func (f *follower) keysOf(e store.Event) []string {
	if f.source.Keys == nil {
		return []string{e.Object.Name}
	}
	return f.source.Keys(e)
}

// snapshot replaces what is known and wakes all its keys, and those of objects that are gone or have moved.
func (f *follower) snapshot(events []store.Event) {
	known := make(map[string][]string, len(events))
	for _, e := range events {
		known[e.Object.Name] = f.keysOf(e)
	}
	f.mu.Lock()
	before := f.keys
	f.keys = known
	f.mu.Unlock()
	for _, m := range []map[string][]string{known, before} {
		for _, keys := range m {
			for _, k := range keys {
				f.initial(k)
			}
		}
	}
}

func (f *follower) change(e store.Event) {
	keys := f.keysOf(e)
	f.mu.Lock()
	before := f.keys[e.Object.Name]
	switch {
	case e.Type == store.Deleted:
		delete(f.keys, e.Object.Name)
	case !slices.Equal(before, keys):
		if f.keys == nil {
			f.keys = map[string][]string{}
		}
		f.keys[e.Object.Name] = keys
	}
	f.mu.Unlock()
	wake := f.changed
	if e.Type == store.Deleted && f.source.ForgetGone {
		wake = f.gone
	}
	for _, k := range keys {
		wake(k)
	}
	for _, k := range before {
		if !slices.Contains(keys, k) {
			wake(k)
		}
	}
}

// known calls do with each key of each object that exists; a key may come more than once.
func (f *follower) known(do func(key string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, keys := range f.keys {
		for _, k := range keys {
			do(k)
		}
	}
}
