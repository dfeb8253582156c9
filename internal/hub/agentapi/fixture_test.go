package agentapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/agentapi"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// patience is how long a test waits for what has to come.
const patience = 60 * time.Second

// clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// counting counts the transactions that a store is asked for, and can be made to refuse them.
type counting struct {
	store.Store
	updates atomic.Int64
	full    atomic.Bool
}

func (c *counting) Update(ctx context.Context, f func(store.Tx) error) error {
	c.updates.Add(1)
	if c.full.Load() {
		return store.ErrFull
	}
	return c.Store.Update(ctx, f)
}

// world is a hub with the real store and ledger, behind real HTTP.
type world struct {
	t        testing.TB
	clock    *clock
	store    *counting
	ledger   *ledger.Ledger
	presence *presence.Registry
	config   agentapi.Config
	handler  http.Handler
	url      string
	caFile   string
	audited  []audit.Entry
	auditMu  sync.Mutex
	server   *httptest.Server
}

var testKey = bytes.Repeat([]byte{7}, 32)

func newWorld(t testing.TB, options ...func(*agentapi.Config)) *world {
	t.Helper()
	kept, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: hub.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	w := &world{t: t, clock: &clock{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}, store: &counting{Store: kept}}
	w.ledger = ledger.New(ledger.Config{Now: w.clock.Now, Jitter: func() float64 { return 0 }})
	w.presence = presence.New(w.clock.Now)
	w.config = agentapi.Config{
		Store: w.store, Ledger: w.ledger, Presence: w.presence, Key: testKey, Version: "1.2.3",
		Logger: slog.New(slog.DiscardHandler), Now: w.clock.Now, Spread: -1,
		Audit: func(e audit.Entry) {
			w.auditMu.Lock()
			defer w.auditMu.Unlock()
			w.audited = append(w.audited, e)
		},
	}
	for _, o := range options {
		o(&w.config)
	}
	w.serve()
	return w
}

