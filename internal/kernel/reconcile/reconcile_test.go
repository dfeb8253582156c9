package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"freehold.dev/freehold/internal/kernel/store"
)

// pass lets time pass in a synctest bubble, where it is not real.
func pass(d time.Duration) { <-time.After(d) }

// recorder notes when which key was run, and answers as its script says.
type recorder struct {
	mu     sync.Mutex
	start  time.Time
	runs   []string
	answer func(key string, n int) (Result, error)
	counts map[string]int
}

func newRecorder(answer func(key string, n int) (Result, error)) *recorder {
	return &recorder{start: time.Now(), answer: answer, counts: map[string]int{}}
}

func (r *recorder) Reconcile(_ context.Context, key string) (Result, error) {
	r.mu.Lock()
	r.runs = append(r.runs, fmt.Sprintf("%s@%v", key, time.Since(r.start).Round(time.Millisecond)))
	r.counts[key]++
	n := r.counts[key]
	r.mu.Unlock()
	if r.answer == nil {
		return Result{}, nil
	}
	return r.answer(key, n)
}

// take answers the runs since the last call.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := strings.Join(r.runs, " ")
	r.runs = nil
	return out
}

// running starts a manager inside a synctest bubble, and stops it at the end of the test.
func running(t *testing.T, s Store, c Controller) *Manager {
	t.Helper()
	m := New(s, nil, nil)
	if err := m.Add(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		// The queue's own goroutines end on their next tick.
		pass(time.Minute)
	})
	synctest.Wait()
	return m
}

func things() []Source { return []Source{{Query: store.Query{Kind: "thing"}}} }

func expectRuns(t *testing.T, r *recorder, want string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, r.take()); diff != "" {
		t.Fatalf("runs (-want +got):\n%s", diff)
	}
}

func TestEveryExistingObjectRunsAtStartAndChangesRunLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.set("a", nil)
		r := newRecorder(nil)
		running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r})
		expectRuns(t, r, "a@0s")
		s.set("b", nil)
		expectRuns(t, r, "b@0s")
		s.delete("a")
		expectRuns(t, r, "a@0s")
	})
}

func TestErrorsBackOffAndSuccessStartsAfresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.set("a", nil)
		r := newRecorder(func(_ string, n int) (Result, error) {
			switch {
			case n <= 4, n == 6:
				return Result{}, errors.New("not yet")
			default:
				return Result{}, nil
			}
		})
		running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r, BackoffMax: 3 * time.Second})
		pass(time.Minute)
		expectRuns(t, r, "a@0s a@1s a@3s a@6s a@9s")
		s.set("a", nil)
		pass(time.Minute)
		expectRuns(t, r, "a@1m0s a@1m1s")
	})
}

func TestResultAfterAndRetryAfterRunAgainThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(func(_ string, n int) (Result, error) {
			switch n {
			case 1:
				return Result{After: 7 * time.Second}, nil
			case 2:
				return Result{}, fmt.Errorf("wrapped: %w", RetryAfter(3*time.Second, errors.New("still waiting")))
			default:
				return Result{}, nil
			}
		})
		s := newFakeStore()
		s.set("a", nil)
		running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r})
		pass(time.Minute)
		expectRuns(t, r, "a@0s a@7s a@10s")
	})
}

func TestTerminalErrorsWaitForAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(func(string, int) (Result, error) { return Result{}, Terminal(errors.New("no use")) })
		s := newFakeStore()
		s.set("a", nil)
		running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r})
		pass(time.Hour)
		expectRuns(t, r, "a@0s")
		s.set("a", nil)
		expectRuns(t, r, "a@1h0m0s")
	})
}

func TestAPanicIsContainedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(func(key string, n int) (Result, error) {
			if key == "bad" && n == 1 {
				panic("boom")
			}
			return Result{}, nil
		})
		s := newFakeStore()
		s.set("bad", nil)
		running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r})
		s.set("good", nil)
		pass(time.Minute)
		expectRuns(t, r, "bad@0s good@0s bad@1s")
	})
}

func TestDebounceWaitsForQuietButNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(nil)
		s := newFakeStore()
		m := running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r, Debounce: 2 * time.Second, MaxDebounce: 5500 * time.Millisecond})
		s.set("a", nil)
		pass(time.Second)
		s.set("a", nil)
		pass(10 * time.Second)
		expectRuns(t, r, "a@3s")
		for range 14 { // one a second: never quiet
			s.set("a", nil)
			pass(time.Second)
		}
		pass(10 * time.Second)
		expectRuns(t, r, "a@16.5s a@22.5s a@26s")
		s.set("a", nil)
		synctest.Wait()
		m.Wake("c", "a")
		pass(10 * time.Second)
		expectRuns(t, r, "a@35s")
	})
}

func TestWhatIsGoneWhileItWaitsForQuietNeedsNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(nil)
		s := newFakeStore()
		sources := things()
		sources[0].ForgetGone = true
		running(t, s, Controller{Name: "c", Sources: sources, Reconciler: r, Debounce: 2 * time.Second})
		s.set("a", nil)
		s.set("b", nil)
		pass(time.Second)
		s.delete("a")
		pass(10 * time.Second)
		expectRuns(t, r, "b@2s")
		s.set("a", nil) // it comes again
		pass(10 * time.Second)
		expectRuns(t, r, "a@13s")
		s.delete("a")
		pass(10 * time.Second)
		expectRuns(t, r, "")
	})
}

func TestWakeRunsAtOnceAndOnceMoreWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(func(_ string, n int) (Result, error) {
			if n == 1 {
				pass(5 * time.Second)
			}
			return Result{}, nil
		})
		m := running(t, newFakeStore(), Controller{Name: "c", Reconciler: r, Workers: 4})
		m.Wake("c", "a")
		pass(time.Second)
		m.Wake("c", "a")
		m.Wake("c", "a")
		m.Wake("nobody", "a")
		pass(time.Minute)
		expectRuns(t, r, "a@0s a@5s")
	})
}

func TestWakeBeforeTheControllerIsAddedIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		m := New(newFakeStore(), slog.New(slog.NewTextHandler(&logged, nil)), nil)
		m.Wake("c", "a")
		m.Wake("c", "b")
		m.Wake("c", "a")
		m.Wake("nobody", "x")
		if logged.Len() > 0 {
			t.Errorf("before the controllers are there it logs %s", &logged)
		}
		r := newRecorder(nil)
		if err := m.Add(Controller{Name: "c", Reconciler: r}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		expectRuns(t, r, "a@0s b@0s")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if text := logged.String(); strings.Count(text, "nobody") != 1 || strings.Contains(text, "controller=c ") {
			t.Errorf("it logs %s", text)
		}
	})
}

func TestResyncRunsEachKnownKeyOncePerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(nil)
		s := newFakeStore()
		for i := range 20 {
			s.set(fmt.Sprint("k", i), nil)
		}
		s.set("gone", nil)
		running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r, Resync: 5 * time.Minute})
		s.delete("gone")
		synctest.Wait()
		r.take()
		// Ticks at 5, 10, … 30 min; each key follows within its tick's interval.
		pass(30*time.Minute - time.Second)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		at := map[string]int{}
		for _, run := range r.runs {
			key, when, _ := strings.Cut(run, "@")
			at[when]++
			if key == "gone" {
				t.Errorf("a key that is gone ran at %s", when)
			}
		}
		for i := range 20 {
			if n := r.counts[fmt.Sprint("k", i)]; n != 6 {
				t.Errorf("k%d ran %d times, want 6", i, n)
			}
		}
		if len(at) < 50 {
			t.Errorf("100 runs came at only %d moments", len(at))
		}
	})
}

func TestAnObjectThatMovesWakesBothKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		byOwner := []Source{{Query: store.Query{Kind: "thing"}, Keys: func(e store.Event) []string {
			return []string{e.Object.Labels["owner"]}
		}}}
		r := newRecorder(nil)
		s := newFakeStore()
		s.set("x", map[string]string{"owner": "one"})
		running(t, s, Controller{Name: "c", Sources: byOwner, Reconciler: r})
		expectRuns(t, r, "one@0s")
		s.set("x", map[string]string{"owner": "two"})
		expectRuns(t, r, "two@0s one@0s")
		s.delete("x")
		expectRuns(t, r, "two@0s")
	})
}

func TestDeletionsHiddenByCompactionStillWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(nil)
		s := newFakeStore()
		s.set("a", nil)
		running(t, s, Controller{Name: "c", Sources: things(), Reconciler: r})
		expectRuns(t, r, "a@0s")
		s.breakWatches(errors.New("connection lost"))
		synctest.Wait()
		s.delete("a")
		s.compact()
		pass(time.Second)
		expectRuns(t, r, "a@100ms")
	})
}

func TestAClosedStoreEndsRunWithItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		m := New(s, nil, nil)
		if err := m.Add(Controller{Name: "c", Sources: things(), Reconciler: newRecorder(nil)}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- m.Run(t.Context()) }()
		synctest.Wait()
		s.breakWatches(store.ErrClosed)
		if err := <-done; !errors.Is(err, store.ErrClosed) {
			t.Fatalf("Run: %v, want ErrClosed", err)
		}
		if s.open != 0 {
			t.Errorf("%d watches are still open", s.open)
		}
		pass(time.Minute)
	})
}

func TestRunWaitsForRunningReconcilers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		for i := range 5 {
			s.set(fmt.Sprint(i), nil)
		}
		var started, ended int
		var mu sync.Mutex
		m := New(s, nil, nil)
		err := m.Add(Controller{Name: "c", Sources: things(), Workers: 2, Reconciler: Func(func(ctx context.Context, _ string) (Result, error) {
			mu.Lock()
			started++
			mu.Unlock()
			<-ctx.Done()
			pass(time.Second)
			mu.Lock()
			ended++
			mu.Unlock()
			return Result{}, ctx.Err()
		})})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if started != 2 || ended != 2 {
			t.Errorf("started %d, ended %d; want 2 and 2: queued keys must not start after the end", started, ended)
		}
		pass(time.Minute)
	})
}

func TestTimeoutEndsARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got error
		running(t, newFakeStore(), Controller{Name: "c", Timeout: time.Second, Reconciler: Func(func(ctx context.Context, _ string) (Result, error) {
			<-ctx.Done()
			got = ctx.Err()
			return Result{}, nil
		})}).Wake("c", "a")
		pass(2 * time.Second)
		synctest.Wait()
		if !errors.Is(got, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline", got)
		}
	})
}

func TestIncompleteControllersAreRefused(t *testing.T) {
	ok := Func(func(context.Context, string) (Result, error) { return Result{}, nil })
	for name, c := range map[string]Controller{
		"no name":          {Reconciler: ok},
		"no reconciler":    {Name: "c"},
		"source, no kind":  {Name: "c", Reconciler: ok, Sources: []Source{{}}},
		"negative workers": {Name: "c", Reconciler: ok, Workers: -1},
		"short postponing": {Name: "c", Reconciler: ok, Debounce: 2, MaxDebounce: 1},
		"backoff reversed": {Name: "c", Reconciler: ok, BackoffMin: 2, BackoffMax: 1},
	} {
		if err := New(newFakeStore(), nil, nil).Add(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	m := New(newFakeStore(), nil, nil)
	if err := m.Add(Controller{Name: "c", Reconciler: ok}); err != nil {
		t.Fatal(err)
	}
	if err := m.Add(Controller{Name: "c", Reconciler: ok}); err == nil {
		t.Error("a second controller of the same name was accepted")
	}
}

func TestMetricsTellDepthRunsAndLastSuccess(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(newFakeStore(), nil, reg)
	fail := true
	ran := make(chan struct{})
	c := Controller{Name: "c", BackoffMin: time.Millisecond, Reconciler: Func(func(context.Context, string) (Result, error) {
		if fail {
			fail = false
			return Result{}, errors.New("first")
		}
		close(ran)
		return Result{}, nil
	})}
	if err := m.Add(c); err != nil {
		t.Fatal(err)
	}
	m.Wake("c", "a")
	if got := gathered(t, reg)["freehold_reconcile_depth"]; got != 1 {
		t.Errorf("depth %v, want 1", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	<-ran
	for gathered(t, reg)["freehold_reconcile_runs_total ok"] != 1 {
		runtime.Gosched()
	}
	got := gathered(t, reg)
	if got["freehold_reconcile_runs_total error"] != 1 || got["freehold_reconcile_retries_total"] != 1 || got["freehold_reconcile_duration_seconds"] != 2 {
		t.Errorf("got %v, want one error, one retry, two durations", got)
	}
	if got["freehold_reconcile_last_success_timestamp_seconds"] == 0 {
		t.Error("no last success")
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if left := gathered(t, reg); len(left) != 0 {
		t.Errorf("after Run these are left: %v", left)
	}
}

// gathered answers the registry's values by family name and, if there is one, outcome.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" {
					name += " " + l.GetValue()
				}
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}
