package ledger

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Dispatch claims and sends what is due for the node, at most limit commands, and sends again what this boot has
// not acknowledged for a while. Nothing is sent to a boot before its first full report, nor to a node that is
// offline. fullRequired tells that the node should report fully, now.
//
// Errors: [hub.ErrNotEnrolled] (no such node), [hub.ErrSessionSuperseded] (boot is not the node's newest).
func (l *Ledger) Dispatch(tx store.Tx, node string, boot hub.Boot, limit int) (commands []agentapi.Command, fullRequired bool, err error) {
	b, fullRequired, err := l.ready(tx, node, boot)
	if err != nil || b == nil {
		return nil, fullRequired, err
	}
	due, fullRequired, err := b.due(boot)
	if err != nil || len(due) == 0 {
		return nil, fullRequired, err
	}
	slices.SortFunc(due, inOrder)
	for _, o := range due[:min(limit, len(due))] {
		if !o.Status.Attempt.Active() {
			if err := b.dispatch(o, boot); err != nil {
				return nil, false, err
			}
		}
		commands = append(commands, command(&o.Status, b.now))
	}
	_, err = b.save(tx)
	return commands, fullRequired, err
}

// HasWork tells, without a transaction, whether Dispatch would answer commands, and whether a full report is required.
func (l *Ledger) HasWork(r store.Reader, node string, boot hub.Boot) (due, fullRequired bool, err error) {
	b, fullRequired, err := l.ready(r, node, boot)
	if err != nil || b == nil {
		return false, fullRequired, err
	}
	open, err := r.List(openOf(node))
	if err != nil {
		return false, false, err
	}
	for _, o := range open.Objects {
		if o.Labels[hub.LabelState] == string(hub.Accepted) {
			return true, false, nil // Dispatch tells whether a full report is required
		}
	}
	operations, fullRequired, err := b.due(boot)
	return len(operations) > 0, fullRequired, err
}

// ready answers the book of a node that may be sent something; nil when it has to report fully first.
func (l *Ledger) ready(r store.Reader, id string, boot hub.Boot) (b *book, fullRequired bool, err error) {
	node, err := hub.Nodes.Get(r, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, false, hub.ErrNotEnrolled
	case err != nil:
		return nil, false, err
	case boot.Seq < node.Status.Boot.Seq || boot.Seq == node.Status.Boot.Seq && boot != node.Status.Boot:
		return nil, false, hub.ErrSessionSuperseded
	}
	cursor, err := l.Cursor(r, node.UID)
	if err != nil {
		return nil, false, err
	}
	if cursor.Boot != boot || node.Status.Presence != hub.PresenceOnline {
		return nil, true, nil
	}
	return l.open(r, node), false, nil
}

// due answers the intents that have something to be sent to the boot.
func (b *book) due(boot hub.Boot) (due []*operation, fullRequired bool, err error) {
	open, err := b.openIntents()
	if err != nil {
		return nil, false, err
	}
	for _, o := range open {
		i := &o.Status
		fullRequired = fullRequired || i.AwaitReport != nil
		if i.Dispatchable(b.now) || i.Redeliverable(b.now, boot.ID) {
			due = append(due, o)
		}
	}
	return due, fullRequired, nil
}

// inOrder: the node-wide configuration first, then as declared.
func inOrder(a, b *operation) int {
	if aFirst, bFirst := a.Status.Resource == hub.NodeConfig, b.Status.Resource == hub.NodeConfig; aFirst != bFirst {
		if aFirst {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.Status.Sequence, b.Status.Sequence)
}

func (b *book) dispatch(o *operation, boot hub.Boot) error {
	o.Status.Dispatch(b.now, attemptID(o.Name, b.l.cfg.NewID()), boot)
	o.changed = true
	return b.settleCurrent(o)
}

func command(i *hub.Intent, now time.Time) agentapi.Command {
	c := agentapi.Command{
		AttemptID: i.Attempt.ID, IntentID: i.ID, StreamID: i.Resource, Generation: i.Generation,
		State: i.Desired.State, ConfigVersion: i.Desired.ConfigVersion, Digest: i.Desired.ConfigDigest,
		ExpiresAt: i.Attempt.LeaseExpiresAt, ExpiresInMS: i.Attempt.LeaseExpiresAt.Sub(now).Milliseconds(),
	}
	if !i.ActionDone {
		c.ActionID = i.Desired.ActionID
	}
	return c
}
