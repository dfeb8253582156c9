// Package rest serves typed HTTP operations. A handler's input and output types are the OpenAPI document; around
// them every request gets, in this order: a correlation id, authentication, authorisation, strict decoding.
//
// Several APIs may live in one process, each with its own error envelope. An operation that does not say who may
// call it cannot be registered.
package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Access is what a caller must be allowed to do to call an operation.
type Access string

// The accesses. Each includes those above it; Public asks for no credentials.
const (
	Public Access = "public"
	View   Access = "view"
	Edit   Access = "edit"
	Admin  Access = "admin"
)

const (
	// DefaultMaxBody is the largest request body, in bytes, unless an API or operation says otherwise.
	DefaultMaxBody = 1 << 20
	bodyTimeout    = 30 * time.Second
)

// Config of an API. Only Title, Version and Logger are needed; without Authenticate every operation that is not
// public is refused.
type Config struct {
	Title, Version, Description string
	// Prefixes of the paths that this API owns ("/api/v1"): what is below and not an operation answers 404 or
	// 405 in this API's envelope. A prefix may lie below another API's.
	Prefixes []string
	Logger   *slog.Logger
	// Metrics may be shared by several APIs.
	Metrics *Metrics
	// MaxBody is the largest request body in bytes (default DefaultMaxBody).
	MaxBody int64
	// Envelope renders a problem as the JSON body of its answer (default FailureEnvelope).
	Envelope func(context.Context, *Problem) any
	// ProblemType is the media type of the envelope (default "application/json").
	ProblemType string
	// Problem maps domain errors; nil for those it does not know. Problems and the store's errors need no mapping.
	Problem func(error) *Problem
	// Authenticate finds out who calls. The context it answers is the handler's. An error that is not a Problem is logged and answered as 401.
	Authenticate func(*http.Request) (context.Context, error)
	// Authorize tells whether the caller in ctx has the access.
	Authorize func(ctx context.Context, access Access) error
	// Caller names the caller in ctx for the access log.
	Caller func(context.Context) string
	// CorrelationHeader carries the correlation id, in both directions (default RequestIDHeader).
	CorrelationHeader string
	// Refused is told of every request to an operation that changes something (POST, PUT, PATCH, DELETE) and was
	// answered with a problem, before the answer is sent. It does not block.
	Refused func(Refusal)
	// Document is the API whose OpenAPI document describes this one's operations too (default: a document of its own).
	Document *API
	// SecuritySchemes are documented for operations that are not public (default: a bearer token).
	SecuritySchemes map[string]*huma.SecurityScheme
}

// Operation is one method on one path.
type Operation struct {
	Method string
	// Path in the syntax of http.ServeMux ("/api/v1/tenants/{name}").
	Path string
	// ID names the operation in the OpenAPI document, logs and metrics ("list-tenants").
	ID string
	// Access has no default.
	Access      Access
	Summary     string
	Description string
	Tags        []string
	// Status of success (default: 200 with a body, else 204).
	Status int
	// MaxBody overrides the API's.
	MaxBody int64
	// Consumes is the media type of a RawBody input (default: any).
	Consumes string
	// Produces is the media type of a []byte or stream output in the document.
	Produces string
	// Hidden operations are not in the OpenAPI document.
	Hidden bool
	// Routine operations are logged as reads are: their successes are debug messages.
	Routine bool
}

// Refusal is a change that was asked for and not made.
type Refusal struct {
	Operation Operation
	// Request with its path values. Its context is the caller's, where the caller is known.
	Request *http.Request
	// Caller is "" for one who was not let in.
	Caller    string
	RequestID string
	Problem   *Problem
}

// API is a set of operations on a mux with one envelope.
type API struct {
	config   Config
	mux      *http.ServeMux
	huma     huma.API
	decoders *planner
	security []map[string][]string
	methods  map[string]bool
}

// New starts an API on a mux. It panics on a configuration that can never work.
func New(mux *http.ServeMux, config Config) *API {
	if config.Logger == nil {
		panic("rest: an API needs a logger")
	}
	if config.MaxBody == 0 {
		config.MaxBody = DefaultMaxBody
	}
	if config.Envelope == nil {
		config.Envelope = FailureEnvelope
	}
	if config.CorrelationHeader == "" {
		config.CorrelationHeader = RequestIDHeader
	}
	config.CorrelationHeader = http.CanonicalHeaderKey(config.CorrelationHeader)
	if config.ProblemType == "" {
		config.ProblemType = "application/json"
	}
	if config.SecuritySchemes == nil {
		config.SecuritySchemes = map[string]*huma.SecurityScheme{
			"bearer": {Type: "http", Scheme: "bearer", BearerFormat: "JWT"},
		}
	}
	a := &API{config: config, mux: mux, decoders: newPlanner(), methods: map[string]bool{}}
	for name := range config.SecuritySchemes {
		a.security = append(a.security, map[string][]string{name: {}})
	}
	a.huma = huma.NewAPI(huma.Config{
		OpenAPI: newDocument(config),
		Formats: map[string]huma.Format{
			"application/json": huma.DefaultJSONFormat,
			// The media type of huma's own errors; the transformer replaces them.
			"application/problem+json": huma.DefaultJSONFormat,
		},
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{a.transform},
	}, adapter{a})
	for _, prefix := range config.Prefixes {
		a.fallback(prefix)
	}
	return a
}

func newDocument(config Config) *huma.OpenAPI {
	if config.Document != nil {
		return config.Document.OpenAPI()
	}
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info:    &huma.Info{Title: config.Title, Version: config.Version, Description: config.Description},
		Components: &huma.Components{
			Schemas:         huma.NewMapRegistry("#/components/schemas/", newSchemaNamer()),
			SecuritySchemes: config.SecuritySchemes,
		},
	}
}

// OpenAPI is the document of all registered operations.
func (a *API) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

// Document renders the OpenAPI document as indented JSON: the same operations give the same bytes.
func (a *API) Document() ([]byte, error) {
	b, err := json.MarshalIndent(a.huma.OpenAPI(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the OpenAPI document: %w", err)
	}
	return append(b, '\n'), nil
}

func (a *API) check(op *Operation) {
	switch op.Access {
	case Public, View, Edit, Admin:
	case "":
		panic(fmt.Sprintf("rest: %s %s does not say who may call it", op.Method, op.Path))
	default:
		panic(fmt.Sprintf("rest: %s %s has the unknown access %q", op.Method, op.Path, op.Access))
	}
	if op.ID == "" {
		op.ID = huma.GenerateOperationID(op.Method, op.Path, nil)
	}
	if op.MaxBody == 0 {
		op.MaxBody = a.config.MaxBody
	}
	op.Method = strings.ToUpper(op.Method)
	a.methods[op.Method] = true
}
