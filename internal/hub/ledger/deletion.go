package ledger

import (
	"errors"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Deletion asks for a node's deletion.
type Deletion struct {
	Node                     string
	Force                    bool
	Principal, CorrelationID string
}

// DeleteNode declares all streams of a node absent, and the node deleting until they are; gone tells that it went at
// once: it never enrolled, has nothing to stop, or Force. Deleting again is no error. Errors: [hub.NotFoundError].
func (l *Ledger) DeleteNode(tx store.Tx, d Deletion) (gone bool, err error) {
	node, err := getNode(tx, d.Node)
	if err != nil {
		return false, err
	}
	if d.Force || node.Status.Credential == nil {
		return true, l.removeNode(tx, node)
	}
	if _, err := tx.Delete(hub.Nodes.Kind.Name, node.Name, node.Revision); err != nil {
		return false, err
	}
	return l.finish(tx, d)
}

// FinishNode removes a deleting node whose streams are absent, with its streams and credentials, and answers whether it is gone.
// Streams that turned up since, or whose way to absent ended otherwise, are declared absent again.
func (l *Ledger) FinishNode(tx store.Tx, id string) (gone bool, err error) {
	node, err := hub.Nodes.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	if err != nil || !node.Deleting() {
		return false, err
	}
	return l.finish(tx, Deletion{Node: id, Principal: "freehold"})
}

func (l *Ledger) finish(tx store.Tx, d Deletion) (gone bool, err error) {
	node, err := getNode(tx, d.Node)
	if err != nil {
		return false, err
	}
	b := l.open(tx, node)
	all, err := b.allStreams()
	if err != nil {
		return false, err
	}
	left := false
	for _, s := range all {
		if s.absent() {
			continue
		}
		left = true
		if s.leaving() {
			continue
		}
		m := Mutation{Node: d.Node, Resource: s.resource, Verb: hub.SetState, Principal: d.Principal, CorrelationID: d.CorrelationID}
		target := hub.Desired{State: hub.Absent}
		if was := s.Spec.Desired; was != nil {
			target.ConfigVersion, target.ConfigDigest = was.ConfigVersion, was.ConfigDigest
		}
		if _, err := b.declare(tx, s, target, &m); err != nil {
			return false, err
		}
	}
	if !left {
		return true, l.removeNode(tx, node)
	}
	_, err = b.save(tx)
	return false, err
}

// absent tells whether nothing of the stream is left on its node, as far as the node has told. The node-wide
// configuration is nothing that could be left.
func (s *stream) absent() bool {
	if s.resource == hub.NodeConfig {
		return true
	}
	o := s.Status.Observed
	if s.Spec.Desired == nil {
		return o == nil || o.State == hub.Absent
	}
	return s.Spec.Desired.State == hub.Absent && s.Status.IntentState == hub.Converged
}

// leaving tells whether the stream is on its way to absent.
func (s *stream) leaving() bool {
	if s.Spec.Desired == nil || s.Spec.Desired.State != hub.Absent {
		return false
	}
	overtaken := s.Status.IntentState == hub.Blocked && s.Status.Convergence.Reason == hub.CodeNodeAhead
	return s.Status.IntentState != hub.Cancelled && !overtaken
}

// removeNode removes the node and all that is its own. Its operations stay until retention takes them.
func (l *Ledger) removeNode(tx store.Tx, node *hub.Node) error {
	b := l.open(tx, node)
	open, err := b.openIntents()
	if err != nil {
		return err
	}
	for _, o := range open {
		o.changed = o.Status.Abandon(b.now)
	}
	all, err := b.allStreams()
	if err != nil {
		return err
	}
	for _, s := range all {
		if o, err := b.current(s); err != nil {
			return err
		} else if o != nil {
			o.changed = o.Status.Abandon(b.now) || o.changed
		}
		s.gone, s.changed = true, true
		if err := moveClaim(tx, s.Name, s.held, ""); err != nil {
			return err
		}
	}
	if _, err := b.save(tx); err != nil {
		return err
	}
	if err := tx.DeleteBlob(cursorBlob(node.UID)); err != nil {
		return err
	}
	return dropNode(tx, node)
}

// dropNode deletes the node itself, whatever holds it.
func dropNode(tx store.Tx, node *hub.Node) error {
	deleting, err := tx.Delete(hub.Nodes.Kind.Name, node.Name, 0)
	if err != nil || len(deleting.Finalizers) == 0 {
		return err
	}
	node, err = hub.Nodes.Decode(deleting)
	if err != nil {
		return err
	}
	node.Finalizers = nil
	return hub.Nodes.Update(tx, node)
}
