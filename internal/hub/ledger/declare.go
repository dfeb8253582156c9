package ledger

import (
	"errors"
	"slices"
	"strconv"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// claimAction is the unique key of a restart that an operator named.
const claimAction = "hub/action"

// Mutation is an operator's write to a stream, or to the node-wide configuration (Resource [hub.NodeConfig]).
type Mutation struct {
	Node, Resource string
	Verb           hub.Verb
	// State is the target; "" keeps the desired one (running when there is none, or when it is absent).
	State hub.State
	// ConfigVersion is the target; "" keeps the one that the stream has.
	ConfigVersion string
	// ActionID of a restart; "" makes one. It must not be one that the stream had before.
	ActionID string
	// Match is the precondition.
	Match                    hub.Match
	Principal, CorrelationID string
}

// Declare makes a write durable as a new generation with a new intent. It supersedes the intent before it, whose
// attempt, if it was sent, runs out by itself: the node takes over higher generations only, so the new one need not wait. A
// rollback (Verb ConfigRollback) without ConfigVersion goes to the stream's rollback target.
//
// Errors: [hub.NotFoundError] (node; stream for Restart and ConfigRollback of one never declared),
// [hub.GenerationConflictError], [hub.ValidationError], [hub.ErrNotRunning], [hub.ErrNodeDeleting],
// [hub.ErrNoRollback].
func (l *Ledger) Declare(tx store.Tx, m Mutation) (*hub.Intent, error) {
	node, err := getNode(tx, m.Node)
	if err != nil {
		return nil, err
	}
	if node.Deleting() {
		return nil, hub.ErrNodeDeleting
	}
	b := l.open(tx, node)
	s, err := b.stream(m.Resource)
	if err != nil {
		return nil, err
	}
	var spec hub.StreamSpec
	if s != nil {
		spec = s.Spec
	}
	if err := m.Match.Check(m.Node, m.Resource, spec.Generation()); err != nil {
		return nil, err
	}
	target, err := l.target(tx, s, &m)
	if err != nil {
		return nil, err
	}
	i, err := b.declare(tx, s, target, &m)
	if err != nil {
		return nil, err
	}
	_, err = b.save(tx)
	return i, err
}

// target is what the mutation asks for, but for its generation.
func (l *Ledger) target(tx store.Tx, s *stream, m *Mutation) (hub.Desired, error) {
	var was hub.Desired
	declared := s != nil && s.Spec.Desired != nil
	if declared {
		was = *s.Spec.Desired
	}
	if !declared && (m.Verb == hub.Restart || m.Verb == hub.ConfigRollback) {
		return was, &hub.NotFoundError{Kind: "stream", ID: m.Node + "/" + m.Resource}
	}
	d := hub.Desired{State: m.State, ConfigVersion: m.ConfigVersion}
	if m.Verb == hub.ConfigRollback && d.ConfigVersion == "" {
		if d.ConfigVersion = s.Spec.RollbackTarget(); d.ConfigVersion == "" {
			return was, hub.ErrNoRollback
		}
	}
	if d.State == "" {
		if d.State = was.State; d.State == "" || d.State == hub.Absent {
			d.State = hub.Running
		}
	}
	if d.ConfigVersion == "" {
		d.ConfigVersion = was.ConfigVersion
	}
	if m.Verb == hub.Restart {
		if was.State != hub.Running {
			return was, hub.ErrNotRunning
		}
		d.State, d.ConfigVersion, d.ConfigDigest = was.State, was.ConfigVersion, was.ConfigDigest
		return d, l.nameAction(tx, s, m, &d)
	}
	return d, check(tx, m.Resource, &d, &was)
}

// nameAction gives a restart its id, which is the stream's only one for ever: a node would take a second of the same
// name for done.
func (l *Ledger) nameAction(tx store.Tx, s *stream, m *Mutation, d *hub.Desired) error {
	if d.ActionID = m.ActionID; d.ActionID == "" {
		d.ActionID = "restart-" + l.cfg.NewID()
		return nil
	}
	if err := hub.ValidID(d.ActionID); err != nil {
		return hub.Invalid("action_id", "%s", err)
	}
	used := hub.Invalid("action_id", "was used for this stream before: leave it out, or choose another")
	if o := s.Status.Observed; o != nil && (slices.Contains(o.CompletedActions, d.ActionID) || slices.Contains(o.InterruptedActions, d.ActionID)) {
		return used
	}
	owner := s.UID + "/" + strconv.FormatInt(s.Spec.Generation()+1, 10)
	err := tx.Claim(claimAction, actionKey(m.Node, m.Resource, d.ActionID), owner)
	if errors.Is(err, store.ErrClaimed) {
		return used
	}
	return err
}

// actionKey names the node by its id, not by its UID: a machine that is registered anew may still know the actions that it ran.
func actionKey(node, resource, action string) string {
	return hub.StreamName(node, resource) + "/" + action
}

// check validates a target against the config versions that exist.
func check(r store.Reader, resource string, d, was *hub.Desired) error {
	if err := hub.ValidResource(resource); err != nil {
		return hub.Invalid("stream_id", "%s", err)
	}
	if !d.State.Desirable() {
		return hub.Invalid("state", "must be running, stopped or absent")
	}
	if d.ConfigVersion == "" {
		if d.State == hub.Running {
			return hub.Invalid("config_version", "is needed: the stream has none yet")
		}
		return nil
	}
	if d.ConfigVersion == was.ConfigVersion {
		d.ConfigDigest = was.ConfigDigest
		return nil
	}
	o, err := hub.Configs.Get(r, d.ConfigVersion)
	if errors.Is(err, store.ErrNotFound) {
		return hub.Invalid("config_version", "%q does not exist", d.ConfigVersion)
	}
	if err != nil {
		return err
	}
	d.ConfigDigest = o.Spec.Digest
	forNode, wanted := o.Labels[hub.LabelEngine] == string(hub.EngineNode), resource == hub.NodeConfig
	switch {
	case forNode && !wanted:
		return hub.Invalid("config_version", "%q is a node-wide configuration, and no stream's", d.ConfigVersion)
	case wanted && !forNode:
		return hub.Invalid("config_version", "%q is a stream's configuration, and not a node-wide one", d.ConfigVersion)
	}
	return nil
}

// declare records the next generation with its intent. s may be nil.
func (b *book) declare(tx store.Tx, s *stream, d hub.Desired, m *Mutation) (*hub.Intent, error) {
	if s == nil {
		s = b.newStream(m.Resource)
	}
	if err := b.supersede(s); err != nil {
		return nil, err
	}
	d.Generation = s.Spec.Generation()
	if o := s.Status.Observed; o != nil {
		d.Generation = max(d.Generation, o.Generation)
	}
	d.Generation++
	sequence, err := nextOf(tx, sequenceIntent)
	if err != nil {
		return nil, err
	}
	o := &operation{Resource: &store.Resource[struct{}, hub.Intent]{}, created: true, changed: true}
	o.Status = hub.Intent{
		ID: intentID(d.Generation, sequence), Sequence: sequence, Node: b.node, Resource: s.resource, Verb: m.Verb,
		Generation: d.Generation, State: hub.Accepted, Desired: d, Retry: hub.RetryState{Budget: hub.RetryBudget},
		Observed:      s.Status.Observed,
		CorrelationID: m.CorrelationID, Principal: m.Principal, CreatedAt: b.now, UpdatedAt: b.now,
	}
	o.Name = o.Status.ID
	b.intents[o.Name] = o
	s.Spec.Desired, s.Spec.IntentID, s.changed = &d, o.Name, true
	b.settle(s, o)
	return &o.Status, nil
}

// supersede ends the intent of the stream's generation so far, unless it has ended.
func (b *book) supersede(s *stream) error {
	if s.Spec.Desired == nil || s.Status.IntentState.Ended() {
		return nil
	}
	o, err := b.current(s)
	if err != nil {
		return err
	}
	o.Status.Convergence = s.Status.Convergence
	o.changed = o.Status.Supersede(b.now) || o.changed
	return nil
}

// Cancel ends an intent. What was not dispatched is not sent any more; an attempt that was runs out and shows its
// outcome. Errors: [hub.NotFoundError], [hub.TerminalError].
func (l *Ledger) Cancel(tx store.Tx, id string) (*hub.Intent, error) {
	o, err := hub.Operations.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, &hub.NotFoundError{Kind: "operation", ID: id}
	}
	if err != nil {
		return nil, err
	}
	if err := o.Status.Cancel(l.now()); err != nil {
		return nil, err
	}
	node, err := getNode(tx, o.Status.Node)
	if err != nil {
		return nil, err
	}
	b := l.open(tx, node)
	canceled := &operation{Resource: o, changed: true}
	b.intents[id] = canceled
	if err := b.settleCurrent(canceled); err != nil {
		return nil, err
	}
	_, err = b.save(tx)
	return &o.Status, err
}

// settleCurrent settles the stream of an intent that changed, if the intent is that of its desired generation.
func (b *book) settleCurrent(o *operation) error {
	s, err := b.stream(o.Status.Resource)
	if err != nil || s == nil || s.Spec.IntentID != o.Name {
		return err
	}
	b.settle(s, o)
	return nil
}
