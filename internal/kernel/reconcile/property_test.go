package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step of a random history: something happens, then time passes.
type step struct {
	Do    string
	Key   string
	After time.Duration
}

var stepGen = rapid.Custom(func(t *rapid.T) step {
	return step{
		Do:    rapid.SampledFrom([]string{"set", "set", "set", "delete", "wake", "compact", "break", "restart"}).Draw(t, "do"),
		Key:   rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"),
		After: time.Duration(rapid.SampledFrom([]int{0, 0, 1, 10, 200, 3000}).Draw(t, "ms")) * time.Millisecond,
	}
})

// observer checks that no key runs twice at once, and remembers what each key's last run saw.
type observer struct {
	s *fakeStore

	mu      sync.Mutex
	n       int
	faults  []int
	running map[string]bool
	seen    map[string]int64
	broke   string
}

func (o *observer) Reconcile(ctx context.Context, key string) (Result, error) {
	o.mu.Lock()
	if o.running[key] {
		o.broke = fmt.Sprintf("%s ran twice at once", key)
	}
	o.running[key] = true
	o.seen[key] = o.s.get(key)
	fault := 0
	if o.n < len(o.faults) {
		fault = o.faults[o.n]
	}
	o.n++
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		delete(o.running, key)
		o.mu.Unlock()
	}()
	pass(time.Duration(fault) * 7 * time.Millisecond)
	switch fault {
	case 1:
		return Result{}, errors.New("failed")
	case 2:
		panic("failed badly")
	case 3:
		return Result{}, Terminal(errors.New("failed for good"))
	case 4:
		return Result{After: 20 * time.Millisecond}, nil
	}
	return Result{}, nil
}

// TestNoChangeIsMissedAndNoKeyRunsTwiceAtOnce: whatever the order of changes, wakes, compactions, broken watches,
// restarts and failing runs, in the end each key's last run has seen the key's last state.
func TestNoChangeIsMissedAndNoKeyRunsTwiceAtOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(stepGen, 1, 40).Draw(rt, "steps")
		faults := rapid.SliceOfN(rapid.IntRange(0, 4), 0, 30).Draw(rt, "faults")
		debounce := time.Duration(rapid.SampledFrom([]int{0, 50}).Draw(rt, "debounce")) * time.Millisecond
		var broke string
		synctest.Test(t, func(t *testing.T) { broke = history(t, steps, faults, debounce) })
		if broke != "" {
			rt.Fatal(broke)
		}
	})
}

func history(t *testing.T, steps []step, faults []int, debounce time.Duration) string {
	s := newFakeStore()
	o := &observer{s: s, faults: faults, running: map[string]bool{}, seen: map[string]int64{}}
	start := func() (*Manager, func()) {
		m := New(s, nil, nil)
		if err := m.Add(Controller{
			Name: "c", Sources: things(), Reconciler: o, Workers: 3,
			Debounce: debounce, BackoffMin: 10 * time.Millisecond, BackoffMax: time.Second,
		}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		return m, func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	}
	m, stop := start()
	deletedWhileAway := map[string]bool{}
	for _, st := range steps {
		switch st.Do {
		case "set":
			s.set(st.Key, nil)
			delete(deletedWhileAway, st.Key)
		case "delete":
			s.delete(st.Key)
		case "wake":
			m.Wake("c", st.Key)
		case "compact":
			s.compact()
		case "break":
			s.breakWatches(errors.New("broken"))
		case "restart":
			stop()
			// A deletion that no run saw before the process ended is not seen by the next one: the object is gone.
			for _, k := range []string{"a", "b", "c"} {
				if s.get(k) == 0 {
					deletedWhileAway[k] = true
				}
			}
			m, stop = start()
			synctest.Wait()
		}
		pass(st.After)
	}
	pass(time.Hour)
	synctest.Wait()
	o.mu.Lock()
	broke := o.broke
	for _, k := range []string{"a", "b", "c"} {
		if seen, now := o.seen[k], s.get(k); seen != now && !deletedWhileAway[k] {
			broke = fmt.Sprintf("the last run of %s saw revision %d, the store has %d", k, seen, now)
		}
	}
	o.mu.Unlock()
	stop()
	pass(time.Minute)
	if s.open != 0 {
		broke = fmt.Sprintf("%d watches were left open", s.open)
	}
	return broke
}
