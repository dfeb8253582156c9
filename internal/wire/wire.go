// Package wire turns what the store keeps into what the operator API serves, where that is the same for every kind of
// object.
package wire

import (
	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/store"
)

// Metadata is an object's metadata as it is served, under the name that it has in its collection. Lists and maps are
// never null.
func Metadata(m *store.Metadata, name string) client.Metadata {
	w := client.Metadata{
		Name: name, UID: m.UID, ResourceVersion: m.Revision, Generation: m.Generation,
		CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt, DeletionTimestamp: m.DeletionTimestamp,
		Finalizers: m.Finalizers, Labels: m.Labels, Annotations: m.Annotations,
	}
	if w.Finalizers == nil {
		w.Finalizers = []string{}
	}
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	if w.Annotations == nil {
		w.Annotations = map[string]string{}
	}
	return w
}
