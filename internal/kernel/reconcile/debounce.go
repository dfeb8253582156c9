package reconcile

import (
	"sync"
	"time"
)

// debouncer passes a key on once its touches have paused for quiet, or longest after the first of them.
type debouncer struct {
	quiet, longest time.Duration
	add            func(key string)

	mu      sync.Mutex
	closed  bool
	pending map[string]*postponed
}

type postponed struct {
	since time.Time
	timer *time.Timer
}

func newDebouncer(quiet, longest time.Duration, add func(string)) *debouncer {
	return &debouncer{quiet: quiet, longest: longest, add: add, pending: map[string]*postponed{}}
}

// touch postpones the key, or passes it on at once when nothing is to be postponed.
func (d *debouncer) touch(key string) {
	if d.quiet <= 0 {
		d.add(key)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if p, ok := d.pending[key]; ok {
		p.timer.Reset(max(0, min(d.quiet, d.longest-time.Since(p.since))))
		return
	}
	p := &postponed{since: time.Now()}
	d.pending[key] = p
	p.timer = time.AfterFunc(min(d.quiet, d.longest), func() { d.fire(key, p) })
}

// now passes the key on at once; a postponed run of it would only repeat that.
func (d *debouncer) now(key string) {
	d.mu.Lock()
	if p, ok := d.pending[key]; ok {
		p.timer.Stop()
		delete(d.pending, key)
	}
	d.mu.Unlock()
	d.add(key)
}

// drop forgets a key that is postponed.
func (d *debouncer) drop(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p, ok := d.pending[key]; ok {
		p.timer.Stop()
		delete(d.pending, key)
	}
}

func (d *debouncer) fire(key string, p *postponed) {
	d.mu.Lock()
	// A timer that was reset while it fired comes here twice; only the one that is still pending counts.
	due := d.pending[key] == p
	if due {
		delete(d.pending, key)
	}
	d.mu.Unlock()
	if due {
		d.add(key)
	}
}

func (d *debouncer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for key, p := range d.pending {
		p.timer.Stop()
		delete(d.pending, key)
	}
}
