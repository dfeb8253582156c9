package api

import (
	"sync"
	"time"

	"freehold.dev/freehold/internal/kernel/rest"
)

// Limit bounds the mutations of one principal: Burst at once, and PerSecond in the long run.
type Limit struct {
	// Burst is 20,000 by default.
	Burst int
	// PerSecond is 500 by default.
	PerSecond float64
}

// maxAllowances is how many principals are remembered at once.
const maxAllowances = 10_000

// limiter keeps the allowance of each principal as the time at which it is whole again.
type limiter struct {
	burst time.Duration
	each  time.Duration
	now   func() time.Time

	mu    sync.Mutex
	whole map[string]time.Time
}

func newLimiter(l Limit, now func() time.Time) *limiter {
	if l.Burst == 0 {
		l.Burst = 20_000
	}
	if l.PerSecond == 0 {
		l.PerSecond = 500
	}
	each := time.Duration(float64(time.Second) / l.PerSecond)
	return &limiter{burst: time.Duration(l.Burst) * each, each: each, now: now, whole: map[string]time.Time{}}
}

// take uses one mutation of the principal's allowance; the error is the refusal.
func (l *limiter) take(principal string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if len(l.whole) >= maxAllowances {
		l.sweep(now)
	}
	at := l.whole[principal]
	if at.Before(now) {
		at = now
	}
	at = at.Add(l.each)
	if over := at.Sub(now) - l.burst; over > 0 {
		return rest.TooMany(over, "too many changes by user %q in a short time: try again later", principal)
	}
	l.whole[principal] = at
	return nil
}

func (l *limiter) sweep(now time.Time) {
	for principal, at := range l.whole {
		if !at.After(now) {
			delete(l.whole, principal)
		}
	}
}
