package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The fixture's resource has the shapes that real ones have.
type widgetSpec struct {
	Size    int               `json:"size"`
	Plugins widgetPlugins     `json:"plugins,omitzero"`
	Patches []widgetPatch     `json:"patches,omitempty"`
	Config  json.RawMessage   `json:"config,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Ready   bool              `json:"ready"`
}

type widgetPlugins struct {
	CNI struct {
		Type string `json:"type"`
	} `json:"cni"`
}

type widgetPatch struct {
	Name  string `json:"name"`
	Patch string `json:"patch"`
}

type widget struct {
	Name string     `json:"name"`
	Spec widgetSpec `json:"spec"`
}

type callerKey struct{}

// newFixture is an API with one operation of each kind. A request says who it is with "Bearer <access>".
func newFixture(t testing.TB, logs io.Writer, metrics *Metrics) (*API, *http.ServeMux) {
	t.Helper()
	if logs == nil {
		logs = io.Discard
	}
	mux := http.NewServeMux()
	rank := map[Access]int{View: 1, Edit: 2, Admin: 3}
	api := New(mux, Config{
		Title: "Widgets", Version: "1", Prefixes: []string{"/api/v1"}, Metrics: metrics,
		Logger: slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Authenticate: func(r *http.Request) (context.Context, error) {
			who, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok {
				return nil, Unauthorized("log in first")
			}
			return context.WithValue(r.Context(), callerKey{}, who), nil
		},
		Authorize: func(ctx context.Context, access Access) error {
			if rank[Access(ctx.Value(callerKey{}).(string))] < rank[access] {
				return Forbidden("role %q is needed", access)
			}
			return nil
		},
		Caller: func(ctx context.Context) string { return ctx.Value(callerKey{}).(string) },
	})
	type created struct {
		Location string `header:"Location"`
		Body     widget
	}
	Register(api, Operation{Method: "POST", Path: "/api/v1/widgets", ID: "create-widget", Access: Edit, Status: 201},
		func(_ context.Context, in *struct{ Body widget }) (*created, error) {
			return &created{Location: "/api/v1/widgets/" + in.Body.Name, Body: in.Body}, nil
		})
	Register(api, Operation{Method: "GET", Path: "/api/v1/widgets", ID: "list-widgets", Access: View},
		func(_ context.Context, in *ListInput) (*struct{ Body map[string]any }, error) {
			sel, err := in.Selector()
			if err != nil {
				return nil, err
			}
			return &struct{ Body map[string]any }{map[string]any{"offset": in.Offset, "limit": in.Limit, "selector": sel.String()}}, nil
		})
	type Named struct {
		Name string `path:"name"`
	}
	Register(api, Operation{Method: "GET", Path: "/api/v1/widgets/{name}", ID: "get-widget", Access: View},
		func(_ context.Context, in *Named) (*struct{ Body widget }, error) {
			switch in.Name {
			case "panic":
				panic("boom with secret=hunter2")
			case "broken":
				return nil, errors.New("the disk said: no")
			case "none":
				return nil, NotFound("widget %q not found", in.Name)
			case "bad-output":
				return &struct{ Body widget }{widget{Spec: widgetSpec{Config: json.RawMessage("{")}}}, nil
			}
			return &struct{ Body widget }{widget{Name: in.Name}}, nil
		})
	Register(api, Operation{Method: "DELETE", Path: "/api/v1/widgets/{name}", ID: "delete-widget", Access: Admin},
		func(context.Context, *Named) (*struct{}, error) { return nil, nil })
	Register(api, Operation{Method: "PATCH", Path: "/api/v1/widgets/{name}", ID: "patch-widget", Access: Edit, Consumes: "application/merge-patch+json"},
		func(_ context.Context, in *struct {
			Named
			RawBody []byte
		}) (*struct{ Body map[string]string }, error) {
			return &struct{ Body map[string]string }{map[string]string{"name": in.Name, "got": string(in.RawBody)}}, nil
		})
	Register(api, Operation{Method: "GET", Path: "/api/v1/public", ID: "public", Access: Public},
		func(context.Context, *struct{}) (*struct{ Body string }, error) {
			return &struct{ Body string }{"<hello>"}, nil
		})
	return api, mux
}

type call struct {
	method, path, as, body, contentType string
	header                              map[string]string
}

func do(t testing.TB, h http.Handler, c call) *http.Response {
	t.Helper()
	var body io.Reader
	if c.body != "" {
		body = strings.NewReader(c.body)
	}
	r := httptest.NewRequest(c.method, c.path, body)
	if c.as != "" {
		r.Header.Set("Authorization", "Bearer "+c.as)
	}
	if c.contentType != "" {
		r.Header.Set("Content-Type", c.contentType)
	}
	for k, v := range c.header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func failure(t testing.TB, r *http.Response) Failure {
	t.Helper()
	var f Failure
	body := text(t, r)
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		t.Fatalf("not an error envelope: %v: %s", err, body)
	}
	if f.Code != r.StatusCode || f.Status != "failure" || f.Message == "" || f.Reason == "" {
		t.Fatalf("status %d with envelope %s", r.StatusCode, body)
	}
	if got := r.Header.Get("Content-Type"); got != "application/json" {
		t.Fatalf("an error of type %q", got)
	}
	return f
}
