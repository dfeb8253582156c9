package ledger

import (
	"errors"
	"slices"
	"time"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// SetPresence stores that a node went online or offline, and what follows for its streams. A node that never enrolled
// stays pending. It answers whether anything changed.
func (l *Ledger) SetPresence(tx store.Tx, id string, p hub.Presence) (bool, error) {
	node, err := hub.Nodes.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if node.Status.Presence == p || node.Status.Presence == hub.PresencePending {
		return false, nil
	}
	b := l.open(tx, node)
	if err := b.setPresence(tx, node, p); err != nil {
		return false, err
	}
	_, err = b.save(tx)
	return true, err
}

// setPresence writes the node, and settles its streams.
func (b *book) setPresence(tx store.Tx, node *hub.Node, p hub.Presence) error {
	node.Status.Presence, node.Status.Since = p, b.now
	b.presence = p
	if err := hub.Nodes.Update(tx, node); err != nil {
		return err
	}
	return b.settleAll()
}

// NoteConflict sets the node's condition IdentityConflict, or notes that it was seen again, and answers whether it came.
func (l *Ledger) NoteConflict(tx store.Tx, id, message string) (bool, error) {
	node, err := hub.Nodes.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now := l.now()
	at := conflictOf(node)
	if at < 0 {
		node.Status.Conditions = append(node.Status.Conditions, hub.Condition{Type: hub.ConditionIdentityConflict, Since: now})
		at = len(node.Status.Conditions) - 1
	}
	c := &node.Status.Conditions[at]
	came := c.Since.Equal(now) && c.LastSeen.IsZero()
	c.Message, c.LastSeen = message, now
	return came, hub.Nodes.Update(tx, node)
}

// ClearConflict removes the condition IdentityConflict when it was last noted at least quiet ago, and answers whether it went.
func (l *Ledger) ClearConflict(tx store.Tx, id string, quiet time.Duration) (bool, error) {
	node, err := hub.Nodes.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	at := conflictOf(node)
	if at < 0 || l.now().Sub(node.Status.Conditions[at].LastSeen) < quiet {
		return false, nil
	}
	node.Status.Conditions = slices.Delete(node.Status.Conditions, at, at+1)
	return true, hub.Nodes.Update(tx, node)
}

// conflictOf answers the place of the condition IdentityConflict, -1 when the node does not have it.
func conflictOf(node *hub.Node) int {
	return slices.IndexFunc(node.Status.Conditions, func(c hub.Condition) bool { return c.Type == hub.ConditionIdentityConflict })
}
