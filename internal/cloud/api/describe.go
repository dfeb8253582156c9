package api

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
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

	kinds := map[string]*huma.Schema{"NodeGroups": group, "Machines": machine, "Providers": provider, "Tenants": tenant}
	for tag, of := range kinds {
		name := strings.TrimSuffix(tag, "s") + "Event"
		schemas.Map()[name] = eventSchema(name, of)
		schemas.Map()[name+"List"] = eventListSchema(name, revision)
	}
	const anyEvent = "TenantScopeEvent"
	schemas.Map()[anyEvent] = eventSchema("Event of a tenant and, with scope=all, of what is in it", &huma.Schema{AnyOf: []*huma.Schema{tenant, group, machine}})
	schemas.Map()[anyEvent+"List"] = eventListSchema(anyEvent, revision)

	for _, item := range doc.Paths {
		if op := item.Get; op != nil && strings.HasPrefix(op.OperationID, "watch-") {
			name := strings.TrimSuffix(op.Tags[0], "s") + "Event"
			if op.OperationID == "watch-tenant" {
				name = anyEvent
			}
			describeEvents(op, name)
		}
		if op := item.Patch; op != nil && op.RequestBody != nil {
			if media := op.RequestBody.Content[mergePatchType]; media != nil {
				media.Schema = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true, Description: "The fields that change; null removes one."}
			}
		}
	}
}

func describeEvents(op *huma.Operation, event string) {
	ref := func(name string) *huma.Schema { return &huma.Schema{Ref: "#/components/schemas/" + name} }
	op.Responses["200"] = &huma.Response{
		Description: "Without watch a list of events. With watch a stream: one event a line, or Server-Sent Events whose data is an event.",
		Content: map[string]*huma.MediaType{
			"application/json":  {Schema: &huma.Schema{OneOf: []*huma.Schema{ref(event + "List"), ref(event)}}},
			"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString, Description: "Messages with id (the revision to resume after) and data (an event as JSON)."}},
		},
	}
	op.Responses["410"] = &huma.Response{
		Description: "The changes after resourceVersion are no longer kept: start again without it.",
		Content:     op.Responses["default"].Content,
	}
	for _, p := range op.Parameters {
		if p.Name == "Last-Event-ID" {
			p.Description = "What a browser sends when it resumes; it comes before resourceVersion, which the browser repeats."
			p.Schema.Description = p.Description
		}
	}
}

func eventSchema(title string, of *huma.Schema) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject, Description: title, Required: []string{"type", "object"},
		Properties: map[string]*huma.Schema{
			"type": {
				Type: huma.TypeString, Enum: []any{client.Added, client.Modified, client.Deleted, client.Bookmark},
				Description: "DELETED: the object is gone, or no longer selected; object is its last state. BOOKMARK: all that exists was sent; object has nothing but metadata.resourceVersion.",
			},
			"kind":   {Type: huma.TypeString, Description: "What the object is, where one watch covers several kinds.", Enum: []any{"Tenant", "NodeGroup", "Machine"}},
			"object": of,
		},
	}
}

func eventListSchema(event string, revision *huma.Schema) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject, Description: "Recent changes, oldest first.", Required: []string{"metadata", "items", "total"},
		Properties: map[string]*huma.Schema{
			"metadata": revision,
			"items":    {Type: huma.TypeArray, Items: &huma.Schema{Ref: "#/components/schemas/" + event}},
			"total":    {Type: huma.TypeInteger, Format: "int64"},
		},
	}
}
