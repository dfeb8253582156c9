package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Metadata is what every resource has, apart from its spec and status.
type Metadata struct {
	Name              string
	UID               string
	Revision          int64
	Generation        int64
	CreatedAt         time.Time
	UpdatedAt         time.Time
	DeletionTimestamp *time.Time
	Finalizers        []string
	Labels            map[string]string
	Annotations       map[string]string
}

// Deleting tells whether deletion was asked for.
func (m *Metadata) Deleting() bool { return m.DeletionTimestamp != nil }

// Resource is an object with a typed spec S and status T. It is the caller's own copy.
type Resource[S, T any] struct {
	Metadata
	Spec   S
	Status T
}

// Type gives typed access to the objects of one kind.
type Type[S, T any] struct{ Kind Kind }

// Decode turns a stored object into a resource.
func (t Type[S, T]) Decode(o *Object) (*Resource[S, T], error) {
	r := &Resource[S, T]{Metadata: metadataOf(o)}
	if len(o.Spec) > 0 {
		if err := json.Unmarshal(o.Spec, &r.Spec); err != nil {
			return nil, fmt.Errorf("decode spec of %s %q: %w", t.Kind.Name, o.Name, err)
		}
	}
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &r.Status); err != nil {
			return nil, fmt.Errorf("decode status of %s %q: %w", t.Kind.Name, o.Name, err)
		}
	}
	return r, nil
}

// metadataOf copies an object's metadata.
func metadataOf(o *Object) Metadata {
	m := Metadata{
		Name: o.Name, UID: o.UID, Revision: o.Revision, Generation: o.Generation,
		CreatedAt: o.CreatedAt, UpdatedAt: o.UpdatedAt,
		Finalizers: slices.Clone(o.Finalizers), Labels: maps.Clone(o.Labels), Annotations: maps.Clone(o.Annotations),
	}
	if o.DeletionTimestamp != nil {
		at := *o.DeletionTimestamp
		m.DeletionTimestamp = &at
	}
	return m
}

// Encode turns a resource into its stored form.
func (t Type[S, T]) Encode(r *Resource[S, T]) (*Object, error) {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode spec of %s %q: %w", t.Kind.Name, r.Name, err)
	}
	status, err := json.Marshal(r.Status)
	if err != nil {
		return nil, fmt.Errorf("encode status of %s %q: %w", t.Kind.Name, r.Name, err)
	}
	return &Object{
		Kind: t.Kind.Name, Name: r.Name, UID: r.UID, Revision: r.Revision, Generation: r.Generation,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, DeletionTimestamp: r.DeletionTimestamp,
		Finalizers: r.Finalizers, Labels: r.Labels, Annotations: r.Annotations,
		Spec: spec, Status: status,
	}, nil
}

// Get answers the resource or ErrNotFound.
func (t Type[S, T]) Get(r Reader, name string) (*Resource[S, T], error) {
	o, err := r.Get(t.Kind.Name, name)
	if err != nil {
		return nil, err
	}
	return t.Decode(o)
}

// List answers one page of resources and the total that the query selects.
func (t Type[S, T]) List(r Reader, q Query) ([]*Resource[S, T], int, error) {
	q.Kind = t.Kind.Name
	l, err := r.List(q)
	if err != nil {
		return nil, 0, err
	}
	out := make([]*Resource[S, T], len(l.Objects))
	for i, o := range l.Objects {
		if out[i], err = t.Decode(o); err != nil {
			return nil, 0, err
		}
	}
	return out, l.Total, nil
}

// Create stores a new resource and completes its metadata in place.
func (t Type[S, T]) Create(tx Tx, r *Resource[S, T]) error { return t.write(r, tx.Create) }

// Update replaces the stored resource, whose revision must be r's, and completes r's metadata in place.
func (t Type[S, T]) Update(tx Tx, r *Resource[S, T]) error { return t.write(r, tx.Update) }

func (t Type[S, T]) write(r *Resource[S, T], put func(*Object) error) error {
	o, err := t.Encode(r)
	if err != nil {
		return err
	}
	if err := put(o); err != nil {
		return err
	}
	r.Metadata = metadataOf(o)
	return nil
}
