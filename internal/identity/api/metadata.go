package api

import (
	"fmt"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// wireMetadata is an object's metadata as served, under the name that it has in its collection.
func wireMetadata(m *store.Metadata, name string) client.Metadata {
	out := client.Metadata{
		Name: name, UID: m.UID, ResourceVersion: m.Revision, Generation: m.Generation, CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt,
		DeletionTimestamp: m.DeletionTimestamp, Finalizers: m.Finalizers, Labels: m.Labels, Annotations: m.Annotations,
	}
	if out.Finalizers == nil {
		out.Finalizers = []string{}
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	return out
}

// metadataCauses checks what the service does not see. path is the name in the request's path, if any.
func metadataCauses(m *client.Metadata, path string) []rest.Cause {
	var causes []rest.Cause
	if path != "" && m.Name != "" && m.Name != path {
		causes = append(causes, rest.Cause{Field: "metadata.name", Message: fmt.Sprintf("must be %q, as in the path", path)})
	}
	if len(m.Finalizers) > 0 {
		causes = append(causes, rest.Cause{Field: "metadata.finalizers", Message: "users and API tokens take none"})
	}
	return causes
}

func invalid(causes []rest.Cause) error {
	if p := rest.Invalid(causes...); p != nil {
		return p
	}
	return nil
}
