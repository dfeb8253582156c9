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

// StatusName is the status controller's name.
const StatusName = "status"

// StatusConfig configures a Status controller. Zero durations and counts get their defaults.
type StatusConfig struct {
	Store       store.Store
	Credentials *Credentials
	Logger      *slog.Logger

	// Interval between probes of an active tenant's Kubernetes API and etcd. Default 10 s, jittered by a fifth.
	Interval time.Duration
	// FastInterval between probes while the tenant is not ready. Default 1 s.
	FastInterval time.Duration
	// Timeout of one probe. Default 3 s.
	Timeout time.Duration
	// UnreachableAfter: see DefaultUnreachableAfter. The prober's must be the same.
	UnreachableAfter time.Duration
	// Workers is how many tenants are looked at at once. Default 16.
	Workers int
}

// Status derives the status of tenants and their node groups from machines and probes, and writes what changed.
type Status struct {
	cfg StatusConfig

	mu     sync.Mutex
	probes map[string]*tenantProbe
}

// tenantProbe is what a tenant's API and etcd said last.
type tenantProbe struct {
	uid  string
	last Probe
	due  time.Time
	// of is what was asked.
	of probed
}

// probed is what a probe depends on, apart from time.
type probed struct {
	configured bool
	healthy    int
	members    int
	endpoint   string
}

func probedOf(v *View) probed {
	machines := v.controlPlane()
	return probed{configured(v), v.counts(machines).Healthy, len(machines), cloud.EndpointOf(v.Tenant)}
}

// NewStatus answers a Status controller.
func NewStatus(cfg StatusConfig) *Status {
	def(&cfg.Interval, 10*time.Second)
	def(&cfg.FastInterval, time.Second)
	def(&cfg.Timeout, 3*time.Second)
	def(&cfg.UnreachableAfter, DefaultUnreachableAfter)
	def(&cfg.Workers, 16)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Status{cfg: cfg, probes: map[string]*tenantProbe{}}
}

// Controller is the status controller, with tenants as its keys.
func (c *Status) Controller() reconcile.Controller {
	ofGroup := func(e store.Event) []string {
		tenant, _ := cloud.SplitName(e.Object.Name)
		return []string{tenant}
	}
	ofMachine := func(e store.Event) []string {
		if tenant := e.Object.Labels[cloud.LabelTenant]; tenant != "" {
			return []string{tenant}
		}
		return nil
	}
	return reconcile.Controller{
		Name: StatusName,
		Sources: []reconcile.Source{
			{Query: store.Query{Kind: cloud.Tenants.Kind.Name}},
			{Query: store.Query{Kind: cloud.NodeGroups.Kind.Name}, Keys: ofGroup},
			{Query: store.Query{Kind: cloud.Machines.Kind.Name}, Keys: ofMachine},
		},
		Reconciler: c,
		Workers:    c.cfg.Workers,
		// The machines of a tenant tend to change together.
		Debounce: 20 * time.Millisecond, MaxDebounce: 100 * time.Millisecond,
		BackoffMax: 30 * time.Second,
	}
}

// Reconcile looks at one tenant.
func (c *Status) Reconcile(ctx context.Context, tenant string) (reconcile.Result, error) {
	var v *View
	err := c.cfg.Store.View(ctx, func(r store.Reader) (err error) {
		v, err = c.view(r, tenant)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		c.forget(tenant)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	p := c.probe(ctx, v)
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	v.Now, v.Probe = time.Now().UTC(), p.last
	if v.differs() {
		err = c.cfg.Store.Update(ctx, func(tx store.Tx) (err error) {
			now := v.Now
			if v, err = c.view(tx, tenant); err != nil {
				return err
			}
			v.Now, v.Probe = now, p.last
			if v.Tenant.UID != p.uid {
				return store.ErrNotFound
			}
			return v.write(tx)
		})
		if errors.Is(err, store.ErrNotFound) {
			c.forget(tenant)
			return reconcile.Result{}, nil
		}
		if err != nil {
			return reconcile.Result{}, err
		}
	}
	after := max(time.Until(p.due), time.Millisecond)
	if d := v.nextDeadline(); d > 0 {
		after = min(after, d)
	}
	return reconcile.Result{After: after}, nil
}

// view reads all of one tenant.
func (c *Status) view(r store.Reader, tenant string) (*View, error) {
	v := &View{Now: time.Now().UTC(), UnreachableAfter: c.cfg.UnreachableAfter}
	var err error
	if v.Tenant, err = cloud.Tenants.Get(r, tenant); err != nil {
		return nil, err
	}
	if v.Groups, _, err = cloud.NodeGroups.List(r, store.Query{Prefix: tenant + "/"}); err != nil {
		return nil, err
	}
	v.Machines, _, err = cloud.Machines.List(r, store.Query{Index: "tenant", Value: tenant})
	return v, err
}

// differs tells whether what is derived is not what is stored.
func (v *View) differs() bool {
	if !reflect.DeepEqual(v.Tenant.Status, v.TenantStatus()) {
		return true
	}
	for _, g := range v.Groups {
		if !reflect.DeepEqual(g.Status, v.NodeGroup(g)) {
			return true
		}
	}
	return false
}

// write stores what is derived where it is not what is stored.
func (v *View) write(tx store.Tx) error {
	if s := v.TenantStatus(); !reflect.DeepEqual(v.Tenant.Status, s) {
		v.Tenant.Status = s
		if err := cloud.Tenants.Update(tx, v.Tenant); err != nil {
			return err
		}
	}
	for _, g := range v.Groups {
		s := v.NodeGroup(g)
		if reflect.DeepEqual(g.Status, s) {
			continue
		}
		g.Status = s
		if err := cloud.NodeGroups.Update(tx, g); err != nil {
			return err
		}
	}
	return nil
}

func (c *Status) forget(tenant string) {
	c.mu.Lock()
	delete(c.probes, tenant)
	c.mu.Unlock()
	c.cfg.Credentials.forget(tenant)
}

// probe answers what the tenant's API and etcd say, asking them if it is time to.
func (c *Status) probe(ctx context.Context, v *View) *tenantProbe {
	c.mu.Lock()
	p := c.probes[v.Tenant.Name]
	if p == nil || p.uid != v.Tenant.UID {
		p = &tenantProbe{uid: v.Tenant.UID}
		c.probes[v.Tenant.Name] = p
	}
	c.mu.Unlock()
	of := probedOf(v)
	if time.Now().Before(p.due) && p.of == of {
		return p
	}
	p.last, p.of = c.ask(ctx, v), of
	wait := c.cfg.Interval
	v.Now, v.Probe = time.Now().UTC(), p.last
	if c.expectant(v) {
		wait = min(wait, c.cfg.FastInterval)
	}
	p.due = time.Now().Add(time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64())))
	return p
}

// expectant: the tenant may become ready at any moment.
func (c *Status) expectant(v *View) bool {
	return configured(v) && !v.Tenant.Deleting() && (v.Probe.Unknown || !v.TenantStatus().Ready)
}
