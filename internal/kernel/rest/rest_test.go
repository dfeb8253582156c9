package rest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnswersCarryNothingOfTheLibrary(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	r := do(t, mux, call{method: "POST", path: "/api/v1/widgets", as: "edit", body: `{"name":"a","spec":{"size":1,"config":{"x":[1]}}}`})
	if got, want := text(t, r), `{"name":"a","spec":{"size":1,"plugins":{"cni":{"type":""}},"config":{"x":[1]},"ready":false}}`+"\n"; r.StatusCode != 201 || strings.Replace(got, `"plugins":{"cni":{"type":""}},`, "", 1) != strings.Replace(want, `"plugins":{"cni":{"type":""}},`, "", 1) {
		t.Errorf("%d %s", r.StatusCode, got)
	}
	if got := r.Header.Get("Location"); got != "/api/v1/widgets/a" {
		t.Errorf("Location %q", got)
	}
	for _, h := range []string{"Link", "Schema"} {
		if r.Header.Get(h) != "" {
			t.Errorf("header %s shows", h)
		}
	}
	if got := text(t, do(t, mux, call{method: "GET", path: "/api/v1/public"})); got != "\"<hello>\"\n" {
		t.Errorf("HTML escapes: %s", got)
	}
}

func TestFaultsAreNamedByTheirField(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	for _, c := range []struct {
		body  string
		field string // of the first cause; "": a fault of the whole
		says  string
	}{
		{`{"spec":{"plugins":{"cni":{"typ":"x"}}}}`, "spec.plugins.cni.typ", `did you mean "type"?`},
		{`{"Name":"a"}`, "Name", `did you mean "name"?`},
		{`{"spec":{"size":"3"}}`, "spec.size", "must be an integer, not a string"},
		{`{"spec":{"size":3.5}}`, "spec.size", "must be an integer, not a fraction"},
		{`{"spec":{"size":99999999999999999999}}`, "spec.size", "out of range"},
		{`{"spec":{"patches":[{"name":"a"},{"patch":1}]}}`, "spec.patches[1].patch", "must be a string, not a number"},
		{`{"spec":{"labels":{"a/b":1}}}`, "spec.labels[a/b]", "must be a string"},
		{`{"spec":{"labels":["a"]}}`, "spec.labels", "must be an object, not a list"},
		{`{"spec":[]}`, "spec", "must be an object"},
		{`{"spec":{"ready":1}}`, "spec.ready", "must be true or false"},
		{`{"name":"a","name":"b"}`, "name", "given twice"},
		{`{"name":"a","\u006eame":"b"}`, "name", "given twice"},
		{`{"spec":{"labels":{"a":"1","\u0061":"2"}}}`, "spec.labels[a]", "given twice"},
		{`{"spec":{"config":{"a":1,"a":2}}}`, "spec.config.a", "given twice"},
		{`{"":1}`, `[""]`, "unknown field"},
		{`{"name":"a"} x`, "", "unexpected data"},
		{`{"name":"a"}{}`, "", "unexpected data"},
		{`{"name":"a",}`, "", "field name"},
		{`{"name":"a"`, "", "unexpected end"},
		{`{"name":"` + "\xff" + `"}`, "", "UTF-8"},
		{`{"name":"\ud800"}`, "", "surrogate"},
		{"{\"name\":\"a\nb\"}", "", "control character"},
		{`{"spec":{"config":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}}`, "", "nested deeper"},
		{`null`, "", "must be an object"},
		{`[]`, "", "must be an object"},
		{`"x"`, "", "must be an object"},
		{`{"spec":{"config":01}}`, "", "expected ','"},
		{"   ", "", "empty"},
	} {
		r := do(t, mux, call{method: "POST", path: "/api/v1/widgets", as: "edit", body: c.body})
		f := failure(t, r)
		var field string
		if f.Details != nil {
			field = f.Details.Causes[0].Field
		}
		if r.StatusCode != 400 || f.Reason != "BadRequest" || field != c.field || !strings.Contains(f.Message, c.says) {
			t.Errorf("%.80s: %d %q: %s", c.body, r.StatusCode, field, f.Message)
		}
	}
}

