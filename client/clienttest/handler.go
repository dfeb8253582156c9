package clienttest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/auth/login", s.login)
	mux.HandleFunc("POST /api/v1/auth/logout", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /api/v1/auth/whoami", func(w http.ResponseWriter, r *http.Request) {
		answer(w, 200, map[string]any{"user": User, "role": "admin"})
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) { answer(w, 200, client.ServerVersion{Version: "test"}) })
	s.collection(mux, "/api/v1/tenants", client.KindTenant)
	s.collection(mux, "/api/v1/tenants/{parent}/node-groups", client.KindNodeGroup)
	s.collection(mux, "/api/v1/tenants/{parent}/machines", client.KindMachine)
	s.collection(mux, "/api/v1/machines", client.KindMachine)
	s.collection(mux, "/api/v1/providers", client.KindProvider)
	s.collection(mux, "/api/v1/users", client.KindUser)
	s.collection(mux, "/api/v1/users/{parent}/tokens", client.KindToken)
	for _, what := range []string{"kubeconfig", "talosconfig"} {
		mux.HandleFunc("GET /api/v1/tenants/{name}/"+what, s.kubeconfig)
	}
	mux.HandleFunc("GET /api/v1/tenants/{name}/applies", s.listApplies)
	s.handleHub(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, 404, "NotFound", fmt.Sprintf("no route %s", r.URL.Path))
	})
	return s.outer(mux)
}

func (s *Server) outer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		before := s.before
		s.seen = append(s.seen, r.Method+" "+r.URL.RequestURI())
		var fail *int
		if len(s.fail) > 0 {
			fail, s.fail = &s.fail[0], s.fail[1:]
		}
		s.mu.Unlock()
		if before != nil {
			before(r)
		}
		w.Header().Set("X-Request-ID", "req-1")
		switch {
		case fail != nil && *fail == 0:
			panic(http.ErrAbortHandler)
		case fail != nil:
			refuse(w, *fail, http.StatusText(*fail), "failed on demand")
		case r.Header.Get("Authorization") != "Bearer "+Token && r.URL.Path != "/api/v1/auth/login" && r.URL.Path != "/version":
			refuse(w, 401, "Unauthorized", "a valid token is required")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	var in struct{ Username, Password string }
	_ = json.NewDecoder(r.Body).Decode(&in)
	if in.Username != User || in.Password != Password {
		refuse(w, 401, "Unauthorized", "wrong user name or password")
		return
	}
	answer(w, 200, map[string]any{"token": Token, "expiresAt": s.Now().Add(12 * time.Hour), "user": User})
}

func (s *Server) kubeconfig(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.kube[r.PathValue("name")]
	if !ok {
		refuse(w, 409, "Conflict", fmt.Sprintf("tenant %q has no secrets yet: wait for its first apply", r.PathValue("name")))
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = io.WriteString(w, content)
}

func (s *Server) listApplies(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.applies[r.PathValue("name")]
	if !ok {
		data = []byte(`{"metadata":{"resourceVersion":1},"items":[],"total":0}`)
	}
	answer(w, 200, data)
}

// collection serves one kind.
func (s *Server) collection(mux *http.ServeMux, path string, kind client.Kind) {
	parentOf := func(r *http.Request) string { return r.PathValue("parent") }
	// A tenant's machines are machines with its label.
	scope := func(r *http.Request) func(key, *client.Object) bool {
		parent := parentOf(r)
		return func(k key, o *client.Object) bool {
			if kind == client.KindMachine {
				return k.kind == kind && (parent == "" || o.Metadata.Labels[cloud.LabelTenant] == parent)
			}
			return k.kind == kind && k.parent == parent
		}
	}
	at := func(r *http.Request, name string) key {
		if kind == client.KindMachine {
			return key{kind, "", name}
		}
		return key{kind, parentOf(r), name}
	}
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { s.answerList(w, r, scope(r)) })
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { s.create(w, r, at) })
	mux.HandleFunc("GET "+path+"/{name}", func(w http.ResponseWriter, r *http.Request) { s.get(w, at(r, r.PathValue("name"))) })
	mux.HandleFunc("PUT "+path+"/{name}", func(w http.ResponseWriter, r *http.Request) { s.put(w, r, at(r, r.PathValue("name"))) })
	mux.HandleFunc("DELETE "+path+"/{name}", func(w http.ResponseWriter, r *http.Request) { s.remove(w, at(r, r.PathValue("name"))) })
	mux.HandleFunc("GET "+path+"/events", func(w http.ResponseWriter, r *http.Request) { s.follow(w, r, kind, scope(r)) })
	mux.HandleFunc("GET "+path+"/{name}/events", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		s.follow(w, r, kind, func(k key, o *client.Object) bool {
			return k == at(r, name)
		})
	})
}

