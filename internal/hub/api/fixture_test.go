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
	"sync/atomic"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/audit"
	auditapi "freehold.dev/freehold/internal/audit/api"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/api"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/identity"
	identityapi "freehold.dev/freehold/internal/identity/api"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// patience is how long a test waits for what has to happen.
const patience = time.Minute

// clock is set by the test.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// live answers what a test says that a node would.
type live struct {
	reported map[string]time.Time
	metrics  map[string]api.StreamMetrics
	logs     func(context.Context, string, string, api.LogQuery) (agentapi.LogAnswer, error)
}

func (l *live) LastReport(node string) (time.Time, bool) { at, ok := l.reported[node]; return at, ok }

func (l *live) Metrics(node, stream string) (api.StreamMetrics, bool) {
	m, ok := l.metrics[node+"/"+stream]
	return m, ok
}

func (l *live) Logs(ctx context.Context, node, stream string, q api.LogQuery) (agentapi.LogAnswer, error) {
	if l.logs == nil {
		return agentapi.LogAnswer{}, api.ErrNodeUnavailable
	}
	return l.logs(ctx, node, stream, q)
}

// linter finds the fault "bad", and breaks over "broken".
type linter struct{}

func (linter) Lint(_ context.Context, _ hub.Engine, content string) ([]hub.Lint, error) {
	switch {
	case strings.Contains(content, "broken"):
		return nil, io.ErrUnexpectedEOF
	case strings.Contains(content, "bad"):
		return []hub.Lint{{Line: 2, Column: 3, Message: "bad is not recognised"}, {Line: 4, Column: 1, Message: "worse"}}, nil
	}
	return nil, nil
}

// faulty is a store that refuses updates, or views, with an error when it has one.
type faulty struct {
	store.Store
	update, view atomic.Pointer[error]
}

func (f *faulty) Update(ctx context.Context, do func(store.Tx) error) error {
	if err := f.update.Load(); err != nil {
		return *err
	}
	return f.Store.Update(ctx, do)
}

func (f *faulty) View(ctx context.Context, do func(store.Reader) error) error {
	if err := f.view.Load(); err != nil {
		return *err
	}
	return f.Store.View(ctx, do)
}

// plane is the API over real HTTP, with the real store, ledger and identity.
type plane struct {
	t       testing.TB
	url     string
	store   *faulty
	ledger  *ledger.Ledger
	live    *live
	clock   *clock
	rest    *rest.API
	tokens  map[identity.Role]string
	reports map[string]int64
}

func newPlane(t testing.TB, options ...func(*api.Config)) *plane {
	t.Helper()
	return newPlaneIn(t, t.TempDir(), options...)
}

