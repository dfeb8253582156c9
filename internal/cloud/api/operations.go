package api

import (
	"fmt"
	"net/http"
	"strings"

	"freehold.dev/freehold/internal/kernel/rest"
)

const mergePatchType = "application/merge-patch+json"

type output[R any] struct {
	Warning []string `header:"Warning" doc:"What the client should know, although the request was accepted."`
	Body    R
}

type created[R any] struct {
	Location string   `header:"Location" doc:"Where the new object is."`
	Warning  []string `header:"Warning" doc:"What the client should know, although the request was accepted."`
	Body     R
}

// Forcing is embedded in the input of updates.
type Forcing struct {
	Force bool `query:"force" doc:"Let rezuscloud.io finalizers be removed, although their work is not done. For admins; audited."`
}

// Precondition is embedded in the input of deletions.
type Precondition struct {
	ResourceVersion int64 `query:"resourceVersion" minimum:"0" doc:"Delete only this version of the object."`
}

// warnings are values of the Warning header (RFC 7234, 5.5).
func warnings(texts []string) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = fmt.Sprintf(`299 freehold "%s"`, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(t))
	}
	return out
}

// operations makes the operations of one collection.
type operations struct{ tag string }

func (o operations) get(path, id, summary string) rest.Operation {
	return rest.Operation{Method: http.MethodGet, Path: path, ID: id, Access: rest.View, Summary: summary, Tags: []string{o.tag}}
}

func (o operations) create(path, id, summary string) rest.Operation {
	return rest.Operation{Method: http.MethodPost, Path: path, ID: id, Access: rest.Edit, Summary: summary, Tags: []string{o.tag}, Status: http.StatusCreated}
}

func (o operations) put(path, id, summary string) rest.Operation {
	return rest.Operation{
		Method: http.MethodPut, Path: path, ID: id, Access: rest.Edit, Summary: summary, Tags: []string{o.tag},
		Description: "The body is the whole object with the resourceVersion that was read; its status is ignored. An object that was read and sent back unchanged changes nothing.",
	}
}

func (o operations) patch(path, id, summary string) rest.Operation {
	return rest.Operation{
		Method: http.MethodPatch, Path: path, ID: id, Access: rest.Edit, Summary: summary, Tags: []string{o.tag}, Consumes: mergePatchType,
		Description: "The body is a JSON merge patch (RFC 7386) of the object. With metadata.resourceVersion it applies to that version only.",
	}
}

func (o operations) putStatus(path, id, summary string) rest.Operation {
	return rest.Operation{
		Method: http.MethodPut, Path: path, ID: id, Access: rest.Admin, Summary: summary, Tags: []string{o.tag},
		Description: "Everything in the body but status and metadata.resourceVersion is ignored. Controllers write status; what they observe next replaces it.",
	}
}

func (o operations) delete(path, id, summary string) rest.Operation {
	return rest.Operation{
		Method: http.MethodDelete, Path: path, ID: id, Access: rest.Edit, Summary: summary, Tags: []string{o.tag}, Status: http.StatusOK,
		Description: "Sets metadata.deletionTimestamp. The object goes when its finalizers are gone. Deleting again changes nothing.",
	}
}