func (s *Server) answerList(w http.ResponseWriter, r *http.Request, scope func(key, *client.Object) bool) {
	q := r.URL.Query()
	selector, err := labels.Parse(strings.Join(q["labelSelector"], ","))
	if err != nil {
		refuse(w, 400, "BadRequest", err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	items := s.list(func(k key, o *client.Object) bool {
		return scope(k, o) && selector.Matches(labels.Set(o.Metadata.Labels))
	})
	offset, _ := strconv.Atoi(q.Get("offset"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	if limit == 0 {
		limit = 50
	}
	total := len(items)
	items = items[min(offset, total):min(offset+limit, total)]
	answer(w, 200, client.List[*client.Object]{Metadata: client.ListMetadata{ResourceVersion: s.rev}, Items: items, Total: total})
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, at func(*http.Request, string) key) {
	o, ok := decode(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Metadata.Name == "" {
		o.Metadata.Name = fmt.Sprintf("generated-%d", s.rev+1)
	}
	k := at(r, o.Metadata.Name)
	if _, ok := s.objects[k]; ok {
		refuse(w, 409, "Conflict", fmt.Sprintf("%s %q exists already", strings.ToLower(string(k.kind)), k.name))
		return
	}
	if k.kind == client.KindTenant {
		o.Status = json.RawMessage(`{"phase":"forming","available":false,"ready":false,"apiReady":false,"controlPlaneReady":false,"machines":{"total":0,"healthy":0,"connected":0}}`)
		o.Metadata.Finalizers = []string{cloud.FinalizerMachines, cloud.FinalizerSecrets}
	}
	stored := s.store(k, o)
	if k.kind == client.KindToken {
		answer(w, 201, map[string]any{"metadata": stored.Metadata, "spec": stored.Spec, "status": stored.Status, "token": "shown-once"})
		return
	}
	answer(w, 201, stored)
}

func (s *Server) get(w http.ResponseWriter, k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[k]; ok {
		answer(w, 200, o)
		return
	}
	refuse(w, 404, "NotFound", fmt.Sprintf("%s %q not found", strings.ToLower(string(k.kind)), k.name))
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, k key) {
	o, ok := decode(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.objects[k]
	switch {
	case !ok:
		refuse(w, 404, "NotFound", fmt.Sprintf("%s %q not found", strings.ToLower(string(k.kind)), k.name))
	case o.Metadata.ResourceVersion == 0:
		refuse(w, 400, "BadRequest", "metadata.resourceVersion is required")
	case o.Metadata.ResourceVersion != old.Metadata.ResourceVersion:
		refuse(w, 409, "Conflict", "the object has been modified; please apply your changes to the latest version")
	case string(o.Spec) == string(old.Spec) && fmt.Sprint(o.Metadata.Labels, o.Metadata.Annotations) == fmt.Sprint(old.Metadata.Labels, old.Metadata.Annotations):
		answer(w, 200, old)
	default:
		o.Status = old.Status
		m := old.Metadata
		m.Labels, m.Annotations = o.Metadata.Labels, o.Metadata.Annotations
		o.Metadata = m
		answer(w, 200, s.store(k, o))
	}
}

func (s *Server) remove(w http.ResponseWriter, k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[k]
	if !ok {
		refuse(w, 404, "NotFound", fmt.Sprintf("%s %q not found", strings.ToLower(string(k.kind)), k.name))
		return
	}
	copied := *o
	if len(o.Metadata.Finalizers) > 0 {
		if copied.Metadata.DeletionTimestamp == nil {
			now := s.Now().UTC()
			copied.Metadata.DeletionTimestamp = &now
			copied = s.store(k, &copied)
		}
	} else {
		s.drop(k)
	}
	answer(w, 200, copied)
}

// follow streams changes as server-sent events.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, of client.Kind, scope func(key, *client.Object) bool) {
	q := r.URL.Query()
	since, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	selector, err := labels.Parse(strings.Join(q["labelSelector"], ","))
	if err != nil || q.Get("sse") != "true" {
		refuse(w, 400, "BadRequest", "this server streams server-sent events only")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.Events {
		refuse(w, 404, "NotFound", "no events here")
		return
	}
	matches := func(k key, o *client.Object) bool {
		return scope(k, o) && selector.Matches(labels.Set(o.Metadata.Labels))
	}
	initial := []*client.Object{}
	if since == 0 {
		initial, since = s.list(matches), s.rev
		if r.PathValue("name") != "" && len(initial) == 0 {
			refuse(w, 404, "NotFound", "no such object")
			return
		}
	}
	if since < s.floor {
		refuse(w, 410, "Gone", "revision was compacted")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, ": hello\n\n")
	w.(http.Flusher).Flush()
	for _, o := range initial {
		data, _ := json.Marshal(client.Event[client.Object]{Type: client.Added, Object: *o})
		_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", since, data)
	}
	epoch := s.epoch
	s.streams++
	defer func() { s.streams-- }()
	for !s.closed && s.epoch == epoch {
		for _, e := range s.log {
			if e.rev <= since {
				continue
			}
			since = e.rev
			if e.key.kind != of || r.PathValue("name") != "" && e.key.name != r.PathValue("name") {
				continue
			}
			kind := e.kind
			if !matches(e.key, &e.object) {
				kind = client.Deleted
			}
			data, _ := json.Marshal(client.Event[client.Object]{Type: kind, Kind: string(e.key.kind), Object: e.object})
			_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", e.rev, data)
		}
		w.(http.Flusher).Flush()
		s.cond.Wait()
	}
}

func decode(w http.ResponseWriter, r *http.Request) (*client.Object, bool) {
	o := new(client.Object)
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		refuse(w, 400, "BadRequest", err.Error())
		return nil, false
	}
	return o, true
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if data, ok := body.([]byte); ok {
		_, _ = w.Write(data)
		return
	}
	if data, ok := body.(json.RawMessage); ok {
		_, _ = w.Write(data)
		return
	}
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, map[string]any{"status": "failure", "message": message, "reason": reason, "code": code})
}
