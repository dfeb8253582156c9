package model

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"time"

	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/agentapi"
	hubapi "freehold.dev/freehold/internal/hub/api"
	"freehold.dev/freehold/internal/hub/controller"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
)

var discard = slog.New(slog.DiscardHandler)

// hubProcess is the hub's program: what is in memory goes with each start, the file stays.
type hubProcess struct {
	w     *world
	path  string
	store *crashStore
	plane *controller.Plane
	// drift is by how much the wall clock is wrong.
	drift            time.Duration
	operators, agent http.Handler
	starts           int
	// restored: its records went back in time.
	restored bool
}

func newHub(w *world) *hubProcess {
	h := &hubProcess{w: w, path: filepath.Join(w.dir, "hub.db")}
	h.start()
	return h
}

func (h *hubProcess) close() { _ = h.store.Close() }

// now is the wall clock.
func (h *hubProcess) now() time.Time { return h.w.steady().Add(h.drift) }

// start is as cmd/freehold wires it, but for who operators are.
func (h *hubProcess) start() {
	w := h.w
	w.t.Helper()
	h.starts++
	h.store = openStore(w, h.path, hub.Kinds())
	root, err := secrets.Open(ctx, h.store.Store, filepath.Join(w.dir, "root"))
	if err != nil {
		w.t.Fatalf("open the root secret: %v", err)
	}
	// What is not stored is measured with a clock that nobody sets.
	live := presence.New(w.steady)
	book := ledger.New(ledger.Config{Now: h.now, Jitter: func() float64 { return 0.5 }, NewID: func() string { return w.id("h") }})
	if h.plane, err = controller.New(controller.Config{Store: h.store, Ledger: book, Presence: live, Logger: discard, Now: h.now}); err != nil {
		w.t.Fatalf("make the controllers: %v", err)
	}
	agents, err := agentapi.New(http.NewServeMux(), agentapi.Config{
		Store: h.store, Ledger: book, Presence: live, Key: root.Key(agentapi.SessionKeyPurpose), Version: "1.0.0", Logger: discard, Now: h.now,
		Limits: agentapi.Limits{Failures: 1 << 60, Every: 1}, Spread: -1, // its allowances are not what is tested, and need a steady clock
	})
	if err != nil {
		w.t.Fatalf("make the agents' API: %v", err)
	}
	h.agent = agents.Handler()
	api := rest.New(http.NewServeMux(), hubapi.Configure(rest.Config{
		Title: "Hub", Version: "1.0.0", Logger: discard, Authenticate: authenticate,
		Authorize: func(context.Context, rest.Access) error { return nil },
	}, func(audit.Entry) {}))
	hubapi.Register(api, hubapi.Config{
		Store: h.store, Ledger: book, Linter: tolerant{}, Live: live, Sealer: root, Now: h.now,
		Caller: func(context.Context) hubapi.Caller { return hubapi.Caller{User: "ann", Admin: true} },
		Limit:  hubapi.Limit{Burst: 1 << 60, PerSecond: float64(time.Second)},
	})
	h.operators = api.Handler()
}

func authenticate(r *http.Request) (context.Context, error) {
	if r.Header.Get("Authorization") != "Bearer operator" {
		return nil, &rest.Problem{Status: http.StatusUnauthorized, Reason: "unauthorized", Message: "who are you?"}
	}
	return r.Context(), nil
}

// tolerant lets every content pass: what is wrong with it is found out on the node.
type tolerant struct{}

func (tolerant) Lint(context.Context, hub.Engine, string) ([]hub.Lint, error) { return nil, nil }

// crash ends the process at once, and starts another.
func (h *hubProcess) crash() {
	h.w.t.Helper()
	full := h.store.full
	h.close()
	h.start()
	h.store.full = full
}

func (h *hubProcess) backup() string { return filepath.Join(h.w.dir, "backup.db") }

// snapshot copies the records away.
func (h *hubProcess) snapshot() {
	h.close()
	copyStore(h.w, h.path, h.backup())
	h.start()
}

// restore brings the copied records back.
func (h *hubProcess) restore() {
	h.close()
	copyStore(h.w, h.backup(), h.path)
	h.start()
	h.restored = true
}

// request is what goes over the network to the hub.
type request struct {
	method, path string
	header       map[string]string
	body         []byte
}

