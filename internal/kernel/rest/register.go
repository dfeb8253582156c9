package rest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Register adds an operation. Fields of I are parameters by their tags (path, query, header) as in huma; a field
// Body is decoded strictly from JSON, a field RawBody []byte takes the body as it is. Fields of O are headers by
// their tags, and Body is the answer ([]byte: as it is). It panics on an operation that can never work.
func Register[I, O any](a *API, op Operation, handler func(context.Context, *I) (*O, error)) {
	a.check(&op)
	gate := a.gate(op, reflect.TypeFor[I]())
	gate.stream = reflect.TypeFor[O]() == reflect.TypeFor[Stream]()
	doc := a.document(op)
	doc.Metadata = map[string]any{gateKey: gate}
	if gate.body && gate.plan == nil && op.Consumes != "" {
		doc.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			op.Consumes: {Schema: &huma.Schema{Type: "string", Format: "binary"}},
		}}
		defer delete(doc.RequestBody.Content, "application/octet-stream") // huma's own idea of a raw body
	}
	huma.Register(a.huma, doc, func(ctx context.Context, in *I) (*O, error) {
		out, err := handler(ctx, in)
		if err != nil {
			return nil, a.wire(ctx, err)
		}
		return out, nil
	})
	a.forgetHumaErrors()
}

// Handle adds an operation whose handler does its own decoding and encoding. The body is limited to
// op.MaxBody (an error from reading it is an *http.MaxBytesError).
func (a *API) Handle(op Operation, h http.Handler) {
	a.check(&op)
	if !op.Hidden {
		doc := a.document(op)
		if op.Consumes != "" {
			doc.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{op.Consumes: {}}}
		}
		for _, name := range wildcards(op.Path) {
			doc.Parameters = append(doc.Parameters, &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
		}
		switch op.Method {
		case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions, http.MethodTrace:
			a.huma.OpenAPI().AddOperation(&doc)
		}
	}
	rt := a.route(op)
	a.mux.HandleFunc(op.Method+" "+op.Path, func(w http.ResponseWriter, r *http.Request) {
		a.serve(rt, w, r, func(w *response, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, op.MaxBody)
			h.ServeHTTP(w, r)
		})
	})
}

// Fail answers an error in the API's envelope, for handlers added with Handle.
func (a *API) Fail(w http.ResponseWriter, r *http.Request, err error) {
	rw, ok := w.(*response)
	if !ok {
		rw = &response{ResponseWriter: w}
	}
	a.fail(rw, r, err)
}

const gateKey = "rest.gate"

// gate is what happens to a request's body before huma sees it.
type gate struct {
	op       Operation
	body     bool  // there is one
	plan     *plan // nil: a raw body
	required bool
	stream   bool // the answer may last
}

func (a *API) gate(op Operation, input reflect.Type) *gate {
	g := &gate{op: op}
	if input.Kind() != reflect.Struct {
		panic(fmt.Sprintf("rest: the input of %s must be a struct", op.ID))
	}
	for i := range input.NumField() {
		if f := input.Field(i); f.Anonymous && !f.IsExported() {
			panic(fmt.Sprintf("rest: the input of %s embeds the unexported type %s, whose parameters would not be seen: export it", op.ID, f.Type))
		}
	}
	if f, ok := input.FieldByName("Body"); ok {
		g.body = true
		g.plan = a.decoders.plan(f.Type)
		g.required = f.Type.Kind() != reflect.Pointer || f.Tag.Get("required") == "true"
	} else if _, ok := input.FieldByName("RawBody"); ok {
		g.body = true
	}
	return g
}

// pass reads and checks the body.
func (g *gate) pass(w *response, r *http.Request, buf *bytes.Buffer) error {
	if r.URL.RawQuery != "" {
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			return BadRequest("the query string is malformed: percent-encode its values")
		}
	}
	if !g.body {
		return nil
	}
	want := g.op.Consumes
	if g.plan != nil {
		want = "application/json"
	}
	if err := readBody(w, r, buf, g.op.MaxBody); err != nil {
		return err
	}
	if g.plan == nil {
		if want != "" {
			return checkMediaType(r, want)
		}
		return nil
	}
	if buf.Len() == 0 {
		if g.required {
			return BadRequest("the request body is empty; send a JSON object")
		}
		return nil
	}
	if err := checkMediaType(r, want); err != nil {
		return err
	}
	return g.plan.check(buf.Bytes())
}

// adapter joins huma to the mux.
type adapter struct{ api *API }

func (ad adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) { ad.api.mux.ServeHTTP(w, r) }

