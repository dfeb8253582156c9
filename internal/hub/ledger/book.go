package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// claimAttempt is the unique key of a resource's active attempt.
const claimAttempt = "hub/attempt"

type operation struct {
	*store.Resource[struct{}, hub.Intent]
	created, changed bool
}

type stream struct {
	*hub.Stream
	resource         string
	created, changed bool
	// gone: nobody declared it, and the node does not know it.
	gone bool
	// held is the attempt that has the resource's claim, as stored.
	held string
}

// book holds the records of one node that a transaction works on: each is read once, and written once at the end.
type book struct {
	l        *Ledger
	r        store.Reader
	now      time.Time
	node     string
	presence hub.Presence
	streams  map[string]*stream
	intents  map[string]*operation
}

func (l *Ledger) open(r store.Reader, node *hub.Node) *book {
	return &book{
		l: l, r: r, now: l.now(), node: node.Name, presence: node.Status.Presence,
		streams: map[string]*stream{}, intents: map[string]*operation{},
	}
}

// stream answers the stream of a resource, nil when there is none.
func (b *book) stream(resource string) (*stream, error) {
	if s, known := b.streams[resource]; known {
		return s, nil
	}
	got, err := hub.Streams.Get(b.r, hub.StreamName(b.node, resource))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &stream{Stream: got, resource: resource, held: got.Status.AttemptID}
	b.streams[resource] = s
	return s, nil
}

// allStreams answers every stream of the node, in order of their names.
func (b *book) allStreams() ([]*stream, error) {
	got, _, err := hub.Streams.List(b.r, store.Query{Prefix: b.node + "/"})
	if err != nil {
		return nil, err
	}
	all := make([]*stream, len(got))
	for i, g := range got {
		resource := strings.TrimPrefix(g.Name, b.node+"/")
		if b.streams[resource] == nil {
			b.streams[resource] = &stream{Stream: g, resource: resource, held: g.Status.AttemptID}
		}
		all[i] = b.streams[resource]
	}
	return all, nil
}

// newStream adds a stream that nothing is known of.
func (b *book) newStream(resource string) *stream {
	s := &stream{Stream: &hub.Stream{}, resource: resource, created: true, changed: true}
	s.Name = hub.StreamName(b.node, resource)
	s.Status.Convergence = hub.Converge(nil, nil, b.presence, b.now, hub.Convergence{})
	b.streams[resource] = s
	return s
}

