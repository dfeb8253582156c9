package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

// tearDown takes a tenant apart: machines first, then what is kept of it.
func (c *Tenant) tearDown(ctx context.Context, w *world) (reconcile.Result, error) {
	if slices.Contains(w.tenant.Finalizers, cloud.FinalizerMachines) {
		if done, result, err := c.destroy(ctx, w); err != nil || !done {
			return result, err
		}
		if err := c.releaseAll(ctx, w.tenant); err != nil {
			return reconcile.Result{}, err
		}
	}
	if slices.Contains(w.tenant.Finalizers, cloud.FinalizerSecrets) {
		switch err := c.cfg.Applier.Erase(ctx, w.tenant.UID); {
		case errors.Is(err, apply.ErrRunning):
			return reconcile.Result{After: removalRetry}, nil
		case err != nil:
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, c.dropFinalizer(ctx, w.tenant, cloud.FinalizerSecrets, nil)
	}
	return reconcile.Result{}, nil
}

// destroy resets the tenant's machines. done: there is nothing left to reset.
func (c *Tenant) destroy(ctx context.Context, w *world) (done bool, result reconcile.Result, err error) {
	rec := w.record
	if rec.State == nil || rec.State.Deleted || len(rec.Slots) == 0 && len(rec.Touched) == 0 {
		return true, result, nil
	}
	const digest = "destroy"
	if last := rec.Last; last != nil && last.Destroy && rec.Failures > 0 {
		if wait := rec.RetryAt.Sub(c.cfg.Now()); wait > 0 {
			return false, reconcile.Result{After: wait}, c.report(ctx, w.tenant, func(s *cloud.TenantStatus) {
				c.condition(s, cloud.ConditionApplied, cloud.ConditionFalse, "TeardownFailed", last.Message)
			})
		}
	}
	if err := c.markRemoving(ctx, w.tenant); err != nil {
		return false, result, err
	}
	waits, exclude := c.resetStrays(ctx, w)
	if len(waits) > 0 && len(exclude) == len(rec.Slots) {
		return false, reconcile.Result{After: removalRetry}, c.report(ctx, w.tenant, func(s *cloud.TenantStatus) {
			c.condition(s, cloud.ConditionApplied, cloud.ConditionFalse, "TeardownWaits", joined(waits))
		})
	}
	// What does not answer is left to a later run, and with it the secrets that resetting it takes.
	partial := len(waits) > 0
	err = c.cfg.Applier.Begin(ctx, apply.Spec{
		UID: w.tenant.UID, Tenant: w.tenant.Name, Trigger: "tenant deleted", Destroy: true, Partial: partial, Digest: digest,
		Stages: []tofu.Stage{{Name: "destroy", Config: newTFConfig(w.tenant).encode(), Destroy: !partial, Exclude: exclude}},
		Guard:  tofu.Guard{All: true},
	})
	switch {
	case errors.Is(err, apply.ErrSaturated):
		return false, reconcile.Result{After: c.cfg.Resync / 10}, nil
	case errors.Is(err, apply.ErrRunning):
		return false, reconcile.Result{After: time.Second}, nil
	}
	return false, result, err
}

// resetStrays resets the machines that are not in the state, as far as they answer. It answers what the teardown waits
// for, and the resources of machines that are in the state and do not answer.
func (c *Tenant) resetStrays(ctx context.Context, w *world) (waits, exclude []string) {
	for _, m := range w.machines {
		var err error
		switch {
		case !w.inState(m):
			err = c.resetStray(ctx, w, m)
		case away(m):
			err = errSilent
			exclude = append(exclude, machineAddress(slotOf(m)))
		}
		if err != nil {
			waits = append(waits, fmt.Sprintf("%s: %v", machineText(m), err))
		}
	}
	return waits, exclude
}

// markRemoving shows every machine of the tenant as being removed.
func (c *Tenant) markRemoving(ctx context.Context, t *cloud.Tenant) error {
	return c.cfg.Store.Update(ctx, func(tx store.Tx) error {
		w, err := readWorld(tx, t.Name)
		if err != nil {
			return err
		}
		for _, m := range w.machines {
			if m.Status.Stage == cloud.StageRemoving {
				continue
			}
			m.Status.Stage, m.Status.Ready, m.Status.LastError = cloud.StageRemoving, false, ""
			if err := cloud.Machines.Update(tx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// releaseAll gives back all machines of a tenant that holds nothing any more, and lets go of its node groups and of
// the tenant's own finalizer, in one transaction.
func (c *Tenant) releaseAll(ctx context.Context, t *cloud.Tenant) error {
	return c.dropFinalizer(ctx, t, cloud.FinalizerMachines, func(tx store.Tx) error {
		w, err := readWorld(tx, t.Name)
		if err != nil {
			return err
		}
		for _, m := range w.machines {
			if err := unbind(tx, m); err != nil {
				return err
			}
		}
		for _, g := range w.groups {
			if !g.Deleting() {
				if _, err := tx.Delete(cloud.NodeGroups.Kind.Name, g.Name, 0); err != nil {
					return err
				}
			}
			if err := dropGroupFinalizer(tx, g.Name); err != nil {
				return err
			}
		}
		w.record.Slots, w.record.Touched, w.record.Removing = nil, nil, nil
		return w.record.Write(tx)
	})
}

// dropFinalizer removes one of the tenant's finalizers, after before was done in the same transaction.
func (c *Tenant) dropFinalizer(ctx context.Context, t *cloud.Tenant, finalizer string, before func(store.Tx) error) error {
	return c.cfg.Store.Update(ctx, func(tx store.Tx) error {
		now, err := cloud.Tenants.Get(tx, t.Name)
		if errors.Is(err, store.ErrNotFound) || err == nil && now.UID != t.UID {
			return nil
		}
		if err != nil {
			return err
		}
		if before != nil {
			if err := before(tx); err != nil {
				return err
			}
			if now, err = cloud.Tenants.Get(tx, t.Name); err != nil {
				return err
			}
		}
		now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == finalizer })
		return cloud.Tenants.Update(tx, now)
	})
}
