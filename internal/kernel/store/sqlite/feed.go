package sqlite

import "sync"

// commit is what one transaction changed.
type commit struct {
	revision int64
	changes  []change
	// size is about what it takes in memory, in bytes.
	size int
}

// changeOverhead is about what a change takes in memory beside its encoding: the maps of its labels, mostly.
const changeOverhead = 1 << 10

// feed holds the recent commits in memory and wakes the watchers they may concern. Watchers read them through
// cursors of their own: one that lags behind what is held reads the log table instead.
type feed struct {
	mu sync.RWMutex
	// recent commits have the revisions first, first+1, …
	recent []*commit
	first  int64
	// size of the recent commits in bytes, and its limit.
	size, maxSize int
	sleepers      map[string]map[*watcher]struct{}
}

// maxRecent bounds the number of commits that are held in memory.
const maxRecent = 8192

func newFeed(revision int64, maxSize int) *feed {
	return &feed{first: revision + 1, maxSize: maxSize, sleepers: map[string]map[*watcher]struct{}{}}
}

// publish makes commits visible to watchers, in order.
func (f *feed) publish(commits []*commit) {
	if len(commits) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	kinds := map[string]struct{}{}
	for _, c := range commits {
		f.recent = append(f.recent, c)
		f.size += c.size
		for i := range c.changes {
			kinds[c.changes[i].object.Kind] = struct{}{}
		}
	}
	f.evict()
	for kind := range kinds {
		for w := range f.sleepers[kind] {
			w.wake()
		}
	}
}

func (f *feed) evict() {
	drop := 0
	for ; f.size > f.maxSize || len(f.recent)-drop > maxRecent; drop++ {
		f.size -= f.recent[drop].size
		f.recent[drop] = nil
	}
	f.recent = f.recent[drop:]
	f.first += int64(drop)
}

// at answers the commit with a revision, nil if that is still to come; held is false if it is no longer in memory.
func (f *feed) at(revision int64) (c *commit, held bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	i := revision - f.first
	if i >= 0 && i < int64(len(f.recent)) {
		c = f.recent[i]
	}
	return c, i >= 0
}

// subscribe has the watcher woken when an object of one of the kinds changes.
func (f *feed) subscribe(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range w.queries {
		if f.sleepers[q.Kind] == nil {
			f.sleepers[q.Kind] = map[*watcher]struct{}{}
		}
		f.sleepers[q.Kind][w] = struct{}{}
	}
}

func (f *feed) unsubscribe(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range w.queries {
		delete(f.sleepers[q.Kind], w)
	}
}
