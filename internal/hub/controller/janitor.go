package controller

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub/idempotency"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	janitorKey   = "retention"
	janitorEvery = 10 * time.Minute
	// trimmed is how many operations one transaction removes: writers wait for no more than that.
	trimmed = 200
)

// Janitor lets go of what is kept long enough: ended operations, answers kept for retries, audit entries.
type Janitor struct{ Config }

// Controller declares it; it is woken once and then comes back by itself.
func (c *Janitor) Controller() reconcile.Controller {
	return reconcile.Controller{Name: JanitorName, Reconciler: c, BackoffMax: janitorEvery}
}

// Reconcile trims everything once. What fails does not hold up the rest.
func (c *Janitor) Reconcile(ctx context.Context, _ string) (reconcile.Result, error) {
	now := c.Now()
	err := errors.Join(
		c.operations(ctx),
		idempotency.Trim(ctx, c.Store, now),
		audit.Trim(ctx, c.Store, now),
	)
	return reconcile.Result{After: janitorEvery + rand.N(janitorEvery/10)}, err
}

func (c *Janitor) operations(ctx context.Context) error {
	removed := 0
	for {
		var names []string
		err := c.Store.View(ctx, func(r store.Reader) (err error) {
			names, err = c.Ledger.Expired(r, trimmed)
			return err
		})
		if err != nil || len(names) == 0 {
			return c.told(ctx, removed, err)
		}
		n := 0
		err = c.Store.Update(ctx, func(tx store.Tx) (err error) {
			n, err = c.Ledger.Trim(tx, names)
			return err
		})
		removed += n
		if err != nil || n == 0 {
			return c.told(ctx, removed, err)
		}
	}
}

func (c *Janitor) told(ctx context.Context, removed int, err error) error {
	if removed > 0 {
		c.Logger.DebugContext(ctx, "removed operations that were kept long enough", slog.Int("operations", removed))
	}
	return err
}