func TestAllFaultsComeInOneAnswer(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	f := failure(t, do(t, mux, call{method: "POST", path: "/api/v1/widgets", as: "edit",
		body: `{"nam":"a","spec":{"size":"x","ready":"y","patches":[{"nme":1}]},"zzzzzz":{}}`}))
	want := []Cause{
		{"nam", `unknown field; did you mean "name"?`},
		{"spec.size", "must be an integer, not a string"},
		{"spec.ready", "must be true or false, not a string"},
		{"spec.patches[0].nme", `unknown field; did you mean "name"?`},
		{"zzzzzz", "unknown field"},
	}
	if diff := cmp.Diff(want, f.Details.Causes); diff != "" {
		t.Error(diff)
	}
	if want := "5 faults: "; !strings.HasPrefix(f.Message, want) || !strings.HasSuffix(f.Message, "and 2 more") {
		t.Errorf("message %q", f.Message)
	}
}

func TestNullLeavesAFieldUnset(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	r := do(t, mux, call{method: "POST", path: "/api/v1/widgets", as: "edit", body: `{"name":null,"spec":{"size":null,"labels":null,"patches":null,"config":null}}`})
	if r.StatusCode != 201 {
		t.Error(text(t, r))
	}
}

func TestBodiesAreLimited(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	fits := `{"name":"` + strings.Repeat("a", DefaultMaxBody-11) + `"}`
	if r := do(t, mux, call{method: "POST", path: "/api/v1/widgets", as: "edit", body: fits}); r.StatusCode != 201 {
		t.Errorf("%d bytes: %d", len(fits), r.StatusCode)
	}
	r := do(t, mux, call{method: "POST", path: "/api/v1/widgets", as: "edit", body: fits + " "})
	if f := failure(t, r); f.Code != 413 || f.Reason != "PayloadTooLarge" {
		t.Errorf("%+v", f)
	}
}

func TestMediaTypes(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	for _, c := range []struct {
		method, path, contentType string
		status                    int
	}{
		{"POST", "/api/v1/widgets", "application/json", 201},
		{"POST", "/api/v1/widgets", "application/json; charset=UTF-8", 201},
		{"POST", "/api/v1/widgets", "", 201},
		{"POST", "/api/v1/widgets", "application/json; charset=latin1", 400},
		{"POST", "/api/v1/widgets", "application/x-www-form-urlencoded", 201}, // curl -d
		{"POST", "/api/v1/widgets", "multipart/form-data; boundary=x", 400},
		{"POST", "/api/v1/widgets", "text/plain", 400},
		{"PATCH", "/api/v1/widgets/a", "application/merge-patch+json", 200},
		{"PATCH", "/api/v1/widgets/a", "application/json-patch+json", 400},
	} {
		r := do(t, mux, call{method: c.method, path: c.path, as: "edit", contentType: c.contentType, body: `{"name":"a"}`})
		if r.StatusCode != c.status {
			t.Errorf("%s %q: %d %s", c.method, c.contentType, r.StatusCode, text(t, r))
		}
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/api/v1/nothing", 404, ""},
		{"GET", "/api/v1", 404, ""},
		{"POST", "/api/v1/widgets/", 404, ""},
		{"GET", "/api/v1/widgets/a%2Fb", 404, ""},
		{"GET", "/api/v1/widgets/a%00b", 404, ""},
		{"PUT", "/api/v1/widgets", 405, "GET, HEAD, OPTIONS, POST"},
		{"POST", "/api/v1/widgets/a", 405, "DELETE, GET, HEAD, OPTIONS, PATCH"},
		{"LOCK", "/api/v1/widgets/a", 405, "DELETE, GET, HEAD, OPTIONS, PATCH"},
		{"OPTIONS", "/api/v1/widgets", 204, "GET, HEAD, OPTIONS, POST"},
		{"OPTIONS", "/api/v1/nothing", 404, ""},
		{"HEAD", "/api/v1/widgets", 200, ""},
	} {
		r := do(t, mux, call{method: c.method, path: c.path, as: "admin"})
		if r.StatusCode != c.status || r.Header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, Allow %q", c.method, c.path, r.StatusCode, r.Header.Get("Allow"))
		}
		if r.StatusCode >= 400 {
			failure(t, r)
		}
	}
}

