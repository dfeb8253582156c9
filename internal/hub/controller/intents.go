package controller

import (
	"context"
	"time"

	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

// intentsQuiet is how long an intent's changes are left to follow each other: most intents are through by then, and none
// of their deadlines is that near.
const intentsQuiet = 500 * time.Millisecond

// Intents watches the deadlines of intents: leases that run out, retries that come due. Its key is an intent's id.
type Intents struct{ Config }

// Controller declares what wakes it.
func (c *Intents) Controller() reconcile.Controller {
	return reconcile.Controller{
		Name: IntentsName, Reconciler: c, Workers: 4, Debounce: intentsQuiet,
		Sources: []reconcile.Source{{Query: openOperations(), ForgetGone: true}},
	}
}

// Reconcile does what the clock asks of one intent, and comes back when it will ask again.
func (c *Intents) Reconcile(ctx context.Context, id string) (reconcile.Result, error) {
	var step ledger.Step
	err := c.Store.View(ctx, func(r store.Reader) (err error) {
		step, err = c.Ledger.Next(r, id)
		return err
	})
	if err == nil && step.Advance {
		err = c.Store.Update(ctx, func(tx store.Tx) (err error) {
			step, err = c.Ledger.Advance(tx, id)
			return err
		})
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if step.WakeNode || step.FullRequired {
		c.Presence.Wake(step.Node)
	}
	return reconcile.Result{After: step.After}, nil
}
