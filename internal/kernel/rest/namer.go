package rest

import (
	"path"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// newSchemaNamer names schemas, of types with the same name in two packages too: the second's has its package before it.
func newSchemaNamer() func(reflect.Type, string) string {
	taken := map[string]reflect.Type{}
	return func(t reflect.Type, hint string) string {
		name := schemaName(t, hint)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Name() == "" {
			return name
		}
		if other, ok := taken[name]; ok && other != t {
			pkg := path.Base(t.PkgPath())
			name = strings.ToUpper(pkg[:1]) + pkg[1:] + name
		}
		taken[name] = t
		return name
	}
}

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
