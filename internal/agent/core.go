package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Timing of the core. The zero value of a field takes the default.
type Timing struct {
	// RestartMin and RestartMax bound the delay before a stream that failed is started again (1 s, 1 min); it doubles
	// with each failure, and starts afresh when a run was ready for StableAfter (1 min).
	RestartMin, RestartMax, StableAfter time.Duration
	// ReadyWithin is how long a start may take before its attempt fails (30 s). The run goes on.
	ReadyWithin time.Duration
	// FetchMin and FetchMax bound the delay before a content that could not be fetched is asked for again (1 s, 30 s).
	FetchMin, FetchMax time.Duration
	// StoreRetry is the delay before a write that the store refused is tried again (2 s).
	StoreRetry time.Duration
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.RestartMin, time.Second)
	def(&t.RestartMax, time.Minute)
	def(&t.StableAfter, time.Minute)
	def(&t.ReadyWithin, 30*time.Second)
	def(&t.FetchMin, time.Second)
	def(&t.FetchMax, 30*time.Second)
	def(&t.StoreRetry, 2*time.Second)
	return t
}

// CoreConfig of a [Core]. Store is required, opened with [Kinds].
type CoreConfig struct {
	Store  store.Store
	Logger *slog.Logger
	// Now is the node's monotonic clock.
	Now func() time.Time
	// Rand answers numbers in [0, 1), for jitter.
	Rand func() float64
	// NewID answers unique ids of runs and boots.
	NewID  func() string
	Timing Timing
}

// Core is what the node knows and decides. It is safe for concurrent use, and calls nothing but the store.
type Core struct {
	config CoreConfig
	timing Timing
	boot   hub.Boot

	mu        sync.Mutex
	streams   map[string]*stream
	order     []string
	contents  map[contentKey]hub.Engine
	fetches   map[contentKey]*fetch
	leftovers []string
	cleaned   bool
	// storeRetryAt is when the store is asked again after it refused a write.
	storeRetryAt time.Time
	storeErr     error
	reporting    reporting
}

// stream is a record with what goes on around it.
type stream struct {
	id string
	// rec is the record as it should be stored, saved as it is.
	rec, saved Record
	dirty      bool
	run        *running
	check      *check
	failures   int
	retryAt    time.Time
	halted     bool
	// failing is what failures, retryAt and halted are about: another version is not held up by them.
	failing Target
	// last is what went wrong last, until a run is ready.
	last   *hub.Failure
	starts int64
	// told is what the hub has acknowledged.
	told *agentapi.StreamReport
	// attemptsTold are the stored attempts as they were put up for a report.
	attemptsTold map[string]hub.AttemptState
}

// check is a question to an engine about a content.
type check struct {
	token  string
	target Target
	passed bool
}

// OpenCore begins a boot on what the store has: the boot counter is raised, and restarts that were begun and not
// proven to be finished are interrupted.
func OpenCore(ctx context.Context, config CoreConfig) (*Core, error) {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Rand == nil {
		config.Rand = mathrand.Float64
	}
	if config.NewID == nil {
		config.NewID = newID
	}
	c := &Core{
		config: config, timing: config.Timing.withDefaults(),
		boot: hub.Boot{ID: config.NewID()},
	}
	if err := config.Store.Update(ctx, c.begin); err != nil {
		return nil, fmt.Errorf("begin a boot: %w", err)
	}
	c.reporting = newReporting(config.Now())
	for _, id := range c.order {
		s := c.streams[id]
		c.leftovers = append(c.leftovers, s.rec.Runs...)
		c.putUpAttempts(s)
	}
	c.cleaned = len(c.leftovers) == 0
	return c, nil
}

func newID() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // does not fail
	return hex.EncodeToString(raw)
}

const bootBlob = "agent/boot"

