package ledger

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Retention of ended intents. That of a stream's desired generation stays.
const (
	KeepIntents = 30 * 24 * time.Hour
	// MaxIntents of one node.
	MaxIntents = 10_000
)

// page is how many operations are looked at together.
const page = 500

// Expired answers up to limit names of operations that retention lets go.
func (l *Ledger) Expired(r store.Reader, limit int) ([]string, error) {
	s := &sweep{l: l, r: r, limit: limit, seen: map[string]bool{}}
	if err := s.old(); err != nil {
		return nil, err
	}
	nodes, err := r.List(store.Query{Kind: hub.Nodes.Kind.Name})
	if err != nil {
		return nil, err
	}
	for _, n := range nodes.Objects {
		if err := s.surplus(n.Name); err != nil {
			return nil, err
		}
	}
	return s.names, nil
}

type sweep struct {
	l     *Ledger
	r     store.Reader
	limit int
	seen  map[string]bool
	names []string
}

func (s *sweep) full() bool { return len(s.names) >= s.limit }

func (s *sweep) add(o *store.Resource[struct{}, hub.Intent]) {
	if !s.full() && !s.seen[o.Name] {
		s.seen[o.Name] = true
		s.names = append(s.names, o.Name)
	}
}

// old finds those that ended long ago, from the oldest on.
func (s *sweep) old() error {
	all := store.Query{Kind: hub.Operations.Kind.Name, NewestFirst: true}
	before := s.l.now().Add(-KeepIntents)
	return s.fromOldest(all, 0, func(o *store.Resource[struct{}, hub.Intent]) (bool, error) {
		free, err := releasable(s.r, o)
		if err == nil && free && o.Status.FinishedAt.Before(before) {
			s.add(o)
		}
		return o.Status.CreatedAt.Before(before), err
	})
}

// surplus finds those of one node that are more than it may have.
func (s *sweep) surplus(node string) error {
	own := store.Query{Kind: hub.Operations.Kind.Name, NewestFirst: true, Selector: labels.SelectorFromValidatedSet(labels.Set{hub.LabelNode: node})}
	return s.fromOldest(own, MaxIntents, func(o *store.Resource[struct{}, hub.Intent]) (bool, error) {
		free, err := releasable(s.r, o)
		if err == nil && free {
			s.add(o)
		}
		return true, err
	})
}

// fromOldest visits what the query selects from the oldest on, but for the newest spare, until visit answers false.
func (s *sweep) fromOldest(q store.Query, spare int, visit func(*store.Resource[struct{}, hub.Intent]) (bool, error)) error {
	count := q
	count.Limit = 1
	_, total, err := hub.Operations.List(s.r, count)
	if err != nil {
		return err
	}
	for total > spare && !s.full() {
		q.Offset = max(total-page, spare)
		q.Limit = total - q.Offset
		got, _, err := hub.Operations.List(s.r, q)
		if err != nil {
			return err
		}
		for i := len(got) - 1; i >= 0; i-- {
			if more, err := visit(got[i]); err != nil || !more {
				return err
			}
		}
		total = q.Offset
	}
	return nil
}

// releasable tells whether the intent has ended, nothing of it is awaited, and it is not that of its stream's desired generation.
func releasable(r store.Reader, o *store.Resource[struct{}, hub.Intent]) (bool, error) {
	i := &o.Status
	if !i.Ended() || i.Open() || i.FinishedAt == nil {
		return false, nil
	}
	s, err := hub.Streams.Get(r, hub.StreamName(i.Node, i.Resource))
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return err == nil && s.Spec.IntentID != o.Name, err
}

// Trim removes those of the named operations that retention lets go, and answers how many. The name that an operator
// gave to a restart is free again then.
func (l *Ledger) Trim(tx store.Tx, names []string) (int, error) {
	removed := 0
	for _, name := range names {
		o, err := hub.Operations.Get(tx, name)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return removed, err
		}
		free, err := releasable(tx, o)
		if err != nil {
			return removed, err
		}
		if !free {
			continue
		}
		if _, err := tx.Delete(hub.Operations.Kind.Name, name, o.Revision); err != nil {
			return removed, err
		}
		if err := releaseAction(tx, &o.Status); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

func releaseAction(tx store.Tx, i *hub.Intent) error {
	if i.Desired.ActionID == "" {
		return nil
	}
	return tx.Release(claimAction, actionKey(i.Node, i.Resource, i.Desired.ActionID))
}
