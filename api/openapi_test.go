package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	auditapi "freehold.dev/freehold/internal/audit/api"
	cloudapi "freehold.dev/freehold/internal/cloud/api"
	applyapi "freehold.dev/freehold/internal/cloud/apply/api"
	hubapi "freehold.dev/freehold/internal/hub/api"
	"freehold.dev/freehold/internal/identity"
	identityapi "freehold.dev/freehold/internal/identity/api"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/system"
)

var update = flag.Bool("update", false, "write openapi.json anew")

// document is the OpenAPI document of every operation.
func document(t *testing.T) []byte {
	t.Helper()
	mux, logger := http.NewServeMux(), slog.New(slog.DiscardHandler)
	a := rest.New(mux, rest.Config{
		Title: "Freehold", Version: "v1", Description: "The operator API of Freehold, a private cloud that its owner holds outright.",
		Prefixes: []string{"/api/v1"}, Logger: logger,
	})
	identityapi.New(&identity.Service{}).Register(a)
	cloudapi.Register(a, cloudapi.Config{})
	applyapi.Register(a, nil)
	system.Register(a, system.Config{})
	auditapi.Register(a, nil)
	hubapi.Register(rest.New(mux, hubapi.Configure(rest.Config{Logger: logger, Document: a}, nil)), hubapi.Config{})
	doc, err := a.Document()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestCommittedDocumentIsWhatIsServed(t *testing.T) {
	got := document(t)
	if *update {
		if err := os.WriteFile("openapi.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("api/openapi.json is not what the server serves: run go generate ./api")
	}
}

// operation is what the checks below read of one.
type operation struct {
	OperationID string `json:"operationId"`
	Summary     string
	Tags        []string
	Access      string `json:"x-access"`
	Security    *[]map[string][]string
	Responses   map[string]struct {
		Content map[string]struct{ Schema json.RawMessage }
	}
}

// hubPath matches the paths whose errors have the Hub's envelope.
var hubPath = regexp.MustCompile(`^/api/v1/(nodes|streams|operations|config-versions)(/|$)`)

func TestDocumentDescribesEveryOperation(t *testing.T) {
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]operation
		Components struct {
			Schemas         map[string]json.RawMessage
			SecuritySchemes map[string]json.RawMessage
		}
	}
	data := document(t)
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || len(doc.Components.SecuritySchemes) == 0 {
		t.Errorf("version %q, security schemes %v", doc.OpenAPI, doc.Components.SecuritySchemes)
	}
	ids := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			where := method + " " + path
			if op.OperationID == "" || ids[op.OperationID] || op.Summary == "" || len(op.Tags) == 0 {
				t.Errorf("%s: id %q, summary %q, tags %v", where, op.OperationID, op.Summary, op.Tags)
			}
			ids[op.OperationID] = true
			if op.Access == "" || op.Security == nil || (op.Access == "public") != (len(*op.Security) == 0) {
				t.Errorf("%s: access %q, security %v", where, op.Access, op.Security)
			}
			envelope := "schemas/Failure"
			if hubPath.MatchString(path) {
				envelope = "schemas/HubProblem"
			}
			if failure := string(op.Responses["default"].Content["application/json"].Schema); !strings.Contains(failure, envelope) {
				t.Errorf("%s: its errors are described as %s", where, failure)
			}
			for status, r := range op.Responses {
				if strings.HasPrefix(status, "2") && status != "204" && len(r.Content) == 0 {
					t.Errorf("%s: nothing describes the answer %s", where, status)
				}
			}
		}
	}
	for _, ref := range regexp.MustCompile(`"#/components/schemas/([^"]+)"`).FindAllSubmatch(data, -1) {
		if doc.Components.Schemas[string(ref[1])] == nil {
			t.Errorf("there is no schema %s", ref[1])
		}
	}
	if !bytes.Equal(data, document(t)) {
		t.Error("the document is not the same twice")
	}
	for _, foreign := range []string{"$schema", "problem+json", "ErrorModel"} {
		if bytes.Contains(data, []byte(foreign)) {
			t.Errorf("the document has %s in it", foreign)
		}
	}
}