// serve starts the hub's HTTP server, over TLS and HTTP/2 as agents meet it.
func (w *world) serve() {
	mux := http.NewServeMux()
	api, err := agentapi.New(mux, w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.handler = api.Handler()
	w.server = httptest.NewUnstartedServer(w.handler)
	w.server.EnableHTTP2 = true
	w.server.StartTLS()
	w.t.Cleanup(w.server.Close)
	w.url = w.server.URL
	w.caFile = filepath.Join(w.t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}
	if err := os.WriteFile(w.caFile, pem.EncodeToMemory(block), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// restart is a new server on the same records: what was in memory is gone.
func (w *world) restart() {
	w.server.CloseClientConnections()
	w.server.Close()
	w.presence = presence.New(w.clock.Now)
	w.config.Presence = w.presence
	w.serve()
}

func (w *world) update(f func(store.Tx) error) {
	w.t.Helper()
	if err := w.store.Store.Update(w.t.Context(), f); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) node(name string) *hub.Node {
	w.t.Helper()
	var n *hub.Node
	if err := w.store.View(w.t.Context(), func(r store.Reader) (err error) {
		n, err = hub.Nodes.Get(r, name)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) stream(node, name string) *hub.Stream {
	w.t.Helper()
	var s *hub.Stream
	if err := w.store.View(w.t.Context(), func(r store.Reader) (err error) {
		s, err = hub.Streams.Get(r, hub.StreamName(node, name))
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) intent(id string) *hub.Intent {
	w.t.Helper()
	var i hub.Intent
	if err := w.store.View(w.t.Context(), func(r store.Reader) error {
		o, err := hub.Operations.Get(r, id)
		if err == nil {
			i = o.Status
		}
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return &i
}

func (w *world) revision() (n int64) {
	w.t.Helper()
	if err := w.store.View(w.t.Context(), func(r store.Reader) error {
		n = r.Revision()
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// register makes a node and answers its enrolment token.
func (w *world) register(name string) string {
	w.t.Helper()
	token, e := w.ledger.NewEnrolment(0)
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.RegisterNode(tx, name, nil, e)
		return err
	})
	return token
}

func (w *world) publish(content string) string {
	w.t.Helper()
	var version string
	w.update(func(tx store.Tx) error {
		c, _, err := w.ledger.PublishConfig(tx, hub.EngineProcess, content, "", "ann")
		if err == nil {
			version = c.Name
		}
		return err
	})
	return version
}

func (w *world) declare(m ledger.Mutation) *hub.Intent {
	w.t.Helper()
	if m.Verb == "" {
		m.Verb = hub.SetState
	}
	m.Principal = "ann"
	var out *hub.Intent
	w.update(func(tx store.Tx) (err error) {
		out, err = w.ledger.Declare(tx, m)
		return err
	})
	w.presence.Wake(m.Node)
	return out
}

// agent is a node's side, as the protocol has it.
type agent struct {
	w       *world
	name    string
	client  *protocol.Client
	key     ed25519.PrivateKey
	refresh string
	boot    hub.Boot
	seq     int64
}

func (w *world) client() *protocol.Client {
	w.t.Helper()
	c, err := protocol.New(protocol.Options{Server: w.url, CAFile: w.caFile, Timeout: patience})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

func (w *world) newAgent(name string) *agent {
	w.t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return &agent{w: w, name: name, client: w.client(), key: key, boot: hub.Boot{ID: "boot-" + name + "-1", Seq: 1}}
}

// enrolled registers a node and enrols its agent.
func (w *world) enrolled(name string) *agent {
	w.t.Helper()
	a := w.newAgent(name)
	a.mustEnrol(w.register(name))
	return a
}

// online has also reported fully.
func (w *world) online(name string) *agent {
	w.t.Helper()
	a := w.enrolled(name)
	a.report(true)
	return a
}

func (a *agent) enrolment(token string) protocol.EnrolRequest {
	return protocol.EnrolRequest{
		NodeID: a.name, EnrolmentToken: token, ProtocolVersion: protocol.ProtocolVersion, AgentVersion: "1.2.3",
		PublicKey: base64.StdEncoding.EncodeToString(a.key.Public().(ed25519.PublicKey)),
		Labels:    map[string]string{"zone": "a"}, Capabilities: []string{"process"}, BootID: a.boot.ID, BootSeq: a.boot.Seq,
	}
}

func (a *agent) mustEnrol(token string) {
	a.w.t.Helper()
	out, err := a.client.Enrol(a.w.t.Context(), a.enrolment(token))
	if err != nil {
		a.w.t.Fatal(err)
	}
	a.refresh = out.RefreshCredential
}

func (a *agent) sessionRequest() protocol.SessionRequest {
	return protocol.SessionRequest{
		NodeID: a.name, RefreshCredential: a.refresh, BootID: a.boot.ID, BootSeq: a.boot.Seq,
		ProtocolVersion: protocol.ProtocolVersion, AgentVersion: "1.2.3", Capabilities: []string{"process"},
	}
}

func (a *agent) renew() error {
	_, err := a.client.Session(a.w.t.Context(), a.sessionRequest(), a.key)
	return err
}

// clone is an agent on a copy of this one's disk.
func (a *agent) clone() *agent {
	c := *a
	c.client = a.w.client()
	return &c
}

// reboot is what the next start of the agent makes of its durable counter.
func (a *agent) reboot(id string) {
	a.boot = hub.Boot{ID: id, Seq: a.boot.Seq + 1}
	a.seq = 0
}

func (a *agent) next(full bool, streams ...protocol.StreamReport) protocol.Report {
	a.seq++
	return protocol.Report{BootID: a.boot.ID, BootSeq: a.boot.Seq, ReportSeq: a.seq, Full: full, Streams: streams}
}

func (a *agent) report(full bool, streams ...protocol.StreamReport) *protocol.ReportAnswer {
	a.w.t.Helper()
	return a.send(a.next(full, streams...))
}

func (a *agent) send(r protocol.Report) *protocol.ReportAnswer {
	a.w.t.Helper()
	out, err := a.client.Report(a.w.t.Context(), r)
	if err != nil {
		a.w.t.Fatal(err)
	}
	return out
}

func (a *agent) poll() *protocol.Commands {
	a.w.t.Helper()
	out, err := a.client.Commands(a.w.t.Context(), 0)
	if err != nil {
		a.w.t.Fatal(err)
	}
	return out
}

// wantCode fails unless err is a refusal with the code and status.
func wantCode(t testing.TB, err error, status int, code string) *protocol.Error {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("the answer is %v, not %s", err, code)
	}
	if e.Status != status || e.Message == "" || e.CorrelationID == "" {
		t.Fatalf("%s came with status %d, message %q, correlation id %q", code, e.Status, e.Message, e.CorrelationID)
	}
	return e
}

// raw sends a request as it is, and answers status and body.
func (w *world) raw(method, path, token, body string) (int, map[string]any) {
	w.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	b, err := io.ReadAll(rec.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var out map[string]any
	if len(b) > 0 {
		if err := json.Unmarshal(b, &out); err != nil {
			w.t.Fatalf("%s %s: %v: %s", method, path, err, b)
		}
	}
	return rec.Code, out
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("in vain: " + what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// later runs f beside the test and answers where its result comes.
func later[T any](f func() (T, error)) <-chan result[T] {
	ch := make(chan result[T], 1)
	go func() {
		v, err := f()
		ch <- result[T]{v, err}
	}()
	return ch
}

type result[T any] struct {
	v   T
	err error
}

func soon[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("in vain: " + what)
		panic("unreachable")
	}
}

func running(stream string, generation int64, version string) protocol.StreamReport {
	return protocol.StreamReport{StreamID: stream, State: hub.Running, Generation: generation, ConfigVersion: version}
}

func content(i int) string { return fmt.Sprintf(`{"command":"true","args":["%d"]}`, i) }

func ledgerDeletion(node string) ledger.Deletion {
	return ledger.Deletion{Node: node, Principal: "ann"}
}

func encode(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mutation(node, stream string, state hub.State, version string) ledger.Mutation {
	return ledger.Mutation{Node: node, Resource: stream, State: state, ConfigVersion: version}
}

// tokenOf answers a fresh session of an agent.
func (w *world) tokenOf(a *agent) string {
	w.t.Helper()
	s, err := a.client.Session(w.t.Context(), a.sessionRequest(), a.key)
	if err != nil {
		w.t.Fatal(err)
	}
	return s.SessionToken
}

// reconnect takes the agent, with the session that it has, to the hub's present server.
func (a *agent) reconnect() {
	a.w.t.Helper()
	token := a.client.SessionToken()
	a.client = a.w.client()
	a.client.SetSessionToken(token)
}

// signature is the token of an Authorization header, however the header is written.
func (w *world) signature(authorization string) string {
	_, token, _ := strings.Cut(authorization, " ")
	return strings.TrimSpace(token)
}

// pathWord tells whether a word can stand in a URL as it is.
func pathWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '#' || c == '?' {
			return false
		}
	}
	_, err := url.Parse("/" + s)
	return err == nil && s != ""
}

// openQuery selects the intents that are not through.
func openQuery() store.Query {
	open, err := labels.NewRequirement(hub.LabelOpen, selection.Exists, nil)
	if err != nil {
		panic(err)
	}
	return store.Query{Kind: hub.Operations.Kind.Name, Selector: labels.NewSelector().Add(*open), Limit: 1}
}
