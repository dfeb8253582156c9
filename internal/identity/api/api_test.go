package api_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/identity/api"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

type fixture struct {
	t    testing.TB
	svc  *identity.Service
	rest *rest.API
	mux  *http.ServeMux
	logs *strings.Builder
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: identity.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	f := &fixture{t: t, mux: http.NewServeMux(), logs: &strings.Builder{}}
	logger := slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if f.svc, err = identity.New(identity.Config{Store: s, Logger: logger, BcryptCost: bcrypt.MinCost}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Bootstrap(t.Context(), "pw-admin"); err != nil {
		t.Fatal(err)
	}
	for _, role := range []identity.Role{identity.RoleView, identity.RoleEdit} {
		if _, err := f.svc.CreateUser(t.Context(), identity.UserInput{Name: string(role), Role: role, Password: "pw-" + string(role)}); err != nil {
			t.Fatal(err)
		}
	}
	a := api.New(f.svc)
	f.rest = rest.New(f.mux, rest.Config{
		Title: "Identity", Version: "1", Prefixes: []string{"/api/v1"}, Logger: logger,
		Authenticate: a.Authenticate, Authorize: api.Authorize, Caller: api.Caller, Problem: api.Problem,
	})
	a.Register(f.rest)
	return f
}

type call struct {
	method, path, token, body string
	header                    map[string]string
	tls                       bool
}

func (f *fixture) do(c call) *http.Response {
	f.t.Helper()
	var body io.Reader
	if c.body != "" {
		body = strings.NewReader(c.body)
	}
	r := httptest.NewRequest(c.method, c.path, body)
	if c.tls {
		r.TLS = &tls.ConnectionState{}
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	for k, v := range c.header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, r)
	return w.Result()
}

// want answers the decoded body of a call that must end with the status.
func (f *fixture) want(status int, c call) map[string]any {
	f.t.Helper()
	r := f.do(c)
	b, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	if r.StatusCode != status {
		f.t.Fatalf("%s %s: %d, not %d: %s", c.method, c.path, r.StatusCode, status, b)
	}
	var out map[string]any
	if len(b) > 0 {
		if err := json.Unmarshal(b, &out); err != nil {
			f.t.Fatalf("%s %s: %v: %s", c.method, c.path, err, b)
		}
	}
	if status >= 400 && (out["status"] != "failure" || out["message"] == "" || out["code"] != float64(status)) {
		f.t.Fatalf("%s %s: the error is %s", c.method, c.path, b)
	}
	return out
}

func (f *fixture) login(user string) string {
	f.t.Helper()
	return f.want(200, call{method: "POST", path: "/api/v1/auth/login", body: fmt.Sprintf(`{"username":%q,"password":"pw-%s"}`, user, user)})["token"].(string)
}

func cause(out map[string]any) string {
	details, _ := out["details"].(map[string]any)
	causes, _ := details["causes"].([]any)
	if len(causes) == 0 {
		return ""
	}
	return causes[0].(map[string]any)["field"].(string)
}

func TestLogin(t *testing.T) {
	f := newFixture(t)
	r := f.do(call{method: "POST", path: "/api/v1/auth/login", body: `{"username":"admin","password":"pw-admin"}`, tls: true})
	var got client.Session
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(got.ExpiresAt); got.User != "admin" || got.Role != "admin" || left > 12*time.Hour || left < 11*time.Hour || strings.Count(got.Token, ".") != 2 {
		t.Errorf("%+v", got)
	}
	c := r.Cookies()[0]
	if c.Value != got.Token || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || !c.Secure || c.Path != "/" {
		t.Errorf("cookie %s", c)
	}
	me := f.want(200, call{method: "GET", path: "/api/v1/auth/whoami", token: got.Token})
	if me["user"] != "admin" || me["role"] != "admin" || me["kind"] != "session" {
		t.Errorf("whoami: %v", me)
	}
	f.want(204, call{method: "POST", path: "/api/v1/auth/logout", token: got.Token})
	f.want(401, call{method: "GET", path: "/api/v1/auth/whoami", token: got.Token})
	if strings.Contains(f.logs.String(), got.Token) || strings.Contains(f.logs.String(), "pw-admin") {
		t.Error("the log holds a secret")
	}
}

func TestLoginRefuses(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		body   string
		status int
		field  string
	}{
		{`{"username":"admin","password":"wrong"}`, 401, ""},
		{`{"username":"nobody","password":"pw-admin"}`, 401, ""},
		{`{}`, 401, ""},
		{`{"username":"admin","pasword":"x"}`, 400, "pasword"},
		{`{"username":1}`, 400, "username"},
		{`{"username":"` + strings.Repeat("x", 20<<10) + `"}`, 413, ""},
		{``, 400, ""},
	} {
		out := f.want(c.status, call{method: "POST", path: "/api/v1/auth/login", body: c.body})
		if got := cause(out); got != c.field {
			t.Errorf("%.60s: %v", c.body, out)
		}
	}
	for range 5 {
		f.do(call{method: "POST", path: "/api/v1/auth/login", body: `{"username":"admin","password":"wrong"}`})
	}
	r := f.do(call{method: "POST", path: "/api/v1/auth/login", body: `{"username":"admin","password":"pw-admin"}`})
	if r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || r.Header.Get("Retry-After") == "0" {
		t.Errorf("%d, Retry-After %q", r.StatusCode, r.Header.Get("Retry-After"))
	}
}

