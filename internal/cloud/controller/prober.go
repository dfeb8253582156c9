package controller

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

// ProberName is the prober's name as a controller.
const ProberName = "prober"

// ProberConfig configures a Prober. Zero durations and counts get their defaults.
type ProberConfig struct {
	Store       store.Store
	Credentials *Credentials
	Logger      *slog.Logger
	// Wake runs the prober's controller for a machine at once: a watch of the machine saw a change.
	Wake func(machine string)

	// Interval between probes of a machine that is settled. Default 10 s. Each is jittered by a fifth.
	Interval time.Duration
	// FastInterval between probes of a machine that something is expected of. Default 1 s.
	FastInterval time.Duration
	// FastFor is how long after its last change a machine is probed at the fast interval. Default 5 min.
	FastFor time.Duration
	// FullInterval between complete observations while nothing seems to change. Default 2 min.
	FullInterval time.Duration
	// UnreachableAfter: see DefaultUnreachableAfter.
	UnreachableAfter time.Duration
	// Timeout of one probe. Default 5 s.
	Timeout time.Duration
	// Workers is how many machines are probed at once. Default 64.
	Workers int
}

func (c *ProberConfig) complete() {
	def(&c.Interval, 10*time.Second)
	def(&c.FastInterval, time.Second)
	def(&c.FastFor, 5*time.Minute)
	def(&c.FullInterval, 2*time.Minute)
	def(&c.UnreachableAfter, DefaultUnreachableAfter)
	def(&c.Timeout, 5*time.Second)
	def(&c.Workers, 64)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Wake == nil {
		c.Wake = func(string) {}
	}
}

func def[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// Prober asks each machine's Talos API how it does, and writes what changed into the machine's status.
//
// It keeps one connection to each machine that answers, and watches it there, so that a change shows at once; the
// polls find what a watch cannot tell.
type Prober struct {
	cfg ProberConfig

	ctx    context.Context
	cancel context.CancelFunc
	// watches counts the goroutines that watch machines.
	watches sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*session
}

// NewProber answers a Prober. Close it after the manager that ran its controller has stopped.
func NewProber(cfg ProberConfig) *Prober {
	cfg.complete()
	p := &Prober{cfg: cfg, sessions: map[string]*session{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Controller is the prober as a controller of machines.
func (p *Prober) Controller() reconcile.Controller {
	return reconcile.Controller{
		Name:       ProberName,
		Sources:    []reconcile.Source{{Query: store.Query{Kind: cloud.Machines.Kind.Name}}},
		Reconciler: p,
		Workers:    p.cfg.Workers,
		// A fault here is the store's, not the machine's.
		BackoffMax: 30 * time.Second,
	}
}

// Close ends all connections and watches, and waits for them.
func (p *Prober) Close() {
	p.cancel()
	p.mu.Lock()
	sessions := p.sessions
	p.sessions = map[string]*session{}
	p.mu.Unlock()
	for _, s := range sessions {
		s.disconnect()
	}
	p.watches.Wait()
}

// Reconcile probes one machine if it is due, and records what changed.
func (p *Prober) Reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	m, err := p.load(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		p.forget(name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	s := p.session(m)
	now := time.Now()
	if wait := s.due.Sub(now); wait > 0 && m.Revision == s.revision && !s.disturbed() {
		// Our own write woke us.
		return reconcile.Result{After: wait}, nil
	}

	probeCtx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	out := p.probe(probeCtx, m, s)
	cancel()
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	now = time.Now()
	m, changed, err := p.record(ctx, m, s, out, now)
	if errors.Is(err, store.ErrNotFound) {
		p.forget(name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if changed || s.changed.IsZero() {
		s.changed = now
	}
	wait := p.interval(m, s, now)
	s.revision, s.due = m.Revision, now.Add(wait)
	return reconcile.Result{After: wait}, nil
}

func (p *Prober) load(ctx context.Context, name string) (m *cloud.Machine, err error) {
	err = p.cfg.Store.View(ctx, func(r store.Reader) error {
		m, err = cloud.Machines.Get(r, name)
		return err
	})
	return m, err
}

// record writes the machine's status if it differs. It answers the machine as it then is.
func (p *Prober) record(ctx context.Context, m *cloud.Machine, s *session, out outcome, now time.Time) (*cloud.Machine, bool, error) {
	seen := identityOf(m)
	if same(m.Status, p.next(m, s, out, now)) {
		return m, false, nil
	}
	changed := false
	err := p.cfg.Store.Update(ctx, func(tx store.Tx) error {
		changed = false
		fresh, err := cloud.Machines.Get(tx, m.Name)
		if err != nil {
			return err
		}
		m = fresh
		if identityOf(m) != seen {
			// It is another machine, or another tenant's, than the one that was asked.
			return nil
		}
		status := p.next(m, s, out, now)
		if same(m.Status, status) {
			return nil
		}
		m.Status, changed = status, true
		return cloud.Machines.Update(tx, m)
	})
	return m, changed, err
}

func (p *Prober) next(m *cloud.Machine, s *session, out outcome, now time.Time) cloud.MachineStatus {
	return nextStatus(m, out, now, p.cfg.UnreachableAfter, s.unreadyFor(now))
}

func same(a, b cloud.MachineStatus) bool { return reflect.DeepEqual(a, b) }

// interval is how long to wait before the machine is probed again.
func (p *Prober) interval(m *cloud.Machine, s *session, now time.Time) time.Duration {
	wait := p.cfg.Interval
	if !settled(m) && now.Sub(s.changed) < p.cfg.FastFor {
		wait = min(p.cfg.FastInterval, wait)
	}
	wait = time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
	if d := m.Status.DisconnectedAt; d != nil && m.Status.Ready {
		// Be there when the machine's time is up.
		wait = max(time.Millisecond, min(wait, d.Add(p.cfg.UnreachableAfter).Sub(now)))
	}
	return wait
}

// settled: nothing is expected of the machine for now.
func settled(m *cloud.Machine) bool {
	if !m.Status.Connected {
		return false
	}
	if m.Labels[cloud.LabelTenant] == "" {
		return m.Status.Maintenance
	}
	return m.Status.Stage == cloud.StageReady
}
