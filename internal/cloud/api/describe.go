package api

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/watch"
)

// describe completes the OpenAPI document with what types alone do not tell: the events of the watches, and the
// bodies of merge patches.
func describe(a *rest.API) {
	doc := a.OpenAPI()
	schemas := doc.Components.Schemas
	object := func(t reflect.Type) *huma.Schema { return schemas.Schema(t, true, "") }
	tenant, group := object(reflect.TypeFor[client.Tenant]()), object(reflect.TypeFor[client.NodeGroup]())
	machine, provider := object(reflect.TypeFor[client.Machine]()), object(reflect.TypeFor[client.Provider]())
	revision := object(reflect.TypeFor[client.ListMetadata]())

	kinds := []any{"Tenant", "NodeGroup", "Machine"}
	for tag, of := range map[string]*huma.Schema{"NodeGroups": group, "Machines": machine, "Providers": provider, "Tenants": tenant} {
		name := strings.TrimSuffix(tag, "s") + "Event"
		schemas.Map()[name] = watch.EventSchema(name, of, kinds...)
		schemas.Map()[name+"List"] = watch.ListSchema(name, revision)
	}
	const anyEvent = "TenantScopeEvent"
	schemas.Map()[anyEvent] = watch.EventSchema("Event of a tenant and, with scope=all, of what is in it", &huma.Schema{AnyOf: []*huma.Schema{tenant, group, machine}}, kinds...)
	schemas.Map()[anyEvent+"List"] = watch.ListSchema(anyEvent, revision)

	for _, item := range doc.Paths {
		if op := item.Get; op != nil && strings.HasPrefix(op.OperationID, "watch-") {
			name := strings.TrimSuffix(op.Tags[0], "s") + "Event"
			if op.OperationID == "watch-tenant" {
				name = anyEvent
			}
			watch.Describe(op, name)
		}
		if op := item.Patch; op != nil && op.RequestBody != nil {
			if media := op.RequestBody.Content[mergePatchType]; media != nil {
				media.Schema = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true, Description: "The fields that change; null removes one."}
			}
		}
	}
}