func TestEveryOperationSaysWhoMayCallIt(t *testing.T) {
	api, _ := newFixture(t, nil, nil)
	for _, access := range []Access{"", "everyone"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("access %q was accepted", access)
				}
			}()
			Register(api, Operation{Method: "GET", Path: "/api/v1/open", Access: access},
				func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
		}()
	}
}

func TestAccessIsCheckedBeforeDecoding(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	for _, c := range []struct {
		as     string
		status int
	}{{"", 401}, {"view", 403}, {"edit", 400}} {
		r := do(t, mux, call{method: "POST", path: "/api/v1/widgets", as: c.as, body: `{"broken`})
		if r.StatusCode != c.status {
			t.Errorf("as %q: %d", c.as, r.StatusCode)
		}
		failure(t, r)
		if got := r.Header.Get("WWW-Authenticate"); (got != "") != (c.status == 401) {
			t.Errorf("as %q: WWW-Authenticate %q", c.as, got)
		}
	}
}

func TestParametersAreChecked(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=501": "limit", "limit=x": "limit", "offset=-1": "offset", "offset=1.5": "offset",
		"limit=99999999999999999999": "limit", "labelSelector=a==b==c": "labelSelector",
		"labelSelector=a&labelSelector=!!": "labelSelector[1]", "limit=%zz": "",
	} {
		r := do(t, mux, call{method: "GET", path: "/api/v1/widgets?" + query, as: "view"})
		f := failure(t, r)
		got := ""
		if f.Details != nil {
			got = f.Details.Causes[0].Field
		}
		if r.StatusCode != 400 || got != field {
			t.Errorf("%s: %d %+v", query, r.StatusCode, f)
		}
	}
	r := do(t, mux, call{method: "GET", path: "/api/v1/widgets?labelSelector=a%3Db,c+in+(d,e)&labelSelector=!f&offset=3", as: "view"})
	if got, want := text(t, r), `{"limit":50,"offset":3,"selector":"a=b,!f,c in (d,e)"}`+"\n"; !strings.Contains(got, `"limit":50,"offset":3`) || len(got) != len(want) {
		t.Error(got)
	}
}

func TestCorrelationIDIsKeptOrReplaced(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	for id, kept := range map[string]bool{
		"abc-1._Z": true, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false, "a b": false, "ä": false, "": false,
	} {
		r := do(t, mux, call{method: "GET", path: "/api/v1/nothing", header: map[string]string{"X-Request-ID": id}})
		if got := r.Header.Get("X-Request-ID"); (got == id) != kept || got == "" {
			t.Errorf("%q became %q", id, got)
		}
	}
}

func TestPanicsAndFaultsStayInside(t *testing.T) {
	var logs strings.Builder
	_, mux := newFixture(t, &logs, nil)
	for _, name := range []string{"panic", "broken", "bad-output"} {
		logs.Reset()
		r := do(t, mux, call{method: "GET", path: "/api/v1/widgets/" + name, as: "view", header: map[string]string{"X-Request-ID": "req-7"}})
		f := failure(t, r)
		if f.Code != 500 || f.Reason != "InternalError" || !strings.Contains(f.Message, "req-7") || strings.Contains(f.Message, "boom") || strings.Contains(f.Message, "disk") {
			t.Errorf("%s: %+v", name, f)
		}
		if !strings.Contains(logs.String(), "req-7") || !strings.Contains(logs.String(), "ERROR") {
			t.Errorf("%s: log %s", name, logs.String())
		}
	}
}

