package ledger

import (
	"errors"
	"time"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Step is what an intent needs next.
type Step struct {
	// Node of the intent, "" when there is no such intent.
	Node string
	// Advance: the clock has overtaken the intent; call Advance in a transaction.
	Advance bool
	// WakeNode: the node's poll has something to fetch.
	WakeNode bool
	// FullRequired: the node should report fully.
	FullRequired bool
	// After: look again after this time; 0: when the intent changes.
	After time.Duration
}

// Next tells what an intent needs, without a transaction.
func (l *Ledger) Next(r store.Reader, id string) (Step, error) {
	stored, err := r.Get(hub.Operations.Kind.Name, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Step{}, nil
	case err != nil:
		return Step{}, err
	case stored.Labels[hub.LabelOpen] == "":
		return Step{Node: stored.Labels[hub.LabelNode]}, nil // most are through by now: nothing is waited for
	}
	o, err := hub.Operations.Decode(stored)
	if err != nil {
		return Step{}, err
	}
	return step(&o.Status, l.now()), nil
}

func step(i *hub.Intent, now time.Time) Step {
	s := Step{Node: i.Node, FullRequired: i.AwaitReport != nil}
	switch a := i.Attempt; {
	case a.Active():
		left := a.LeaseExpiresAt.Sub(now)
		s.After = max(left, 0)
		if a.Expired(now) {
			s.Advance = true
		} else if i.Live() && a.State == hub.Dispatched {
			if again := a.DispatchedAt.Add(hub.RedeliverAfter).Sub(now); again > 0 {
				s.After = min(again, left)
			} else {
				s.WakeNode, s.After = true, min(hub.RedeliverAfter, left)
			}
		}
	case i.Dispatchable(now):
		s.WakeNode = true
	case i.State == hub.Retrying && i.Retry.NextAt != nil:
		s.After = i.Retry.NextAt.Sub(now)
	}
	return s
}

// Advance does what the clock asks of an intent (an attempt's lease ran out), and tells what comes next.
func (l *Ledger) Advance(tx store.Tx, id string) (Step, error) {
	got, err := hub.Operations.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return Step{}, nil
	}
	if err != nil {
		return Step{}, err
	}
	o := &operation{Resource: got}
	node, err := getNode(tx, o.Status.Node)
	if err != nil {
		return Step{}, err
	}
	b := l.open(tx, node)
	if o.changed = o.Status.Expire(b.now); o.changed {
		b.intents[id] = o
		if err := b.settleCurrent(o); err != nil {
			return Step{}, err
		}
		if _, err := b.save(tx); err != nil {
			return Step{}, err
		}
	}
	return step(&o.Status, b.now), nil
}