// intent answers the intent of that id, nil when there is none.
func (b *book) intent(id string) (*operation, error) {
	if o, known := b.intents[id]; known {
		return o, nil
	}
	got, err := hub.Operations.Get(b.r, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o := &operation{Resource: got}
	b.intents[id] = o
	return o, nil
}

// openIntents answers the intents of the node for which something is to be done or waited for.
func (b *book) openIntents() ([]*operation, error) {
	got, _, err := hub.Operations.List(b.r, openOf(b.node))
	if err != nil {
		return nil, err
	}
	open := make([]*operation, len(got))
	for i, g := range got {
		if b.intents[g.Name] == nil {
			b.intents[g.Name] = &operation{Resource: g}
		}
		open[i] = b.intents[g.Name]
	}
	return open, nil
}

// openOf selects them.
func openOf(node string) store.Query {
	selector := labels.SelectorFromValidatedSet(labels.Set{hub.LabelOpen: node})
	return store.Query{Kind: hub.Operations.Kind.Name, Selector: selector}
}

// current answers the intent of the stream's desired generation, nil for a stream that nobody declared.
func (b *book) current(s *stream) (*operation, error) {
	if s.Spec.Desired == nil {
		return nil, nil
	}
	o, err := b.intent(s.Spec.IntentID)
	if err == nil && o == nil {
		err = fmt.Errorf("stream %q has lost its operation %s", s.Name, s.Spec.IntentID)
	}
	return o, err
}

// settle derives what a stream's status says of its intent, after either changed, or the node's presence.
func (b *book) settle(s *stream, o *operation) {
	var intent *hub.Intent
	attempt, state := "", hub.IntentState("")
	if o != nil {
		intent, state = &o.Status, o.Status.State
		if intent.Attempt.Active() {
			attempt = intent.Attempt.ID
		}
	}
	b.settleAs(s, intent, attempt, state)
	if o != nil && o.Status.Convergence != s.Status.Convergence && o.changed {
		o.Status.Convergence = s.Status.Convergence
	}
}

func (b *book) settleAs(s *stream, intent *hub.Intent, attempt string, state hub.IntentState) {
	c := hub.Converge(s.Status.Observed, intent, b.presence, b.now, s.Status.Convergence)
	if c == s.Status.Convergence && attempt == s.Status.AttemptID && state == s.Status.IntentState {
		return
	}
	s.Status.Convergence, s.Status.IntentState, s.changed = c, state, true
	s.Status.AttemptID = attempt
}

// settleAll settles every stream of the node, after its presence changed.
func (b *book) settleAll() error {
	all, err := b.allStreams()
	if err != nil {
		return err
	}
	if _, err := b.openIntents(); err != nil {
		return err
	}
	for _, s := range all {
		if s.Status.IntentState == hub.Converged && b.intents[s.Spec.IntentID] == nil {
			// Most are: what matters of such an intent is known without reading it.
			b.settleAs(s, &hub.Intent{State: hub.Converged, Desired: *s.Spec.Desired, ActionDone: true}, "", hub.Converged)
			continue
		}
		o, err := b.current(s)
		if err != nil {
			return err
		}
		b.settle(s, o)
	}
	return nil
}

// save writes what changed, and answers whether anything did.
func (b *book) save(tx store.Tx) (bool, error) {
	changed := false
	for _, o := range ordered(b.intents) {
		if !o.changed {
			continue
		}
		changed = true
		if err := b.saveIntent(tx, o); err != nil {
			return false, err
		}
	}
	for _, s := range ordered(b.streams) {
		if !s.changed {
			continue
		}
		changed = true
		if err := b.saveStream(tx, s); err != nil {
			return false, err
		}
	}
	return changed, nil
}

func (b *book) saveIntent(tx store.Tx, o *operation) error {
	o.changed = false
	o.Labels = o.Status.Labels()
	if o.created {
		o.created = false
		return hub.Operations.Create(tx, o.Resource)
	}
	return hub.Operations.Update(tx, o.Resource)
}

// saveStream writes a stream, and moves the claim of its resource to the attempt that is active now.
func (b *book) saveStream(tx store.Tx, s *stream) error {
	s.changed = false
	if s.gone {
		if s.created {
			return nil
		}
		_, err := tx.Delete(hub.Streams.Kind.Name, s.Name, s.Revision)
		return err
	}
	if now := s.Status.AttemptID; now != s.held {
		if err := moveClaim(tx, s.Name, s.held, now); err != nil {
			return err
		}
		s.held = now
	}
	s.Labels = hub.StreamLabels(&s.Spec, &s.Status)
	if s.created {
		s.created = false
		return hub.Streams.Create(tx, s.Stream)
	}
	return hub.Streams.Update(tx, s.Stream)
}

func moveClaim(tx store.Tx, resource, from, to string) error {
	if from != "" {
		if err := tx.Release(claimAttempt, resource); err != nil {
			return err
		}
	}
	if to == "" {
		return nil
	}
	return tx.Claim(claimAttempt, resource, to)
}

// ordered answers the values of a map in the order of their keys: what a transaction writes is the same each time.
func ordered[V any](m map[string]V) []V {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	values := make([]V, len(keys))
	for i, k := range keys {
		values[i] = m[k]
	}
	return values
}

// getNode answers the node or a [hub.NotFoundError].
func getNode(r store.Reader, id string) (*hub.Node, error) {
	n, err := hub.Nodes.Get(r, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, &hub.NotFoundError{Kind: "node", ID: id}
	}
	return n, err
}