func TestSecretsAreNotLogged(t *testing.T) {
	var logs strings.Builder
	_, mux := newFixture(t, &logs, nil)
	do(t, mux, call{method: "POST", path: "/api/v1/widgets?token=s3cret", as: "edit", body: `{"name":"s3cret","s3cret":1}`,
		header: map[string]string{"Cookie": "session=s3cret", "X-Token": "s3cret"}})
	if strings.Contains(logs.String(), "s3cret") || !strings.Contains(logs.String(), `"status":400`) || !strings.Contains(logs.String(), `"user":"edit"`) {
		t.Error(logs.String())
	}
}

func TestTwoAPIsKeepTheirEnvelopes(t *testing.T) {
	mux := http.NewServeMux()
	logger := slog.New(slog.DiscardHandler)
	New(mux, Config{Logger: logger, Prefixes: []string{"/api/v1"}})
	other := New(mux, Config{Logger: logger, Prefixes: []string{"/api/v1/nodes"}, Envelope: func(_ context.Context, p *Problem) any {
		return map[string]any{"error": map[string]any{"code": p.Reason}}
	}})
	Register(other, Operation{Method: "GET", Path: "/api/v1/nodes/{id}", Access: Public, ID: "get-node"},
		func(_ context.Context, in *struct {
			ID    string `path:"id"`
			Limit int    `query:"limit"`
		}) (*struct{}, error) {
			return nil, fmt.Errorf("get: %w", Conflict("busy"))
		})
	for path, want := range map[string]string{
		"/api/v1/x":               `"status":"failure"`,
		"/api/v1/nodes/a/b":       `{"error":{"code":"NotFound"}}`,
		"/api/v1/nodes/a":         `{"error":{"code":"Conflict"}}`,
		"/api/v1/nodes/a?limit=x": `{"error":{"code":"BadRequest"}}`,
	} {
		if got := text(t, do(t, mux, call{method: "GET", path: path})); !strings.Contains(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
}

func TestDocumentIsStableAndShowsTheEnvelope(t *testing.T) {
	a, _ := newFixture(t, nil, nil)
	b, _ := newFixture(t, nil, nil)
	one, err := a.Document()
	if err != nil {
		t.Fatal(err)
	}
	two, _ := b.Document()
	if string(one) != string(two) {
		t.Error("the same operations gave two documents")
	}
	doc := string(one)
	for _, want := range []string{`"#/components/schemas/Failure"`, `"x-access": "edit"`, `"application/merge-patch+json"`, `"maximum": 500`} {
		if !strings.Contains(doc, want) {
			t.Errorf("the document has no %s", want)
		}
	}
	for _, not := range []string{"ErrorModel", "problem+json", "$schema"} {
		if strings.Contains(doc, not) {
			t.Errorf("the document shows %s", not)
		}
	}
}

func TestUnknownPathsAnswerInTheEnvelope(t *testing.T) {
	mux := http.NewServeMux()
	api := New(mux, Config{Logger: slog.New(slog.DiscardHandler), Prefixes: []string{"/"}})
	Register(api, Operation{Method: "GET", Path: "/api/v1/things", ID: "list-things", Access: Public},
		func(context.Context, *struct{}) (*struct{ Body string }, error) {
			return &struct{ Body string }{"all"}, nil
		})
	for _, path := range []string{
		"/none", "/api/v1/things/", "/api//v1/things", "//api/v1/things", "/api/v1/./things", "/api/v1/x/../things", "/api/v1/things//", "/..",
	} {
		resp := do(t, api.Handler(), call{method: "GET", path: path})
		if f := failure(t, resp); f.Code != 404 || f.Reason != ReasonNotFound {
			t.Errorf("%s: %+v", path, f)
		}
	}
	if resp := do(t, api.Handler(), call{method: "GET", path: "/api/v1/things"}); resp.StatusCode != 200 {
		t.Errorf("a path that exists: %s", resp.Status)
	}
}
