package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type envelope struct {
	Code    string `json:"code"`
	ID      string `json:"id"`
	Details any    `json:"details,omitempty"`
}

// newPair is an API and another with its own envelope and correlation header below it.
func newPair(t *testing.T, refused func(Refusal)) (main, below *API, h http.Handler) {
	t.Helper()
	main, mux := newFixture(t, nil, nil)
	below = New(mux, Config{
		Title: "Below", Version: "1", Prefixes: []string{"/api/v1/below"}, Logger: slog.New(slog.DiscardHandler),
		CorrelationHeader: "X-Correlation-ID", Refused: refused, Document: main,
		Authenticate: main.config.Authenticate, Authorize: main.config.Authorize, Caller: main.config.Caller,
		Envelope: func(ctx context.Context, p *Problem) any { return &envelope{p.Reason, RequestID(ctx), p.Details} },
	})
	type in struct {
		ID    string `path:"id"`
		Count int    `query:"count"`
		Body  widget
	}
	Register(below, Operation{Method: "PUT", Path: "/api/v1/below/{id}", ID: "put-below", Access: Edit},
		func(_ context.Context, in *in) (*struct{ Body widget }, error) {
			switch in.ID {
			case "taken":
				return nil, &Problem{Status: 412, Reason: "taken", Message: "taken", Details: map[string]int{"by": 4}}
			case "broken":
				return nil, errors.New("no")
			case "panic":
				panic("boom")
			}
			return &struct{ Body widget }{in.Body}, nil
		})
	Register(below, Operation{Method: "GET", Path: "/api/v1/below/{id}", ID: "get-below", Access: View},
		func(context.Context, *struct {
			ID string `path:"id"`
		}) (*struct{ Body widget }, error) {
			return nil, NotFound("none")
		})
	return main, below, main.Handler(below)
}

func TestEveryRefusedChangeIsTold(t *testing.T) {
	var got []string
	_, _, h := newPair(t, func(r Refusal) {
		got = append(got, fmt.Sprintf("%s %s %q %d %s %s", r.Operation.ID, r.Request.PathValue("id"), r.Caller, r.Problem.Status, r.Problem.Reason, r.RequestID))
	})
	const body = `{"name":"w"}`
	id := map[string]string{"X-Correlation-ID": "c-1"}
	for _, c := range []call{
		{method: "PUT", path: "/api/v1/below/a", body: body},
		{method: "PUT", path: "/api/v1/below/a", as: "view", body: body},
		{method: "PUT", path: "/api/v1/below/a", as: "edit", body: `{"nam":"w"}`},
		{method: "PUT", path: "/api/v1/below/a?count=x", as: "edit", body: body},
		{method: "PUT", path: "/api/v1/below/taken", as: "edit", body: body},
		{method: "PUT", path: "/api/v1/below/broken", as: "edit", body: body},
		{method: "PUT", path: "/api/v1/below/panic", as: "edit", body: body},
		{method: "PUT", path: "/api/v1/below/a", as: "edit", body: body},
		{method: "GET", path: "/api/v1/below/a", as: "edit"},
		{method: "POST", path: "/api/v1/below/a", as: "edit"},
	} {
		c.header = id
		do(t, h, c)
	}
	want := []string{
		`put-below a "" 401 Unauthorized c-1`, `put-below a "view" 403 Forbidden c-1`, `put-below a "edit" 400 BadRequest c-1`,
		`put-below a "edit" 400 BadRequest c-1`, `put-below taken "edit" 412 taken c-1`, `put-below broken "edit" 500 InternalError c-1`,
		`put-below panic "edit" 500 InternalError c-1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnAPIHasItsOwnCorrelationHeader(t *testing.T) {
	_, _, h := newPair(t, nil)
	r := do(t, h, call{method: "PUT", path: "/api/v1/below/taken", as: "edit", body: `{}`,
		header: map[string]string{"X-Correlation-ID": "mine", RequestIDHeader: "other"}})
	var e envelope
	if err := json.Unmarshal([]byte(text(t, r)), &e); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(envelope{"taken", "mine", map[string]any{"by": 4.0}}, e); diff != "" {
		t.Error(diff)
	}
	if got := r.Header.Get("X-Correlation-ID"); got != "mine" || r.Header.Get(RequestIDHeader) != "" {
		t.Errorf("headers %v", r.Header)
	}
	r = do(t, h, call{method: "GET", path: "/api/v1/widgets", as: "view", header: map[string]string{"X-Correlation-ID": "mine"}})
	if got := r.Header.Get(RequestIDHeader); got == "" || got == "mine" || r.Header.Get("X-Correlation-ID") != "" {
		t.Errorf("headers %v", r.Header)
	}
}

func TestWhatLiesBelowAnAPIIsRefusedInItsEnvelope(t *testing.T) {
	_, _, h := newPair(t, nil)
	for path, want := range map[string]int{
		"/api/v1/below": 404, "/api/v1/below/a/b": 404, "/api/v1/below//a": 404, "/api/v1/below/a/./b": 404, "/api/v1/below/%2e": 404,
	} {
		r := do(t, h, call{method: "GET", path: path, as: "view"})
		body := text(t, r)
		if r.StatusCode != want || !strings.Contains(body, `"code":"NotFound"`) {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
	r := do(t, h, call{method: "POST", path: "/api/v1/below/a", as: "edit"})
	if body := text(t, r); r.StatusCode != 405 || !strings.Contains(body, `"code":"MethodNotAllowed"`) || r.Header.Get("Allow") != "GET, HEAD, OPTIONS, PUT" {
		t.Errorf("%d %s %v", r.StatusCode, body, r.Header)
	}
	failure(t, do(t, h, call{method: "GET", path: "/api/v1//widgets", as: "view"}))
	failure(t, do(t, h, call{method: "GET", path: "/api/v1/belowx", as: "view"}))
}

func TestTwoAPIsShareADocument(t *testing.T) {
	main, below, _ := newPair(t, nil)
	if main.OpenAPI() != below.OpenAPI() {
		t.Fatal("two documents")
	}
	op := main.OpenAPI().Paths["/api/v1/below/{id}"].Put
	if op == nil || op.Responses["default"].Content["application/json"].Schema.Ref != "#/components/schemas/Envelope" {
		t.Errorf("%+v", op)
	}
	if main.OpenAPI().Paths["/api/v1/widgets"].Get.Responses["default"].Content["application/json"].Schema.Ref != "#/components/schemas/Failure" {
		t.Error("the other API's envelope changed")
	}
}
