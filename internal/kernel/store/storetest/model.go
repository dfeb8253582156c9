package storetest

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/kernel/store"
)

// key names an object.
type key struct{ kind, name string }

// state is all objects at one revision.
type state map[key]*store.Object

// model is what a store should hold: the state at each of its revisions.
type model struct {
	states map[int64]state
	last   int64
	// compacted: changes up to here may be gone.
	compacted int64
}

// present is a copy of the last state.
func (m *model) present() state { return maps.Clone(m.states[m.last]) }

func (m *model) commit(revision int64, s state) {
	m.states[revision], m.last = s, revision
}

// selected answers what the queries select of a state.
func (s state) selected(queries []store.Query) state {
	chosen := state{}
	for k, o := range s {
		if slices.ContainsFunc(queries, func(q store.Query) bool { return selects(q, o) }) {
			chosen[k] = o
		}
	}
	return chosen
}

func selects(q store.Query, o *store.Object) bool {
	return q.Kind == o.Kind &&
		(q.Name == "" || q.Name == o.Name) &&
		strings.HasPrefix(o.Name, q.Prefix) &&
		(q.Selector == nil || q.Selector.Matches(labels.Set(o.Labels))) &&
		(q.Index == "" || q.Index == "owner" && slices.Contains(owners(o), q.Value))
}

// event is an [store.Event] in a form that compares: what is deleted by its UID, else the whole object.
type event struct {
	typ    store.EventType
	uid    string
	object *store.Object
}

// between answers the events that lead from one selection to the next, in the order of eventsOf.
func between(before, after state) []event {
	var events []event
	for k, o := range before {
		if now := after[k]; now == nil || now.UID != o.UID {
			events = append(events, event{typ: store.Deleted, uid: o.UID})
		}
	}
	for k, o := range after {
		switch was := before[k]; {
		case was == nil || was.UID != o.UID:
			events = append(events, event{store.Added, o.UID, o})
		case was.Revision != o.Revision:
			events = append(events, event{store.Modified, o.UID, o})
		}
	}
	sortEvents(events)
	return events
}

// eventsOf answers a batch's events, deletions first, else by UID: a transaction has no order inside.
func eventsOf(b store.Batch) []event {
	var events []event
	for _, e := range b.Events {
		o := e.Object
		if e.Type == store.Deleted {
			o = nil
		}
		events = append(events, event{e.Type, e.Object.UID, o})
	}
	sortEvents(events)
	return events
}

func sortEvents(events []event) {
	slices.SortFunc(events, func(a, b event) int {
		return strings.Compare(order(a), order(b))
	})
}

func order(e event) string {
	if e.typ == store.Deleted {
		return "0" + e.uid
	}
	return "1" + e.uid
}
