package reconcile

import (
	"context"
	"maps"
	"slices"
	"sync"

	"freehold.dev/freehold/internal/kernel/store"
)

// fakeStore is a change log in memory whose watches can be compacted and broken.
type fakeStore struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	objects   map[string]*store.Object
	log       []store.Batch
	changed   chan struct{}
	broken    error
	watches   int
	open      int
}

func newFakeStore() *fakeStore {
	return &fakeStore{objects: map[string]*store.Object{}, changed: make(chan struct{})}
}

func (s *fakeStore) commit(t store.EventType, o *store.Object) {
	s.log = append(s.log, store.Batch{Revision: s.revision, Events: []store.Event{{Type: t, Object: o}}})
	s.wake()
}

func (s *fakeStore) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeStore) set(name string, labels map[string]string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	t := store.Modified
	if s.objects[name] == nil {
		t = store.Added
	}
	o := &store.Object{Kind: "thing", Name: name, Revision: s.revision, Labels: labels}
	s.objects[name] = o
	s.commit(t, o)
	return s.revision
}

func (s *fakeStore) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[name]
	if o == nil {
		return
	}
	s.revision++
	delete(s.objects, name)
	s.commit(store.Deleted, o)
}

// get answers the revision of the object, 0 for one that is gone.
func (s *fakeStore) get(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		return o.Revision
	}
	return 0
}

// compact forgets the whole log: every watcher that lags starts again.
func (s *fakeStore) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = s.revision
	s.log = nil
	s.wake()
}

// breakWatches ends every open watch with err, once.
func (s *fakeStore) breakWatches(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
	s.watches++
	s.wake()
}

func (s *fakeStore) Watch(_ context.Context, since int64, q ...store.Query) (store.Watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if since > 0 && since < s.compacted {
		return nil, store.ErrCompacted
	}
	s.open++
	return &fakeWatcher{s: s, since: since, initial: since == 0, epoch: s.watches}, nil
}

type fakeWatcher struct {
	s       *fakeStore
	since   int64
	initial bool
	epoch   int
}

func (w *fakeWatcher) Close() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.open--
}

func (w *fakeWatcher) Next(ctx context.Context) (store.Batch, error) {
	for {
		b, ok, wait, err := w.try()
		if ok || err != nil {
			return b, err
		}
		select {
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		case <-wait:
		}
	}
}

func (w *fakeWatcher) try() (store.Batch, bool, chan struct{}, error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil && w.epoch < s.watches {
		return store.Batch{}, false, nil, s.broken
	}
	if w.initial {
		b := store.Batch{Revision: s.revision, Initial: true}
		for _, name := range slices.Sorted(maps.Keys(s.objects)) {
			b.Events = append(b.Events, store.Event{Type: store.Added, Object: s.objects[name]})
		}
		w.initial, w.since = false, s.revision
		return b, true, nil, nil
	}
	if w.since < s.compacted {
		return store.Batch{}, false, nil, store.ErrCompacted
	}
	for _, b := range s.log {
		if b.Revision > w.since {
			w.since = b.Revision
			return b, true, nil, nil
		}
	}
	return store.Batch{}, false, s.changed, nil
}
