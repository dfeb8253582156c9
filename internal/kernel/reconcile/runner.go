package reconcile

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"freehold.dev/freehold/internal/kernel/store"
)

// runner is a controller at work. The work queue guarantees that a key is with one worker at a time and that a key
// which is added while it runs is queued again afterwards.
type runner struct {
	Controller
	log       *slog.Logger
	queue     workqueue.TypedRateLimitingInterface[string]
	debounce  *debouncer
	followers []*follower
	metrics   *metrics
}

func newRunner(c Controller, s Store, log *slog.Logger) *runner {
	r := &runner{Controller: c, log: log.With("controller", c.Name)}
	r.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](c.BackoffMin, c.BackoffMax),
		workqueue.TypedRateLimitingQueueConfig[string]{})
	r.debounce = newDebouncer(c.Debounce, c.MaxDebounce, r.queue.Add)
	for _, src := range c.Sources {
		r.followers = append(r.followers, &follower{
			source: src, store: s, log: r.log, changed: r.debounce.touch, initial: r.debounce.now, gone: r.debounce.drop,
		})
	}
	r.metrics = newMetrics(c.Name, func() float64 { return float64(r.queue.Len()) })
	return r
}

// start starts everything on wg. fail is called when a source cannot be followed any more.
func (r *runner) start(ctx context.Context, wg *sync.WaitGroup, fail func(error)) {
	for _, f := range r.followers {
		wg.Go(func() {
			if err := f.run(ctx); err != nil {
				fail(err)
			}
		})
	}
	for range r.Workers {
		wg.Go(func() { r.work(ctx) })
	}
	if r.Resync > 0 {
		wg.Go(func() { r.resync(ctx) })
	}
}

func (r *runner) close() {
	r.debounce.close()
	r.queue.ShutDown()
}

func (r *runner) work(ctx context.Context) {
	for {
		key, stopped := r.queue.Get()
		if stopped {
			return
		}
		if ctx.Err() == nil {
			r.one(ctx, key)
		}
		r.queue.Done(key)
	}
}

// one runs a key and queues what is to follow.
func (r *runner) one(ctx context.Context, key string) {
	r.metrics.running.Inc()
	start := time.Now()
	result, panicked, err := r.call(ctx, key)
	took := time.Since(start)
	r.metrics.running.Dec()

	if ctx.Err() != nil {
		// Cut off by shutdown, not failed: the next start looks at every key again.
		return
	}
	log := r.log.With("key", key, "took", took.Round(time.Microsecond))
	var retry retryError
	switch {
	case err == nil:
		r.metrics.observe(outcomeOK, took)
		r.queue.Forget(key)
		if result.After > 0 {
			r.queue.AddAfter(key, result.After)
		}
	case IsTerminal(err):
		r.metrics.observe(outcomeTerminal, took)
		r.queue.Forget(key)
		log.Error("reconcile failed for good; only a change helps", "error", err)
	case errors.As(err, &retry):
		r.metrics.observe(outcomeRetry, took)
		r.metrics.retries.Inc()
		r.queue.Forget(key)
		r.queue.AddAfter(key, retry.after)
		log.Debug("reconcile has to wait", "reason", err, "after", retry.after)
	default:
		outcome := outcomeError
		if panicked {
			outcome = outcomePanic
		}
		r.metrics.observe(outcome, took)
		r.metrics.retries.Inc()
		failures := r.queue.NumRequeues(key) + 1
		r.queue.AddRateLimited(key)
		level := slog.LevelWarn
		if errors.Is(err, store.ErrConflict) {
			// Somebody else wrote first; the retry reads anew.
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "reconcile failed; it will be tried again", "error", err, "failures", failures)
	}
}

// call runs the reconciler, with a panic as an error.
func (r *runner) call(ctx context.Context, key string) (result Result, panicked bool, err error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("reconciler panicked", "key", key, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			panicked, err = true, fmt.Errorf("reconciler panicked: %v", p)
		}
	}()
	result, err = r.Reconciler.Reconcile(ctx, key)
	return result, false, err
}

// resync queues each known key once per interval, at an offset that is the key's own, so that they do not come
// all at once.
func (r *runner) resync(ctx context.Context) {
	tick := time.NewTicker(r.Resync)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due := map[string]struct{}{}
		for _, f := range r.followers {
			f.known(func(key string) { due[key] = struct{}{} })
		}
		for key := range due {
			r.queue.AddAfter(key, offset(key, r.Resync))
		}
	}
}

// offset is a stable share of the interval for a key.
func offset(key string, interval time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(key))
	return time.Duration(h.Sum64() % uint64(interval))
}
