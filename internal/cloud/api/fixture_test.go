package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/api"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/identity"
	identityapi "freehold.dev/freehold/internal/identity/api"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// plane is the API over real HTTP, with the real store, identity, provider modules and Talos machinery.
type plane struct {
	t       testing.TB
	url     string
	store   store.Store
	tokens  map[identity.Role]string
	secrets *fakeSecrets
	rest    *rest.API
	handler http.Handler
}

// fakeSecrets hands out secrets of tenants that a test says to have been applied.
type fakeSecrets struct {
	mu      sync.Mutex
	applied map[string]*talos.Secrets
}

func (f *fakeSecrets) TenantSecrets(_ context.Context, tenant string) (*talos.Secrets, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.applied[tenant]; s != nil {
		return s, nil
	}
	return nil, store.ErrNotFound
}

// someSecrets take seconds to make: the tests share them.
var someSecrets = sync.OnceValues(func() (*talos.Secrets, error) { return talos.NewSecrets("1.12.6") })

func (f *fakeSecrets) apply(t testing.TB, tenant string) *talos.Secrets {
	t.Helper()
	s, err := someSecrets()
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied[tenant] = s
	return s
}

func newPlane(t testing.TB, options ...func(*api.Config)) *plane {
	t.Helper()
	ctx := t.Context()
	quiet := slog.New(slog.DiscardHandler)
	st, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: append(cloud.Kinds(), identity.Kinds()...), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	users, err := identity.New(identity.Config{Store: st, Logger: quiet, BcryptCost: 4})
	if err != nil {
		t.Fatal(err)
	}
	who := identityapi.New(users)
	mux := http.NewServeMux()
	restAPI := rest.New(mux, rest.Config{
		Title: "Freehold", Version: "test", Prefixes: []string{"/api/v1"}, Logger: quiet,
		Authenticate: who.Authenticate, Authorize: identityapi.Authorize, Caller: identityapi.Caller,
	})
	p := &plane{t: t, store: st, tokens: map[identity.Role]string{}, secrets: &fakeSecrets{applied: map[string]*talos.Secrets{}}, rest: restAPI, handler: mux}
	modules := provider.Default()
	config := api.Config{
		Store: st, Rules: cloud.Rules{Talos: api.TalosRules{}, Providers: modules}, Secrets: p.secrets, Logger: quiet,
		Caller: func(ctx context.Context) api.Caller {
			c := identity.FromContext(ctx)
			return api.Caller{User: c.User, Admin: c.Role == identity.RoleAdmin}
		},
	}
	for _, o := range options {
		o(&config)
	}
	api.Register(restAPI, config)
	if err := api.PublishProviders(ctx, st, modules.Objects()); err != nil {
		t.Fatal(err)
	}
	for _, role := range []identity.Role{identity.RoleAdmin, identity.RoleEdit, identity.RoleView} {
		name := string(role) + "-user"
		if _, err := users.CreateUser(ctx, identity.UserInput{Name: name, Role: role, Password: "correct horse battery"}); err != nil {
			t.Fatal(err)
		}
		login, err := users.Login(ctx, name, "correct horse battery", netip.MustParseAddr("127.0.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		p.tokens[role] = login.Token
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// answer is what a request got.
type answer struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   []byte
}

type object = map[string]any

// send makes a request; body is JSON text, or a value to encode.
func (p *plane) send(role identity.Role, method, path string, body any, header ...string) *answer {
	p.t.Helper()
	resp := p.open(p.t.Context(), role, method, path, body, header...)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return &answer{t: p.t, what: method + " " + path, status: resp.StatusCode, header: resp.Header, body: data}
}

func (p *plane) open(ctx context.Context, role identity.Role, method, path string, body any, header ...string) *http.Response {
	p.t.Helper()
	var content io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		content = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			p.t.Fatal(err)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, content)
	if err != nil {
		p.t.Fatal(err)
	}
	if content != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if role != "" {
		req.Header.Set("Authorization", "Bearer "+p.tokens[role])
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp
}

func (p *plane) get(path string) *answer { p.t.Helper(); return p.send("view", "GET", path, nil) }
func (p *plane) post(path string, body any) *answer {
	p.t.Helper()
	return p.send("edit", "POST", path, body)
}
func (p *plane) put(path string, body any) *answer {
	p.t.Helper()
	return p.send("edit", "PUT", path, body)
}
func (p *plane) patch(path string, body any) *answer {
	p.t.Helper()
	return p.send("edit", "PATCH", path, body, "Content-Type", "application/merge-patch+json")
}
func (p *plane) delete(path string) *answer { p.t.Helper(); return p.send("edit", "DELETE", path, nil) }

func (a *answer) want(status int) *answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d: %s", a.what, a.status, status, a.body)
	}
	return a
}

func (a *answer) object() object {
	a.t.Helper()
	var o object
	if err := json.Unmarshal(a.body, &o); err != nil {
		a.t.Fatalf("%s: %v: %s", a.what, err, a.body)
	}
	return o
}

// field follows a dotted path.
func (a *answer) field(path string) any { a.t.Helper(); return dig(a.object(), path) }

func dig(v any, path string) any {
	for _, name := range strings.Split(path, ".") {
		m, _ := v.(object)
		v = m[name]
	}
	return v
}

// refused checks the error envelope, and the fields that the causes name.
func (a *answer) refused(status int, reason string, fields ...string) *answer {
	a.t.Helper()
	a.want(status)
	var e struct {
		Status, Message, Reason string
		Code                    int
		Details                 struct {
			Causes []struct{ Field, Message string }
		}
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		a.t.Fatalf("%s: the error envelope: %v: %s", a.what, err, a.body)
	}
	if e.Status != "failure" || e.Code != status || e.Reason != reason || e.Message == "" {
		a.t.Errorf("%s: envelope %s, want reason %s", a.what, a.body, reason)
	}
	var got []string
	for _, c := range e.Details.Causes {
		got = append(got, c.Field)
		if c.Message == "" {
			a.t.Errorf("%s: cause %s has no message", a.what, c.Field)
		}
	}
	for _, f := range fields {
		if !slices.Contains(got, f) {
			a.t.Errorf("%s: causes name %q, want %q: %s", a.what, got, f, a.body)
		}
	}
	if len(fields) > 0 && len(got) != len(fields) {
		a.t.Errorf("%s: causes name %q, want %q", a.what, got, fields)
	}
	return a
}

// revision of the store: what does not change it stored no object.
func (p *plane) revision() int64 {
	p.t.Helper()
	var n int64
	if err := p.store.View(p.t.Context(), func(r store.Reader) error { n = r.Revision(); return nil }); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// update changes stored objects as a controller does.
func (p *plane) update(f func(store.Tx) error) {
	p.t.Helper()
	if err := p.store.Update(p.t.Context(), f); err != nil {
		p.t.Fatal(err)
	}
}

func tenantBody(name string) object {
	return object{
		"metadata": object{"name": name, "labels": object{"rezuscloud.io/environment": "prod"}, "annotations": object{"rezuscloud.io/description": "Production cluster"}},
		"spec": object{
			"kubernetesVersion": "1.35.0", "talosVersion": "1.12.6",
			"controlPlaneEndpoint": "https://" + name + ".k8s.example.com:6443",
			"podNetwork":           []string{"10.244.0.0/16"}, "serviceNetwork": []string{"10.96.0.0/12"},
		},
	}
}

func groupBody(role string, count int) object {
	return object{
		"metadata": object{"labels": object{"rezuscloud.io/role": role}},
		"spec":     object{"count": count, "providerClass": "metal"},
	}
}

// bind makes a stored machine one of a node group, as the tenant's controller does.
func (p *plane) bind(id, tenant, group, role string) {
	p.t.Helper()
	p.update(func(tx store.Tx) error {
		m, err := cloud.Machines.Get(tx, id)
		if err != nil {
			return err
		}
		if m.Labels == nil {
			m.Labels = map[string]string{}
		}
		m.Labels[cloud.LabelTenant], m.Labels[cloud.LabelNodeGroup] = tenant, group
		m.Labels[cloud.LabelRole], m.Labels[cloud.LabelProvider] = role, "metal"
		m.Annotations = map[string]string{cloud.AnnotationSlot: "0"}
		m.Finalizers = []string{cloud.FinalizerTeardown}
		return cloud.Machines.Update(tx, m)
	})
}

// machine registers a machine and answers its name.
func (p *plane) machine(address string) string {
	p.t.Helper()
	body := object{"spec": object{"managementAddress": address}}
	return p.post("/api/v1/machines", body).want(201).field("metadata.name").(string)
}
