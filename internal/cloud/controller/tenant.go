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
			return reconcile.Result{}, err
		}
		return reconcile.Result{After: time.Millisecond}, nil
	}
	if w.tenant.Deleting() && !run.Destroy {
		// What it makes would only be taken away again.
		return reconcile.Result{After: 10 * time.Second}, c.cfg.Applier.Interrupt(ctx, w.tenant.UID)
	}
	return reconcile.Result{}, c.report(ctx, w.tenant, func(s *cloud.TenantStatus) {
		c.condition(s, cloud.ConditionApplied, cloud.ConditionFalse, "Applying", run.Trigger)
	})
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
	if err := c.report(ctx, w.tenant, func(s *cloud.TenantStatus) { c.reportVerdict(s, verdict) }); err != nil {
		return reconcile.Result{}, err
	}
	if !verdict.apply {
		return reconcile.Result{After: verdict.after}, nil
	}
	err = c.cfg.Applier.Begin(ctx, apply.Spec{
		UID: w.tenant.UID, Tenant: w.tenant.Name, Trigger: verdict.message, Digest: p.digest,
		Stages: p.stages, Guard: w.guard(p), Slots: p.slots,
	})
	switch {
	case errors.Is(err, apply.ErrSaturated), errors.Is(err, apply.ErrRunning):
		return reconcile.Result{}, nil // woken when there is room, or when it ended
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("apply tenant %q: %w", w.tenant.Name, err)
	}
	return reconcile.Result{}, nil
}
