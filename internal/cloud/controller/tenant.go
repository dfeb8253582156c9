package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

// TenantName is the tenant controller's name.
const TenantName = "tenant"

// Applier makes a configuration true; see package apply.
type Applier interface {
	Begin(ctx context.Context, spec apply.Spec) error
	Settle(ctx context.Context, uid, tenant string) error
	Interrupt(ctx context.Context, uid string) error
	Erase(ctx context.Context, uid string) error
	Watched(uid string) bool
	Crowded() bool
	TenantSecrets(ctx context.Context, tenant string) (*talos.Secrets, error)
}

// TenantConfig configures the tenant controller. Store, Applier, Modules are required; zero durations and counts get
// their defaults.
type TenantConfig struct {
	Store   store.Store
	Applier Applier
	Modules *provider.Registry
	Logger  *slog.Logger

	// Debounce of changes and the longest they may postpone an apply. Defaults 2 s and 10 s.
	Debounce, MaxDebounce time.Duration
	// Resync of every tenant. Default 5 min.
	Resync time.Duration
	// MachineTimeout is how long one operation on a machine may take inside an apply. Default 10 min: a machine
	// fetches its installer and boots twice.
	MachineTimeout time.Duration
	// TeardownTimeout is how long a machine may take to be reset. Default 3 min.
	TeardownTimeout time.Duration
	// Patience is how long a run waits for a machine that fell silent while other tenants wait for its place. Default 30 s.
	Patience time.Duration
	// Workers is how many tenants are looked at at once. Default 16. How many applies run is the applier's to limit.
	Workers int
	// Members asks and changes etcd; nil: over the Talos API.
	Members Members
	Now     func() time.Time
}

// Tenant makes tenants what they are declared to be: it binds machines to slots, has the configuration applied that
// follows from them, takes machines away one step at a time, and tears tenants down.
type Tenant struct{ cfg TenantConfig }

// NewTenant answers a tenant controller.
func NewTenant(cfg TenantConfig) *Tenant {
	def(&cfg.Debounce, 2*time.Second)
	def(&cfg.MaxDebounce, max(10*time.Second, cfg.Debounce))
	def(&cfg.Resync, 5*time.Minute)
	def(&cfg.MachineTimeout, 10*time.Minute)
	def(&cfg.TeardownTimeout, 3*time.Minute)
	def(&cfg.Patience, 30*time.Second)
	def(&cfg.Workers, 16)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Tenant{cfg: cfg}
	if c.cfg.Members == nil {
		c.cfg.Members = talosMembers{secrets: cfg.Applier}
	}
	return c
}

// Controller is the tenant controller, with tenants as its keys.
func (c *Tenant) Controller() reconcile.Controller {
	return reconcile.Controller{
		Name: TenantName,
		Sources: []reconcile.Source{
			{Query: store.Query{Kind: cloud.Tenants.Kind.Name}},
			{Query: store.Query{Kind: cloud.NodeGroups.Kind.Name}, Keys: func(e store.Event) []string {
				tenant, _ := cloud.SplitName(e.Object.Name)
				return []string{tenant}
			}},
			{Query: store.Query{Kind: cloud.Machines.Kind.Name}, Keys: func(e store.Event) []string {
				if tenant := e.Object.Labels[cloud.LabelTenant]; tenant != "" {
					return []string{tenant}
				}
				return nil
			}},
		},
		Reconciler: c, Workers: c.cfg.Workers,
		Debounce: c.cfg.Debounce, MaxDebounce: c.cfg.MaxDebounce, Resync: c.cfg.Resync,
		BackoffMin: time.Second, BackoffMax: time.Minute,
	}
}

// missingRetry is how often a tenant that lacks machines looks for some. Looking is one read of the store.
const missingRetry = 2 * time.Second

// Reconcile does a tenant's next step.
func (c *Tenant) Reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	w, err := c.load(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if w.record.Run != nil {
		return c.attend(ctx, w)
	}
	if w.tenant.Deleting() {
		return c.tearDown(ctx, w)
	}
	if err := c.release(ctx, w); err != nil {
		return reconcile.Result{}, err
	}
	var short []shortage
	if !c.arranged(w) {
		// What is missing is found, and what is too much is put on the list, in one transaction.
		if w, short, err = c.arrange(ctx, name); err != nil {
			return reconcile.Result{}, err
		}
	}
	waits, err := c.prepareRemovals(ctx, w)
	if err != nil {
		return reconcile.Result{}, err
	}
	if w, err = c.load(ctx, name); err != nil {
		return reconcile.Result{}, err
	}
	result, err := c.converge(ctx, w, waits)
	if len(short) > 0 && (result.After == 0 || result.After > missingRetry) {
		result.After = missingRetry
	}
	return result, err
}

