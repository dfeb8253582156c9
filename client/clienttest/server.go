// Package clienttest offers a small server that speaks the operator API from memory, for tests of the client and of
// what is built on it. It validates little, reconciles nothing, and fails on demand.
package clienttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/client"
)

// Server is an operator API in memory. Its one account is User with Password, its one token Token.
type Server struct {
	URL string
	// Now stamps what is created; tests may fix it.
	Now func() time.Time
	// Events: false takes the events endpoints away.
	Events bool

	http    *httptest.Server
	mu      sync.Mutex
	cond    *sync.Cond
	objects map[key]*client.Object
	log     []entry
	rev     int64
	floor   int64 // revisions up to it are compacted
	epoch   int   // grows to end all streams
	streams int
	fail    []int
	before  func(*http.Request)
	seen    []string
	closed  bool
	kube    map[string]string
	applies map[string]json.RawMessage
	hub     hubState
}

// The account that the server knows.
const (
	User     = "admin"
	Password = "correct horse"
	Token    = "token-of-admin"
)

type key struct {
	kind   client.Kind
	parent string
	name   string
}

type entry struct {
	rev    int64
	kind   string
	key    key
	object client.Object
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := &Server{
		Now: time.Now, Events: true, objects: map[key]*client.Object{}, rev: 100,
		kube: map[string]string{}, applies: map[string]json.RawMessage{}, hub: newHubState(),
	}
	s.cond = sync.NewCond(&s.mu)
	s.http = httptest.NewServer(s.handler())
	s.URL = s.http.URL
	t.Cleanup(s.stop)
	return s
}

func (s *Server) stop() {
	s.mu.Lock()
	s.closed = true
	s.cond.Broadcast()
	s.mu.Unlock()
	s.http.CloseClientConnections()
	s.http.Close()
}

// Client of the server, with its token.
func (s *Server) Client(t testing.TB) *client.Client {
	c, err := client.New(client.Config{Server: s.URL, Token: Token})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// FailNext answers the next requests with these statuses instead of serving them; 0 closes the connection.
func (s *Server) FailNext(statuses ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = append(s.fail, statuses...)
}

// Before is called ahead of every request, in its order. It may change objects.
func (s *Server) Before(f func(*http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// Requests that were served so far: "GET /api/v1/tenants?limit=500".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Streams counts the watches that are open.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// DropStreams ends every open watch.
func (s *Server) DropStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.cond.Broadcast()
}

// Compact forgets every change so far.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = s.rev
	s.log, s.hub.changes = nil, nil
}

// SetKubeconfig sets what a tenant's kubeconfig is.
func (s *Server) SetKubeconfig(tenant, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kube[tenant] = content
}

// SetApplies sets the answer to a tenant's list of applies.
func (s *Server) SetApplies(tenant string, list any) {
	data, _ := json.Marshal(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applies[tenant] = data
}

// Put creates or replaces an object past all checks, and answers it as stored. Spec and status are marshalled.
func (s *Server) Put(kind client.Kind, parent string, m client.Metadata, spec, status any) client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &client.Object{Metadata: m, Spec: raw(spec), Status: raw(status)}
	if old, ok := s.objects[key{kind, parent, m.Name}]; ok {
		o.Metadata.UID, o.Metadata.CreatedAt, o.Metadata.Generation = old.Metadata.UID, old.Metadata.CreatedAt, old.Metadata.Generation
	}
	return s.store(key{kind, parent, m.Name}, o)
}

// Remove removes an object past all checks.
func (s *Server) Remove(kind client.Kind, parent, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(key{kind, parent, name})
}

func raw(v any) json.RawMessage {
	if v == nil {
		v = struct{}{}
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

func (s *Server) store(k key, o *client.Object) client.Object {
	s.rev++
	old, exists := s.objects[k]
	m := &o.Metadata
	m.ResourceVersion = s.rev
	if m.UID == "" {
		m.UID = fmt.Sprintf("00000000-0000-4000-8000-%012d", s.rev)
	}
	if m.CreatedAt.IsZero() {
		m.CreatedAt = s.Now().UTC()
	}
	m.UpdatedAt = s.Now().UTC()
	if !exists || string(old.Spec) != string(o.Spec) {
		m.Generation++
	}
	s.objects[k] = o
	kind := client.Modified
	if !exists {
		kind = client.Added
	}
	s.record(kind, k, *o)
	return *o
}

func (s *Server) drop(k key) {
	if o, ok := s.objects[k]; ok {
		s.rev++
		delete(s.objects, k)
		s.record(client.Deleted, k, *o)
	}
}

func (s *Server) record(kind string, k key, o client.Object) {
	s.log = append(s.log, entry{rev: s.rev, kind: kind, key: k, object: o})
	s.cond.Broadcast()
}

// list answers the objects that keep accepts, by name.
func (s *Server) list(keep func(key, *client.Object) bool) []*client.Object {
	keys := slices.SortedFunc(maps.Keys(s.objects), func(a, b key) int {
		return strings.Compare(a.parent+"/"+a.name, b.parent+"/"+b.name)
	})
	out := []*client.Object{}
	for _, k := range keys {
		if keep(k, s.objects[k]) {
			out = append(out, s.objects[k])
		}
	}
	return out
}
