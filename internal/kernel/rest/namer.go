package rest

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// schemaName names the schema of a type. A resource generic in its spec and status is named after them: the schema of
// Resource[TenantSpec, TenantStatus] is Tenant, that of a list of them TenantList, that of their events TenantEvent.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	prefix, parts, ok := strings.Cut(name, "Resource")
	if !ok {
		return name
	}
	for i := strings.Index(parts, "Spec"); i > 0; {
		noun, rest := parts[:i], parts[i+len("Spec"):]
		if rest == noun+"Status" {
			return noun + prefix
		}
		next := strings.Index(parts[i+1:], "Spec")
		if next < 0 {
			break
		}
		i += 1 + next
	}
	return name
}