// served is what became of a request, whoever learns of it.
type served struct {
	status int
	header http.Header
	body   []byte
	// died: the hub died over it, and there is no answer. committed: something of it is durable.
	died, committed bool
}

func (s *served) ok() bool { return !s.died && s.status < 300 }

// done tells whether the hub took the request in, answered or not.
func (s *served) done() bool { return s.ok() || s.died && s.committed }

func (s *served) code() string {
	var e struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(s.body, &e) // what is no problem has no code
	return e.Code
}

// String is for the history.
func (s *served) String() string {
	switch {
	case s.died && s.committed:
		return "the hub dies after the write"
	case s.died:
		return "the hub dies before the write"
	case s.ok():
		return "ok"
	}
	return http.StatusText(s.status) + " " + s.code()
}

// serve lets the hub handle a request. If it dies over it, it is started again.
func (h *hubProcess) serve(in *request) *served {
	h.w.t.Helper()
	r := httptest.NewRequest(in.method, in.path, bytes.NewReader(in.body))
	for k, v := range in.header {
		r.Header.Set(k, v)
	}
	if len(in.body) > 0 {
		r.Header.Set("Content-Type", "application/json")
	}
	handler := h.operators
	if strings.HasPrefix(in.path, agentapi.Prefix) {
		handler = h.agent
	}
	before := h.store.commits
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, r)
	out := &served{status: rec.Code, header: rec.Header(), body: rec.Body.Bytes(), died: h.store.dead, committed: h.store.commits > before}
	if out.status >= 500 && out.status != http.StatusServiceUnavailable && !out.died {
		h.w.t.Fatalf("%s %s was answered %d: %s", in.method, in.path, out.status, out.body)
	}
	h.revive()
	return out
}

func (h *hubProcess) revive() {
	if h.store.dead {
		h.crash()
	}
}

// reconcile lets the controllers look at everything once.
func (h *hubProcess) reconcile() {
	h.w.t.Helper()
	keys := map[string][]string{}
	h.view(func(r store.Reader) error {
		for _, kind := range []string{hub.Operations.Kind.Name, hub.Nodes.Kind.Name} {
			all, err := r.List(store.Query{Kind: kind})
			if err != nil {
				return err
			}
			for _, o := range all.Objects {
				if kind == hub.Nodes.Kind.Name || o.Labels[hub.LabelOpen] != "" {
					keys[kind] = append(keys[kind], o.Name)
				}
			}
		}
		return nil
	})
	for _, id := range keys[hub.Operations.Kind.Name] {
		_, err := h.plane.Intents.Reconcile(ctx, id)
		h.reconciled("intent "+id, err)
	}
	for _, id := range keys[hub.Nodes.Kind.Name] {
		_, err := h.plane.Nodes.Reconcile(ctx, id)
		h.reconciled("node "+id, err)
	}
}

func (h *hubProcess) tidy() {
	_, err := h.plane.Janitor.Reconcile(ctx, "retention")
	h.reconciled("retention", err)
}

func (h *hubProcess) reconciled(what string, err error) {
	h.w.t.Helper()
	if err != nil && !h.store.dead && !h.store.full {
		h.w.t.Fatalf("the controller of %s: %v", what, err)
	}
	h.revive()
}

// view looks at the records, whatever goes on.
func (h *hubProcess) view(f func(store.Reader) error) {
	h.w.t.Helper()
	if err := h.store.Store.View(ctx, f); err != nil {
		h.w.t.Fatalf("look at the hub's records: %v", err)
	}
}

func (h *hubProcess) revision() (revision int64) {
	h.view(func(r store.Reader) error { revision = r.Revision(); return nil })
	return revision
}

// get reads from the operators' API, without a network between.
func get[T any](w *world, path string) T {
	w.t.Helper()
	out := w.hub.serve(&request{method: http.MethodGet, path: path, header: operatorHeader()})
	var v T
	if out.status != http.StatusOK {
		w.t.Fatalf("GET %s: %d %s", path, out.status, out.body)
	}
	if err := json.Unmarshal(out.body, &v); err != nil {
		w.t.Fatalf("GET %s: %v", path, err)
	}
	return v
}

func operatorHeader() map[string]string { return map[string]string{"Authorization": "Bearer operator"} }
