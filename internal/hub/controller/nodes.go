package controller

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

// conflictQuiet is how long a node's identity conflict stays noted after its last sign.
const conflictQuiet = 10 * time.Minute

// nodesQuiet gathers the streams of a deleted node that become absent together.
const nodesQuiet = 200 * time.Millisecond

// Nodes tells which nodes are offline, clears conflicts that have passed, and finishes deletions. Its key is a node's id.
type Nodes struct{ Config }

// Controller declares what wakes it.
func (c *Nodes) Controller() reconcile.Controller {
	inSync := labels.SelectorFromValidatedSet(labels.Set{hub.LabelConvergence: string(hub.InSync)})
	return reconcile.Controller{
		Name: NodesName, Reconciler: c, Workers: 2, Debounce: nodesQuiet,
		Sources: []reconcile.Source{
			{Query: store.Query{Kind: hub.Nodes.Kind.Name}},
			{Query: store.Query{Kind: hub.Streams.Kind.Name, Selector: inSync}, Keys: nodeOfAbsent},
		},
	}
}

// nodeOfAbsent answers the node of a stream that was to be absent and is: it may be the last that held a deletion.
func nodeOfAbsent(e store.Event) []string {
	var spec hub.StreamSpec
	if json.Unmarshal(e.Object.Spec, &spec) != nil || spec.Desired == nil || spec.Desired.State != hub.Absent {
		return nil
	}
	node, _, _ := strings.Cut(e.Object.Name, "/")
	return []string{node}
}

// Reconcile looks at one node.
func (c *Nodes) Reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	n, err := c.load(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if n.Deleting() {
		gone, err := c.finish(ctx, n)
		if err != nil || gone {
			return reconcile.Result{}, err
		}
	}
	offlineIn, err := c.presence(ctx, n)
	if err != nil {
		return reconcile.Result{}, err
	}
	quietIn, err := c.conflict(ctx, n)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{After: sooner(offlineIn, quietIn)}, nil
}

func (c *Nodes) load(ctx context.Context, name string) (n *hub.Node, err error) {
	err = c.Store.View(ctx, func(r store.Reader) error {
		n, err = hub.Nodes.Get(r, name)
		return err
	})
	return n, err
}

// finish removes a node whose streams are gone.
func (c *Nodes) finish(ctx context.Context, n *hub.Node) (gone bool, err error) {
	err = c.Store.Update(ctx, func(tx store.Tx) (err error) {
		gone, err = c.Ledger.FinishNode(tx, n.Name)
		return err
	})
	if err == nil && gone {
		c.Presence.Forget(n.Name, n.UID)
		c.Logger.InfoContext(ctx, "deleted a node", slog.String("node", n.Name))
	}
	return gone, err
}

// presence stores that a node is offline when it was silent for too long, and answers how long it still may be.
func (c *Nodes) presence(ctx context.Context, n *hub.Node) (time.Duration, error) {
	if n.Status.Presence != hub.PresenceOnline {
		return 0, nil
	}
	if in := c.Presence.OfflineIn(n.Name); in > 0 {
		return in, nil
	}
	var in time.Duration
	changed := false
	err := c.Store.Update(ctx, func(tx store.Tx) (err error) {
		changed = false
		if in = c.Presence.OfflineIn(n.Name); in > 0 {
			return nil // it reported meanwhile
		}
		changed, err = c.Ledger.SetPresence(tx, n.Name, hub.PresenceOffline)
		return err
	})
	if err == nil && changed {
		c.Logger.WarnContext(ctx, "a node does not report any more", slog.String("node", n.Name), slog.Duration("after", hub.OfflineAfter))
	}
	return max(in, 0), err
}

// conflict clears an identity conflict that has given no sign for a while, and answers how long that still takes.
func (c *Nodes) conflict(ctx context.Context, n *hub.Node) (time.Duration, error) {
	for _, cond := range n.Status.Conditions {
		if cond.Type != hub.ConditionIdentityConflict {
			continue
		}
		if in := cond.LastSeen.Add(conflictQuiet).Sub(c.Now()); in > 0 {
			return in, nil
		}
		return 0, c.Store.Update(ctx, func(tx store.Tx) error {
			_, err := c.Ledger.ClearConflict(tx, n.Name, conflictQuiet)
			return err
		})
	}
	return 0, nil
}

// sooner answers the smaller of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
