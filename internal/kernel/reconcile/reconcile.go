// Package reconcile runs keyed, level-triggered controllers.
//
// A [Controller] declares what wakes it (queries of the store, mapped to keys) and has one method that brings one
// key closer to what was declared. A [Manager] owns the goroutines: it follows the store's change log, queues the
// keys, runs each key on one worker at a time, and retries what failed with a growing delay.
//
// What is promised, as long as the process lives: a change of an object that a source selects leads to a run of
// its keys that starts after the change was committed. Several changes may share that run. A run may also come
// without any change. After a restart of the process every key of every existing object runs once; what was
// deleted while the process was away runs no more, so a deletion that has consequences needs a finalizer.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Reconciler brings one key closer to what was declared.
//
// It is level-triggered: it is told which key to look at, never what happened to it. It loads the present state
// itself, compares, does the next step and records it; the object may be gone. It has to be idempotent and
// resumable, because a run can be cut off at any line and repeated. The Manager never runs one key twice at
// once; different keys run in parallel, up to the controller's workers. A run should end soon after ctx does.
//
// A run writes only what differs. A controller whose source selects what it writes wakes itself by its own
// writes: it comes to rest only if a repeated run writes nothing.
//
// The answers:
//   - nil error, zero Result: settled; the next run comes with the next change, wake or resync.
//   - nil error, Result.After: settled for now; look again after that time, or sooner if something changes.
//   - [RetryAfter]: not done, for an expected reason (something else has to happen first); again after that time.
//   - [Terminal]: not done, and trying again is pointless until something changes. A resync tries all the same.
//   - any other error, or a panic: again with a delay that doubles from Controller.BackoffMin to BackoffMax, or
//     sooner if something changes. A run that ends without error starts the delay afresh.
type Reconciler interface {
	Reconcile(ctx context.Context, key string) (Result, error)
}

// Func is a function as a Reconciler.
type Func func(ctx context.Context, key string) (Result, error)

// Reconcile calls f.
func (f Func) Reconcile(ctx context.Context, key string) (Result, error) { return f(ctx, key) }

// Result of a run without error.
type Result struct {
	// After asks for another run after this time; zero does not.
	After time.Duration
}

// Source is what wakes a controller.
type Source struct {
	// Query selects objects. Each existing one counts as a change when the Manager starts.
	Query store.Query
	// Keys answers the keys that an event concerns. It has to be pure: same object, same keys. When an object's
	// keys change, the old ones are woken as well as the new ones. Nil: the object's name is the key.
	Keys func(store.Event) []string
	// ForgetGone: an object that leaves the query needs no run. Runs of its keys that wait for the sources to be quiet
	// are dropped, unless another change asks for them.
	ForgetGone bool
}

// Controller is a reconciler with what wakes it and how it is run.
type Controller struct {
	// Name identifies the controller in logs, metrics and for Wake.
	Name       string
	Sources    []Source
	Reconciler Reconciler
	// Workers is how many keys may run at once. Default 1.
	Workers int
	// Debounce delays a run until the key's sources were quiet for that long, MaxDebounce (default five times
	// Debounce) after the first change at the latest. Initial keys, Wake and retries are not delayed.
	Debounce, MaxDebounce time.Duration
	// Resync runs each key of each existing object this often, spread evenly over the interval. Zero: never.
	Resync time.Duration
	// Timeout ends the context of a run. Zero: no limit.
	Timeout time.Duration
	// BackoffMin and BackoffMax bound the delay after an error. Defaults 1 s and 5 min.
	BackoffMin, BackoffMax time.Duration
}

// Defaults of a Controller.
const (
	DefaultBackoffMin = time.Second
	DefaultBackoffMax = 5 * time.Minute
)

func (c *Controller) complete() error {
	switch {
	case c.Name == "":
		return errors.New("a controller needs a name")
	case c.Reconciler == nil:
		return fmt.Errorf("controller %q needs a reconciler", c.Name)
	case c.Workers < 0 || c.Debounce < 0 || c.MaxDebounce < 0 || c.Resync < 0 || c.Timeout < 0 || c.BackoffMin < 0 || c.BackoffMax < 0:
		return fmt.Errorf("controller %q: workers and durations cannot be negative", c.Name)
	}
	for i, s := range c.Sources {
		if s.Query.Kind == "" {
			return fmt.Errorf("controller %q: source %d needs a kind", c.Name, i)
		}
	}
	if c.Workers == 0 {
		c.Workers = 1
	}
	if c.MaxDebounce == 0 {
		c.MaxDebounce = 5 * c.Debounce
	}
	if c.MaxDebounce < c.Debounce {
		return fmt.Errorf("controller %q: MaxDebounce %v is shorter than Debounce %v", c.Name, c.MaxDebounce, c.Debounce)
	}
	if c.BackoffMin == 0 {
		c.BackoffMin = DefaultBackoffMin
	}
	if c.BackoffMax == 0 {
		c.BackoffMax = max(DefaultBackoffMax, c.BackoffMin)
	}
	if c.BackoffMax < c.BackoffMin {
		return fmt.Errorf("controller %q: BackoffMax %v is shorter than BackoffMin %v", c.Name, c.BackoffMax, c.BackoffMin)
	}
	return nil
}

type terminalError struct{ error }

func (e terminalError) Unwrap() error { return e.error }

// Terminal marks an error that a retry cannot cure. Nil stays nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return terminalError{err}
}

// IsTerminal tells whether err, or one that it wraps, was marked by Terminal.
func IsTerminal(err error) bool {
	var t terminalError
	return errors.As(err, &t)
}

type retryError struct {
	error
	after time.Duration
}

func (e retryError) Unwrap() error { return e.error }

// RetryAfter marks an error after which the key runs again after d, without backoff. Nil stays nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return retryError{err, max(d, 0)}
}
