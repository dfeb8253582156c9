package audit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// maxWaiting entries wait to be recorded; more are dropped, and said to be.
	maxWaiting = 4096
	// maxBatch entries are recorded in one transaction.
	maxBatch = 256
	// retryEvery is how often a store that takes nothing is tried again.
	retryEvery = time.Second
	// Entries of callers who were not let in are recorded at this rate at most.
	anonymousBurst = 200
	anonymousEvery = time.Second
)

// Recorder records requests that were refused, without holding up their answers. What waits when the process dies, or
// when too much waits, is lost.
type Recorder struct {
	store  store.Store
	logger *slog.Logger
	now    func() time.Time
	queue  chan Entry

	mu      sync.Mutex
	full    time.Time // when the allowance of anonymous entries is whole again
	dropped int
}

// NewRecorder makes a recorder; it works while Run does.
func NewRecorder(s store.Store, logger *slog.Logger, now func() time.Time) *Recorder {
	return &Recorder{store: s, logger: logger, now: now, queue: make(chan Entry, maxWaiting)}
}

// Record takes an entry. It does not block.
func (r *Recorder) Record(e Entry) {
	e.Time = r.now().UTC()
	if e.Principal == "" && !r.admit(e.Time) {
		return
	}
	select {
	case r.queue <- e:
	default:
		r.drop(1)
	}
}

// admit takes one from the allowance of anonymous entries.
func (r *Recorder) admit(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full.Before(now) {
		r.full = now
	}
	if r.full.Sub(now) > (anonymousBurst-1)*anonymousEvery {
		r.dropped++
		return false
	}
	r.full = r.full.Add(anonymousEvery)
	return true
}

func (r *Recorder) drop(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped += n
}

// Run records until ctx ends, and what waits then.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return r.flush(context.WithoutCancel(ctx))
		case e := <-r.queue:
			r.write(ctx, r.batch(e))
		}
	}
}

// batch is an entry with those that wait behind it.
func (r *Recorder) batch(first Entry) []Entry {
	batch := []Entry{first}
	for len(batch) < maxBatch {
		select {
		case e := <-r.queue:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// write records a batch, however long the store takes none.
func (r *Recorder) write(ctx context.Context, batch []Entry) {
	for said := false; ; said = true {
		err := r.append(context.WithoutCancel(ctx), batch)
		if err == nil {
			r.tellDropped()
			return
		}
		if !said {
			r.logger.Warn("refused requests cannot be audited; trying again", slog.String("error", err.Error()), slog.Int("entries", len(batch)))
		}
		timer := time.NewTimer(retryEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			r.drop(len(batch))
			return
		case <-timer.C:
		}
	}
}

func (r *Recorder) append(ctx context.Context, batch []Entry) error {
	return r.store.Update(ctx, func(tx store.Tx) error {
		for _, e := range batch {
			if err := Append(tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// flush makes one try to record what waits.
func (r *Recorder) flush(ctx context.Context) error {
	for {
		select {
		case e := <-r.queue:
			batch := r.batch(e)
			if err := r.append(ctx, batch); err != nil {
				r.logger.Warn("refused requests were not audited", slog.String("error", err.Error()), slog.Int("entries", len(batch)))
				return nil
			}
		default:
			r.tellDropped()
			return nil
		}
	}
}

func (r *Recorder) tellDropped() {
	r.mu.Lock()
	n := r.dropped
	r.dropped = 0
	r.mu.Unlock()
	if n > 0 {
		r.logger.Warn("refused requests were too many to audit all", slog.Int("dropped", n))
	}
}