func newPlaneIn(t testing.TB, dir string, options ...func(*api.Config)) *plane {
	t.Helper()
	ctx := t.Context()
	quiet := slog.New(slog.DiscardHandler)
	st, err := sqlite.Open(ctx, filepath.Join(dir, "store.db"), sqlite.Options{Kinds: append(hub.Kinds(), identity.Kinds()...), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	root, err := secrets.Open(ctx, st, filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	users, err := identity.New(identity.Config{Store: st, Logger: quiet, BcryptCost: 4})
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{
		t: t, store: &faulty{Store: st}, clock: &clock{at: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)},
		live:   &live{reported: map[string]time.Time{}, metrics: map[string]api.StreamMetrics{}},
		tokens: map[identity.Role]string{}, reports: map[string]int64{},
	}
	p.ledger = ledger.New(ledger.Config{Now: p.clock.now})
	who := identityapi.New(users)
	recorder := audit.NewRecorder(st, quiet, p.clock.now)
	p.background(recorder.Run)

	mux := http.NewServeMux()
	base := rest.Config{
		Title: "Freehold", Version: "test", Prefixes: []string{"/"}, Logger: quiet,
		Authenticate: who.Authenticate, Authorize: identityapi.Authorize, Caller: identityapi.Caller,
	}
	main := rest.New(mux, base)
	auditapi.Register(main, st)
	base.Document = main
	p.rest = rest.New(mux, api.Configure(base, recorder.Record))
	config := api.Config{
		Store: p.store, Ledger: p.ledger, Linter: linter{}, Live: p.live, Sealer: root, Now: p.clock.now,
		Caller: func(ctx context.Context) api.Caller {
			c := identity.FromContext(ctx)
			return api.Caller{User: c.User, Admin: c.Role == identity.RoleAdmin}
		},
	}
	for _, o := range options {
		o(&config)
	}
	api.Register(p.rest, config)
	for _, role := range []identity.Role{identity.RoleAdmin, identity.RoleEdit, identity.RoleView} {
		p.addUser(users, role, string(role)+"-user")
	}
	server := httptest.NewServer(main.Handler(p.rest))
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

func (p *plane) addUser(users *identity.Service, role identity.Role, name string) {
	p.t.Helper()
	ctx := p.t.Context()
	if _, err := users.CreateUser(ctx, identity.UserInput{Name: name, Role: role, Password: "correct horse battery"}); err != nil {
		p.t.Fatal(err)
	}
	login, err := users.Login(ctx, name, "correct horse battery", netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.tokens[role] = login.Token
}

// background runs until the test ends.
func (p *plane) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = run(ctx) }()
	p.t.Cleanup(func() { cancel(); <-done })
}

type object = map[string]any

// answer is what a request got.
type answer struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   []byte
}

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
	if !strings.HasPrefix(path, "/api/") {
		path = "/api/v1" + path
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
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp
}

func (p *plane) get(path string) *answer { p.t.Helper(); return p.send("view", "GET", path, nil) }
func (p *plane) post(path string, body any, header ...string) *answer {
	p.t.Helper()
	return p.send("edit", "POST", path, body, header...)
}
func (p *plane) put(path string, body any, header ...string) *answer {
	p.t.Helper()
	return p.send("edit", "PUT", path, body, header...)
}
func (p *plane) delete(path string, header ...string) *answer {
	p.t.Helper()
	return p.send("edit", "DELETE", path, nil, header...)
}

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

// field follows a dotted path; text is a field that is one.
func (a *answer) field(path string) any   { a.t.Helper(); return dig(a.object(), path) }
func (a *answer) text(path string) string { a.t.Helper(); s, _ := a.field(path).(string); return s }

func dig(v any, path string) any {
	for _, name := range strings.Split(path, ".") {
		m, _ := v.(object)
		v = m[name]
	}
	return v
}

// column lists a field of the items.
func (a *answer) column(path string) []string {
	a.t.Helper()
	out := []string{}
	items, _ := a.field("items").([]any)
	for _, item := range items {
		s, _ := dig(item, path).(string)
		out = append(out, s)
	}
	return out
}

// refused checks the problem envelope to the letter, and the fields that its details name.
func (a *answer) refused(status int, code string, fields ...string) *answer {
	a.t.Helper()
	a.want(status)
	var e struct {
		Code          string          `json:"code"`
		Message       string          `json:"message"`
		CorrelationID string          `json:"correlation_id"`
		Details       json.RawMessage `json:"details"`
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		a.t.Fatalf("%s: the problem envelope: %v: %s", a.what, err, a.body)
	}
	if e.Code != code || e.Message == "" || e.CorrelationID == "" || e.CorrelationID != a.header.Get("X-Correlation-ID") {
		a.t.Errorf("%s: %s, want code %s and the correlation id %q", a.what, a.body, code, a.header.Get("X-Correlation-ID"))
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		a.t.Errorf("%s: Content-Type %q", a.what, got)
	}
	if len(fields) == 0 {
		return a
	}
	var details struct {
		Fields []struct{ Field, Message string }
	}
	if err := json.Unmarshal(e.Details, &details); err != nil {
		a.t.Fatalf("%s: details %s: %v", a.what, e.Details, err)
	}
	var got []string
	for _, f := range details.Fields {
		got = append(got, f.Field)
		if f.Message == "" {
			a.t.Errorf("%s: the fault of %s says nothing", a.what, f.Field)
		}
	}
	slices.Sort(got)
	slices.Sort(fields)
	if !slices.Equal(got, fields) {
		a.t.Errorf("%s: details name %q, want %q: %s", a.what, got, fields, a.body)
	}
	return a
}

// update changes stored records as the hub's other parts do.
func (p *plane) update(f func(store.Tx) error) {
	p.t.Helper()
	if err := p.store.Store.Update(p.t.Context(), f); err != nil {
		p.t.Fatal(err)
	}
}

// config publishes a content, and answers its version.
func (p *plane) config(content string) string {
	p.t.Helper()
	a := p.post("/config-versions", object{"engine": "process", "content": content})
	if a.status != 200 {
		a.want(201)
	}
	return a.text("config_version")
}

// boot of a test's agents.
var boot = hub.Boot{ID: "boot-1", Seq: 1}

// node registers and enrols a node; its agent has reported that it runs nothing.
func (p *plane) node(id string) {
	p.t.Helper()
	token := p.post("/nodes", object{"node_id": id}).want(201).text("enrolment_token")
	p.update(func(tx store.Tx) error {
		_, err := p.ledger.Enrol(tx, &agentapi.EnrolRequest{
			NodeID: id, EnrolmentToken: token, ProtocolVersion: agentapi.ProtocolVersion, AgentVersion: "1.0", PublicKey: "key-of-" + id,
			Labels: map[string]string{"arch": "amd64"}, Capabilities: []string{"process"}, BootID: boot.ID, BootSeq: boot.Seq,
		})
		return err
	})
	p.report(id, &agentapi.Report{Full: true})
}

// report is what the node's agent sends.
func (p *plane) report(id string, r *agentapi.Report) {
	p.t.Helper()
	p.reports[id]++
	r.BootID, r.BootSeq, r.ReportSeq = boot.ID, boot.Seq, p.reports[id]
	p.update(func(tx store.Tx) error {
		_, err := p.ledger.Report(tx, id, r)
		return err
	})
}

// poll is what the node's agent is told to do.
func (p *plane) poll(id string) (commands []agentapi.Command) {
	p.t.Helper()
	p.update(func(tx store.Tx) (err error) {
		commands, _, err = p.ledger.Dispatch(tx, id, boot, 100)
		return err
	})
	return commands
}

// obey polls, and reports that every command was carried out.
func (p *plane) obey(id string) {
	p.t.Helper()
	r := &agentapi.Report{}
	for _, c := range p.poll(id) {
		s := agentapi.StreamReport{StreamID: c.StreamID, State: c.State, Generation: c.Generation, ConfigVersion: c.ConfigVersion}
		if c.ActionID != "" {
			s.CompletedActions = []string{c.ActionID}
		}
		r.Streams = append(r.Streams, s)
		r.Attempts = append(r.Attempts, agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.Succeeded})
	}
	p.report(id, r)
}

// run declares a stream running, and answers the declaration.
func (p *plane) run(node, stream, config string) *answer {
	p.t.Helper()
	return p.put("/nodes/"+node+"/streams/"+stream+"/desired-state", object{"state": "running", "config_version": config}).want(202)
}

// eventually waits for a condition.
func (p *plane) eventually(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			p.t.Fatalf("waited in vain: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
