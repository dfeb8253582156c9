package api

import (
	"fmt"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/rest"
)

func list[S, R any](page *identity.Page[S], render func(S) R) client.List[R] {
	out := client.List[R]{Metadata: client.ListMetadata{ResourceVersion: page.Revision}, Items: make([]R, len(page.Items)), Total: page.Total}
	for i, item := range page.Items {
		out.Items[i] = render(item)
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