// attend looks after a run that is going on.
func (c *Tenant) attend(ctx context.Context, w *world) (reconcile.Result, error) {
	run := w.record.Run
	if !c.cfg.Applier.Watched(w.tenant.UID) {
		switch err := c.cfg.Applier.Settle(ctx, w.tenant.UID, w.tenant.Name); {
		case errors.Is(err, apply.ErrRunning):
			return reconcile.Result{After: time.Second}, nil
		case err != nil:
			return reconcile.Result{}, errors.Join(err, c.report(ctx, w.tenant, func(s *cloud.TenantStatus) {
				c.condition(s, cloud.ConditionApplied, cloud.ConditionFalse, "NotSettled", err.Error())
			}))
		}
		return reconcile.Result{After: time.Millisecond}, nil
	}
	if w.tenant.Deleting() && !run.Destroy {
		// What it makes would only be taken away again.
		return reconcile.Result{After: 10 * time.Second}, c.cfg.Applier.Interrupt(ctx, w.tenant.UID)
	}
	var result reconcile.Result
	if lost := w.lostDuring(run); lost != nil {
		result.After = max(time.Second, c.cfg.Patience/3)
		if c.cfg.Now().Sub(*lost.Status.DisconnectedAt) >= c.cfg.Patience && c.cfg.Applier.Crowded() {
			// It waits for a machine while others wait for its place. What it did is saved, and it goes on without the
			// machine.
			return result, c.cfg.Applier.Interrupt(ctx, w.tenant.UID)
		}
	}
	return result, c.report(ctx, w.tenant, func(s *cloud.TenantStatus) {
		c.condition(s, cloud.ConditionApplied, cloud.ConditionFalse, "Applying", run.Trigger)
	})
}

// lostDuring answers the machine that has been silent for longest of those that fell silent during the run, nil if none
// did. Those that were silent before are no part of it.
func (w *world) lostDuring(run *apply.Run) *cloud.Machine {
	var lost *cloud.Machine
	for _, m := range w.machines {
		if away(m) && !m.Status.DisconnectedAt.Before(run.Started.Truncate(time.Second)) &&
			(lost == nil || m.Status.DisconnectedAt.Before(*lost.Status.DisconnectedAt)) {
			lost = m
		}
	}
	return lost
}

// converge has the configuration applied that follows from what is declared and bound, unless it is applied already.
func (c *Tenant) converge(ctx context.Context, w *world, waits []string) (reconcile.Result, error) {
	p, err := c.render(w)
	if err != nil {
		// What was accepted cannot be rendered: the operator has to change it.
		return reconcile.Result{}, errors.Join(reconcile.Terminal(err), c.report(ctx, w.tenant, func(s *cloud.TenantStatus) {
			c.condition(s, cloud.ConditionApplied, cloud.ConditionFalse, "NotRenderable", err.Error())
		}))
	}
	verdict := w.verdict(p, waits, c.cfg.Now())
	var result reconcile.Result
	if verdict.apply {
		result, err = c.begin(ctx, w, p, &verdict)
	} else {
		result.After = verdict.after
	}
	return result, errors.Join(err, c.report(ctx, w.tenant, func(s *cloud.TenantStatus) { c.reportVerdict(s, verdict) }))
}

// begin starts an apply, and notes in the verdict when that was not to be.
func (c *Tenant) begin(ctx context.Context, w *world, p *plan, v *verdict) (reconcile.Result, error) {
	err := c.cfg.Applier.Begin(ctx, apply.Spec{
		UID: w.tenant.UID, Tenant: w.tenant.Name, Trigger: v.message, Digest: p.goal(),
		Stages: p.stages, Guard: w.guard(p), Slots: p.slots,
	})
	switch {
	case errors.Is(err, apply.ErrSaturated):
		v.reason = "Queued" // it is woken when there is room
		return reconcile.Result{After: c.cfg.Resync / 10}, nil
	case errors.Is(err, apply.ErrRunning):
		return reconcile.Result{After: time.Second}, nil
	case err != nil:
		err = fmt.Errorf("apply tenant %q: %w", w.tenant.Name, err)
		v.reason, v.message = "NotStarted", err.Error()
	}
	return reconcile.Result{}, err
}