func TestCookiesNeedTheSameOriginToWrite(t *testing.T) {
	f := newFixture(t)
	cookie := api.CookieName + "=" + f.login("admin")
	body := `{"metadata":{"name":"eve"},"spec":{"role":"admin","password":"x"}}`
	for name, c := range map[string]struct {
		header map[string]string
		status int
	}{
		"neither header":      {nil, 403},
		"cross-site":          {map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"same-site":           {map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"foreign origin":      {map[string]string{"Origin": "https://evil.example"}, 403},
		"null origin":         {map[string]string{"Origin": "null"}, 403},
		"another port":        {map[string]string{"Origin": "https://example.com:8443"}, 403},
		"same-origin":         {map[string]string{"Sec-Fetch-Site": "same-origin"}, 201},
		"origin is the host":  {map[string]string{"Origin": "https://example.com"}, 409},
		"authorization wins":  {map[string]string{"Authorization": "Bearer nonsense", "Sec-Fetch-Site": "same-origin"}, 401},
		"basic authorization": {map[string]string{"Authorization": "Basic YWRtaW46cHctYWRtaW4=", "Sec-Fetch-Site": "same-origin"}, 401},
	} {
		if name == "origin is the host" {
			continue // after its pair, below
		}
		header := map[string]string{"Cookie": cookie}
		for k, v := range c.header {
			header[k] = v
		}
		if r := f.do(call{method: "POST", path: "/api/v1/users", body: body, header: header}); r.StatusCode != c.status {
			t.Errorf("%s: %d", name, r.StatusCode)
		}
	}
	f.want(409, call{method: "POST", path: "/api/v1/users", body: body, header: map[string]string{"Cookie": cookie, "Origin": "https://example.com"}})
	f.want(200, call{method: "GET", path: "/api/v1/users", header: map[string]string{"Cookie": cookie}})
	if r := f.do(call{method: "POST", path: "/api/v1/auth/login", body: `{"username":"admin","password":"pw-admin"}`, header: map[string]string{"Sec-Fetch-Site": "cross-site"}}); r.StatusCode != 403 {
		t.Errorf("a login from another site: %d", r.StatusCode)
	}
	r := f.do(call{method: "POST", path: "/api/v1/auth/logout", header: map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}})
	if r.StatusCode != 204 || len(r.Cookies()) != 1 || r.Cookies()[0].MaxAge >= 0 {
		t.Errorf("logout: %d %v", r.StatusCode, r.Cookies())
	}
	f.want(401, call{method: "GET", path: "/api/v1/users", header: map[string]string{"Cookie": cookie}})
}

func TestUsers(t *testing.T) {
	f := newFixture(t)
	admin := f.login("admin")
	r := f.do(call{method: "POST", path: "/api/v1/users", token: admin,
		body: `{"metadata":{"name":"ann","labels":{"team":"a"}},"spec":{"role":"edit","password":"pw-ann"},"status":{"activeTokens":9}}`})
	if r.StatusCode != 201 || r.Header.Get("Location") != "/api/v1/users/ann" {
		t.Fatalf("%d %q", r.StatusCode, r.Header.Get("Location"))
	}
	f.want(409, call{method: "POST", path: "/api/v1/users", token: admin, body: `{"metadata":{"name":"ann"},"spec":{"role":"edit","password":"x"}}`})
	ann := f.login("ann")

	got := f.want(200, call{method: "GET", path: "/api/v1/users/ann", token: admin})
	spec, status := got["spec"].(map[string]any), got["status"].(map[string]any)
	if diff := cmp.Diff(map[string]any{"role": "edit"}, spec); diff != "" {
		t.Error(diff)
	}
	if status["activeTokens"] != 0.0 || status["lastLogin"] == nil {
		t.Errorf("status %v", status)
	}
	// Sent back unchanged: accepted, the password stays, the session goes on.
	same, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	again := f.want(200, call{method: "PUT", path: "/api/v1/users/ann", token: admin, body: string(same)})
	if diff := cmp.Diff(got, again); diff != "" {
		t.Error(diff)
	}
	f.want(200, call{method: "GET", path: "/api/v1/auth/whoami", token: ann})
	f.login("ann")

	got = f.want(200, call{method: "GET", path: "/api/v1/users/ann", token: admin})
	version := int64(got["metadata"].(map[string]any)["resourceVersion"].(float64))
	for name, c := range map[string]struct {
		body   string
		status int
		field  string
	}{
		"no version":    {`{"metadata":{"name":"ann"},"spec":{"role":"view"}}`, 400, "metadata.resourceVersion"},
		"stale version": {`{"metadata":{"name":"ann","resourceVersion":1},"spec":{"role":"view"}}`, 409, ""},
		"another uid":   {fmt.Sprintf(`{"metadata":{"uid":"x","resourceVersion":%d},"spec":{"role":"view"}}`, version), 409, ""},
		"another name":  {fmt.Sprintf(`{"metadata":{"name":"bob","resourceVersion":%d},"spec":{"role":"view"}}`, version), 400, "metadata.name"},
		"finalizers":    {fmt.Sprintf(`{"metadata":{"finalizers":["x"],"resourceVersion":%d},"spec":{"role":"view"}}`, version), 400, "metadata.finalizers"},
		"unknown role":  {fmt.Sprintf(`{"metadata":{"resourceVersion":%d},"spec":{"role":"root"}}`, version), 400, "spec.role"},
		"unknown field": {fmt.Sprintf(`{"metadata":{"resourceVersion":%d},"spec":{"rol":"view"}}`, version), 400, "spec.rol"},
		"long password": {fmt.Sprintf(`{"metadata":{"resourceVersion":%d},"spec":{"role":"view","password":%q}}`, version, strings.Repeat("x", 73)), 400, "spec.password"},
	} {
		out := f.want(c.status, call{method: "PUT", path: "/api/v1/users/ann", token: admin, body: c.body})
		if cause(out) != c.field {
			t.Errorf("%s: %v", name, out)
		}
		if name == "stale version" && out["message"] != "the object has been modified; please apply your changes to the latest version" {
			t.Errorf("%v", out["message"])
		}
	}
	f.want(404, call{method: "PUT", path: "/api/v1/users/none", token: admin, body: `{"metadata":{"resourceVersion":1},"spec":{"role":"view"}}`})

	f.want(200, call{method: "PUT", path: "/api/v1/users/ann", token: admin, body: fmt.Sprintf(`{"metadata":{"resourceVersion":%d},"spec":{"role":"view","password":"new"}}`, version)})
	f.want(401, call{method: "GET", path: "/api/v1/auth/whoami", token: ann})
	f.want(200, call{method: "POST", path: "/api/v1/auth/login", body: `{"username":"ann","password":"new"}`})

	list := f.want(200, call{method: "GET", path: "/api/v1/users?limit=2&offset=1", token: admin})
	if list["total"] != 4.0 || len(list["items"].([]any)) != 2 {
		t.Errorf("%v", list)
	}
	if list := f.want(200, call{method: "GET", path: "/api/v1/users?labelSelector=team%3Da", token: admin}); list["total"] != 0.0 {
		// The PUT above left the labels out: it replaced them.
		t.Errorf("%v", list)
	}
	gone := f.want(200, call{method: "DELETE", path: "/api/v1/users/ann", token: admin})
	if gone["metadata"].(map[string]any)["name"] != "ann" {
		t.Errorf("%v", gone)
	}
	f.want(404, call{method: "DELETE", path: "/api/v1/users/ann", token: admin})
	f.want(409, call{method: "DELETE", path: "/api/v1/users/admin", token: admin})
}

func TestHashesNeverLeave(t *testing.T) {
	f := newFixture(t)
	admin := f.login("admin")
	hash, err := bcrypt.GenerateFromPassword([]byte("pw-ann"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	calls := []call{
		{method: "POST", path: "/api/v1/users", body: fmt.Sprintf(`{"metadata":{"name":"ann"},"spec":{"role":"view","passwordHash":%q}}`, hash)},
		{method: "GET", path: "/api/v1/users/ann"}, {method: "GET", path: "/api/v1/users"},
		{method: "POST", path: "/api/v1/users", body: fmt.Sprintf(`{"metadata":{"name":"bob"},"spec":{"role":"view","password":"pw-ann","passwordHash":%q}}`, hash)},
		{method: "DELETE", path: "/api/v1/users/ann"},
	}
	for _, c := range calls {
		c.token = admin
		b, err := io.ReadAll(f.do(c).Body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), string(hash)) || strings.Contains(string(b), "passwordHash\":") || strings.Contains(string(b), "pw-ann") {
			t.Errorf("%s %s: %s", c.method, c.path, b)
		}
	}
}

func TestTokens(t *testing.T) {
	f := newFixture(t)
	admin := f.login("admin")
	path := "/api/v1/users/view/tokens"
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	made := f.want(201, call{method: "POST", path: path, token: admin,
		body: fmt.Sprintf(`{"metadata":{"name":"ci"},"spec":{"expiresAt":%q}}`, expires.Format(time.RFC3339))})
	token := made["token"].(string)
	meta := made["metadata"].(map[string]any)
	if meta["name"] != "ci" || meta["labels"].(map[string]any)["rezuscloud.io/user"] != "view" || made["spec"].(map[string]any)["expiresAt"] != expires.Format(time.RFC3339) {
		t.Errorf("%v", made)
	}
	me := f.want(200, call{method: "GET", path: "/api/v1/auth/whoami", token: token})
	if me["user"] != "view" || me["kind"] != "token" || me["token"] != "ci" {
		t.Errorf("%v", me)
	}
	f.want(400, call{method: "POST", path: "/api/v1/auth/logout", token: token})
	for _, p := range []string{path, path + "/ci"} {
		b, _ := io.ReadAll(f.do(call{method: "GET", path: p, token: admin}).Body)
		if strings.Contains(string(b), token) || strings.Contains(string(b), "Hash") || !strings.Contains(string(b), `"ci"`) {
			t.Errorf("%s: %s", p, b)
		}
	}
	if u := f.want(200, call{method: "GET", path: "/api/v1/users/view", token: admin}); u["status"].(map[string]any)["activeTokens"] != 1.0 {
		t.Errorf("%v", u)
	}
	for body, want := range map[string]string{
		`{"metadata":{"name":"x"},"spec":{"expiresAt":"2001-01-01T00:00:00Z"}}`:        "spec.expiresAt",
		`{"metadata":{"name":"x"},"spec":{"expiresAt":"0001-01-01T00:00:00Z"}}`:        "spec.expiresAt",
		`{"metadata":{"name":"x"},"spec":{"expiresAt":"tomorrow"}}`:                    "spec.expiresAt",
		`{"metadata":{"name":"x"},"spec":{"expiresAt":1}}`:                             "spec.expiresAt",
		`{"metadata":{"name":"X Y"}}`:                                                  "metadata.name",
		`{"metadata":{"name":"x","labels":{"rezuscloud.io/user":"admin"}}}`:            "metadata.labels[rezuscloud.io/user]",
		`{"metadata":{"name":"x"},"spec":{"expiresAt":"2099-01-01T00:00:00Z","a":{}}}`: "spec.a",
	} {
		if out := f.want(400, call{method: "POST", path: path, token: admin, body: body}); cause(out) != want {
			t.Errorf("%s: %v", body, out)
		}
	}
	f.want(409, call{method: "POST", path: path, token: admin, body: `{"metadata":{"name":"ci"}}`})
	f.want(404, call{method: "POST", path: "/api/v1/users/none/tokens", token: admin, body: `{"metadata":{"name":"ci"}}`})
	f.want(404, call{method: "GET", path: "/api/v1/users/none/tokens", token: admin})
	if made := f.want(201, call{method: "POST", path: path, token: admin, body: `{}`}); !strings.HasPrefix(made["metadata"].(map[string]any)["name"].(string), "token-") {
		t.Errorf("%v", made)
	}
	f.want(200, call{method: "DELETE", path: path + "/ci", token: admin})
	f.want(404, call{method: "DELETE", path: path + "/ci", token: admin})
	f.want(401, call{method: "GET", path: "/api/v1/auth/whoami", token: token})
}

// TestEveryRouteAndRole goes through all operations of the document: nobody may do more than its access says.
func TestEveryRouteAndRole(t *testing.T) {
	f := newFixture(t)
	rank := map[string]int{"public": 0, "view": 1, "edit": 2, "admin": 3}
	want := map[string]string{
		"login": "public", "logout": "view", "whoami": "view",
		"list-users": "admin", "create-user": "admin", "get-user": "admin", "update-user": "admin", "delete-user": "admin",
		"list-tokens": "admin", "create-token": "admin", "get-token": "admin", "revoke-token": "admin",
	}
	seen := map[string]bool{}
	for path, item := range f.rest.OpenAPI().Paths {
		for method, op := range map[string]any{"GET": item.Get, "POST": item.Post, "PUT": item.Put, "DELETE": item.Delete, "PATCH": item.Patch} {
			b, err := json.Marshal(op)
			if err != nil {
				t.Fatal(err)
			}
			var doc struct {
				OperationID string `json:"operationId"`
				Access      string `json:"x-access"`
			}
			if err := json.Unmarshal(b, &doc); err != nil {
				t.Fatal(err)
			}
			if doc.OperationID == "" {
				continue
			}
			seen[doc.OperationID] = true
			if want[doc.OperationID] != doc.Access {
				t.Errorf("%s has access %q, not %q", doc.OperationID, doc.Access, want[doc.OperationID])
			}
			url := strings.NewReplacer("{name}", "nobody", "{id}", "nothing").Replace(path)
			for _, who := range []string{"", "view", "edit", "admin"} {
				token := ""
				if who != "" {
					token = f.login(who)
				}
				r := f.do(call{method: method, path: url, token: token, body: `{"unknown":1}`})
				refused := r.StatusCode == 403 || r.StatusCode == 401
				allowed := rank[who] >= rank[doc.Access] && (who != "" || doc.Access == "public")
				if refused == allowed || who == "" && !allowed && r.StatusCode != 401 {
					t.Errorf("%s as %q: %d", doc.OperationID, who, r.StatusCode)
				}
			}
		}
	}
	if len(seen) != len(want) {
		t.Errorf("saw %v", seen)
	}
}
