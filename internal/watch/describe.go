package watch

import (
	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/client"
)

// Describe completes the description of an operation that serves a scope. event is the name of its events' schema.
func Describe(op *huma.Operation, event string) {
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

// EventSchema is the schema of an event; kinds are those that its scope tells apart.
func EventSchema(title string, of *huma.Schema, kinds ...any) *huma.Schema {
	s := &huma.Schema{
		Type: huma.TypeObject, Description: title, Required: []string{"type", "object"},
		Properties: map[string]*huma.Schema{
			"type": {
				Type: huma.TypeString, Enum: []any{client.Added, client.Modified, client.Deleted, client.Bookmark},
				Description: "DELETED: the object is gone, or no longer selected; object is its last state. BOOKMARK: all that exists was sent; object has nothing but metadata.resourceVersion.",
			},
			"object": of,
		},
	}
	if len(kinds) > 0 {
		s.Properties["kind"] = &huma.Schema{Type: huma.TypeString, Description: "What the object is, where one watch covers several kinds.", Enum: kinds}
	}
	return s
}

// ListSchema is the schema of a list of recent events.
func ListSchema(event string, revision *huma.Schema) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject, Description: "Recent changes, oldest first.", Required: []string{"metadata", "items", "total"},
		Properties: map[string]*huma.Schema{
			"metadata": revision,
			"items":    {Type: huma.TypeArray, Items: &huma.Schema{Ref: "#/components/schemas/" + event}},
			"total":    {Type: huma.TypeInteger, Format: "int64"},
		},
	}
}