func (ad adapter) Handle(doc *huma.Operation, handler func(huma.Context)) {
	a := ad.api
	g := doc.Metadata[gateKey].(*gate)
	rt := a.route(g.op)
	a.mux.HandleFunc(g.op.Method+" "+g.op.Path, func(w http.ResponseWriter, r *http.Request) {
		a.serve(rt, w, r, func(w *response, r *http.Request) {
			in, out := new(bytes.Buffer), new(bytes.Buffer)
			if !g.stream { // what lasts holds no buffer that others need
				in, out = getBuffer(), getBuffer()
				defer putBuffer(in)
				defer putBuffer(out)
			}
			if err := g.pass(w, r, in); err != nil {
				a.fail(w, r, err)
				return
			}
			x := &exchange{op: doc, r: r, w: w, body: in.Bytes(), out: out, admit: func() error { return a.readmit(r, g.op.Access) }}
			handler(x)
			if x.streamed {
				return
			}
			if r.Context().Err() != nil {
				w.abandon()
			}
			switch {
			case x.failed != 0:
				x.status = x.failed
			case x.status == 0:
				x.status = http.StatusOK
			}
			w.writeBody(x.status, out.Bytes())
		})
	})
}

// wireError is a problem on its way through huma.
type wireError struct{ *Problem }

func (e wireError) GetStatus() int          { return e.Status }
func (e wireError) GetHeaders() http.Header { return e.Header }

func (a *API) wire(ctx context.Context, err error) error {
	p, fault := a.problemOf(ctx, err)
	if req, ok := ctx.Value(requestKey).(*request); ok && fault != nil {
		req.failure = fault
	}
	return wireError{p}
}

// transform renders problems, ours and huma's own, in the API's envelope.
func (a *API) transform(ctx huma.Context, _ string, v any) (any, error) {
	var p *Problem
	switch e := v.(type) {
	case wireError:
		p = e.Problem
	case *huma.ErrorModel:
		p = a.humaProblem(ctx.Context(), e)
	default:
		return v, nil
	}
	if req, ok := ctx.Context().Value(requestKey).(*request); ok {
		req.refused(p)
	}
	ctx.SetHeader("Content-Type", a.config.ProblemType)
	ctx.(*exchange).failed = p.Status
	return a.config.Envelope(ctx.Context(), p), nil
}

// humaProblem: huma refuses nothing but parameters here, and each such fault has its place.
func (a *API) humaProblem(ctx context.Context, e *huma.ErrorModel) *Problem {
	if e.Status >= 500 {
		return internal(ctx)
	}
	causes := make([]Cause, 0, len(e.Errors))
	for _, d := range e.Errors {
		_, field, ok := strings.Cut(d.Location, ".")
		if !ok {
			field = d.Location
		}
		causes = append(causes, Cause{Field: field, Message: d.Message})
	}
	if p := Invalid(causes...); p != nil {
		return p
	}
	return BadRequest("%s", e.Detail)
}

// document describes an operation to huma.
func (a *API) document(op Operation) huma.Operation {
	doc := huma.Operation{
		OperationID: op.ID, Method: op.Method, Path: op.Path, Summary: op.Summary, Description: op.Description,
		Tags: op.Tags, DefaultStatus: op.Status, Hidden: op.Hidden,
		// The gate has read, limited and checked the body.
		MaxBodyBytes: -1, BodyReadTimeout: -1, SkipValidateBody: true,
		Extensions: map[string]any{"x-access": string(op.Access)},
		Responses:  map[string]*huma.Response{},
	}
	if op.Access == Public {
		doc.Security = []map[string][]string{}
	} else {
		doc.Security = a.security
	}
	example := reflect.TypeOf(a.config.Envelope(context.Background(), &Problem{Status: http.StatusBadRequest}))
	doc.Responses["default"] = &huma.Response{
		Description: "The request was not served.",
		Content: map[string]*huma.MediaType{a.config.ProblemType: {
			Schema: a.huma.OpenAPI().Components.Schemas.Schema(example, true, "Error"),
		}},
	}
	if op.Produces != "" {
		status := op.Status
		if status == 0 {
			status = http.StatusOK
		}
		doc.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status),
			Content:     map[string]*huma.MediaType{op.Produces: {Schema: &huma.Schema{Type: "string"}}},
		}
	}
	return doc
}

// forgetHumaErrors drops the schemas of the error model that is never sent.
func (a *API) forgetHumaErrors() {
	schemas := a.huma.OpenAPI().Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
}