// begin is the transaction that begins a boot.
func (c *Core) begin(tx store.Tx) error {
	seq, err := nextBoot(tx)
	if err != nil {
		return err
	}
	c.boot.Seq = seq
	if c.contents, err = loadContents(tx); err != nil {
		return err
	}
	c.fetches = map[contentKey]*fetch{}
	c.streams, c.order = map[string]*stream{}, nil
	all, _, err := records.List(tx, store.Query{})
	if err != nil {
		return err
	}
	for _, r := range all {
		if afterCrash(&r.Spec) {
			if err := records.Update(tx, r); err != nil {
				return err
			}
		}
		s := &stream{id: r.Name, rec: r.Spec, saved: r.Spec.clone(), attemptsTold: map[string]hub.AttemptState{}}
		for _, a := range s.saved.Attempts[:max(0, len(s.saved.Attempts)-1)] {
			s.attemptsTold[a.ID] = a.State // another one followed: the hub has its answer
		}
		c.add(s)
	}
	return nil
}

func nextBoot(tx store.Tx) (int64, error) {
	raw, err := tx.Blob(bootBlob)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, err
	}
	seq := int64(0)
	if err == nil {
		if seq, err = strconv.ParseInt(string(raw), 10, 64); err != nil {
			return 0, fmt.Errorf("the boot counter is damaged: %w", err)
		}
	}
	seq++
	return seq, tx.PutBlob(bootBlob, strconv.AppendInt(nil, seq, 10))
}

// afterCrash settles what the end of the agent left open.
func afterCrash(r *Record) (changed bool) {
	changed = r.interruptActions()
	if a := r.attempt(); a.open() && r.interrupted() {
		a.State, a.Failure = hub.AttemptFail, interruptedFailure(r.Target.ActionID)
		changed = true
	}
	return changed
}

// interrupted tells whether the target's restart was begun and is not proven to be finished.
func (r *Record) interrupted() bool {
	a := r.action(r.Target.ActionID)
	return a != nil && a.State == ActionInterrupted
}

func interruptedFailure(action string) *hub.Failure {
	return failure(hub.Permanent, "action_interrupted", "the restart "+action+" was begun and is not proven to be finished; it is not run again")
}

func (c *Core) add(s *stream) {
	c.streams[s.id] = s
	at, _ := slices.BinarySearch(c.order, s.id)
	c.order = slices.Insert(c.order, at, s.id)
}

// Boot is the present run of the agent.
func (c *Core) Boot() hub.Boot { return c.boot }

// Leftovers are tokens of runs of earlier boots that may still have processes.
func (c *Core) Leftovers() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.leftovers)
}

// Cleaned tells that the leftovers are gone. Nothing is started before.
func (c *Core) Cleaned(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.rec.Runs = slices.DeleteFunc(s.rec.Runs, func(t string) bool {
			old := slices.Contains(c.leftovers, t)
			s.dirty = s.dirty || old
			return old
		})
	}
	c.leftovers, c.cleaned = nil, true
	return c.save(ctx)
}

// save stores the records that changed. What could not be stored stays to be stored, and nothing is told of it.
func (c *Core) save(ctx context.Context) error {
	var changed []*stream
	for _, id := range c.order {
		if s := c.streams[id]; s.dirty {
			changed = append(changed, s)
		}
	}
	return c.saveThese(ctx, changed...)
}

func (c *Core) saveThese(ctx context.Context, changed ...*stream) error {
	if len(changed) == 0 {
		return nil
	}
	err := c.config.Store.Update(ctx, func(tx store.Tx) error {
		for _, s := range changed {
			if err := putRecord(tx, s.id, s.rec); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		c.storeRetryAt, c.storeErr = c.config.Now().Add(c.timing.StoreRetry), err
		return fmt.Errorf("store what the node knows: %w", err)
	}
	c.storeErr, c.storeRetryAt = nil, time.Time{}
	for _, s := range changed {
		s.saved, s.dirty = s.rec.clone(), false
		c.putUpAttempts(s)
	}
	return nil
}

func putRecord(tx store.Tx, id string, rec Record) error {
	r, err := records.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return records.Create(tx, &store.Resource[Record, struct{}]{Metadata: store.Metadata{Name: id}, Spec: rec})
	}
	if err != nil {
		return err
	}
	r.Spec = rec
	return records.Update(tx, r)
}

// StoreError is why the store refused the last write, or nil.
func (c *Core) StoreError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.storeErr
}
