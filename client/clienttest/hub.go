package clienttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// hubState is the Hub plane in memory. Nothing converges by itself: tests play the nodes with [Server.Observe].
type hubState struct {
	nodes      map[string]*client.HubNode
	streams    map[string]*client.Stream
	operations []*client.Operation // oldest first
	configs    []client.ConfigVersion
	answers    map[string]*hubAnswer // by idempotency key
	logs       map[string][]agentapi.LogLine
	metrics    map[string]client.StreamMetrics
	changes    []streamChange
	lint       func(client.ConfigContent) []hub.Lint
}

type streamChange struct {
	rev    int64
	kind   string
	stream client.Stream
}

// hubAnswer is what a mutation answered, and to what.
type hubAnswer struct {
	request, body []byte
	header        http.Header
	status        int
}

func newHubState() hubState {
	return hubState{
		nodes: map[string]*client.HubNode{}, streams: map[string]*client.Stream{}, answers: map[string]*hubAnswer{},
		logs: map[string][]agentapi.LogLine{}, metrics: map[string]client.StreamMetrics{},
		lint: func(client.ConfigContent) []hub.Lint { return nil },
	}
}

// AddNode puts a node on the server past all checks.
func (s *Server) AddNode(n client.HubNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.CreatedAt.IsZero() {
		n.CreatedAt = s.Now().UTC()
	}
	s.hub.nodes[n.NodeID] = &n
}

// RemoveNode makes a node gone.
func (s *Server) RemoveNode(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hub.nodes, id)
}

// LintWith is what finds faults in config versions.
func (s *Server) LintWith(f func(client.ConfigContent) []hub.Lint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hub.lint = f
}

// Observe changes a stream and its latest operation, as a report of the node would.
func (s *Server) Observe(node, stream string, change func(*client.Stream, *client.Operation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := hub.StreamName(node, stream)
	seen, op := *s.hub.streams[name], s.operation(s.hub.streams[name].IntentID)
	change(&seen, op)
	s.putStream(&seen, client.Modified)
}

// Converge makes a stream what was asked for.
func (s *Server) Converge(node, stream string) {
	s.Observe(node, stream, func(v *client.Stream, o *client.Operation) {
		d := v.Desired
		v.Observed = &hub.Observed{State: d.State, Generation: d.Generation, ConfigVersion: d.ConfigVersion, ReportedAt: s.Now().UTC()}
		v.Convergence, v.ConvergenceReason = hub.InSync, ""
		o.State, o.Convergence, o.Observed = hub.Converged, hub.InSync, v.Observed
	})
}

// AppendLog adds lines to a stream's log.
func (s *Server) AppendLog(node, stream string, lines ...agentapi.LogLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := hub.StreamName(node, stream)
	s.hub.logs[name] = append(s.hub.logs[name], lines...)
	s.cond.Broadcast()
}

// SetMetrics sets a stream's counters.
func (s *Server) SetMetrics(m client.StreamMetrics) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hub.metrics[hub.StreamName(m.NodeID, m.StreamID)] = m
}

func (s *Server) operation(intent string) *client.Operation {
	for _, o := range s.hub.operations {
		if o.IntentID == intent {
			return o
		}
	}
	return nil
}

func (s *Server) putStream(v *client.Stream, kind string) {
	s.rev++
	v.UpdatedAt = s.Now().UTC()
	s.hub.streams[hub.StreamName(v.NodeID, v.StreamID)] = v
	s.hub.changes = append(s.hub.changes, streamChange{s.rev, kind, *v})
	s.cond.Broadcast()
}

func (s *Server) handleHub(mux *http.ServeMux) {
	mutation := func(pattern string, serve http.HandlerFunc) { mux.HandleFunc(pattern, s.once(serve)) }
	mux.HandleFunc("GET /api/v1/nodes", s.hubNodes)
	mux.HandleFunc("GET /api/v1/nodes/{node}", s.hubNode)
	mutation("POST /api/v1/nodes", s.hubRegister)
	mutation("POST /api/v1/nodes/{node}/enrolment", s.hubEnrolment)
	mutation("DELETE /api/v1/nodes/{node}", s.hubDeleteNode)
	mux.HandleFunc("GET /api/v1/nodes/{node}/streams", s.hubStreams)
	mux.HandleFunc("GET /api/v1/nodes/{node}/streams/{stream}", s.hubStream)
	mux.HandleFunc("GET /api/v1/nodes/{node}/streams/{stream}/logs", s.hubLogs)
	mux.HandleFunc("GET /api/v1/nodes/{node}/streams/{stream}/metrics", s.hubMetrics)
	mutation("PUT /api/v1/nodes/{node}/streams/{stream}/desired-state", s.hubSetState)
	mutation("POST /api/v1/nodes/{node}/streams/{stream}/actions/restart", s.hubRestart)
	mutation("POST /api/v1/nodes/{node}/streams/{stream}/config/rollback", s.hubRollback)
	mutation("POST /api/v1/nodes/{node}/config/apply", s.hubNodeConfig)
	mux.HandleFunc("GET /api/v1/streams", s.hubAllStreams)
	mux.HandleFunc("GET /api/v1/streams/events", s.hubEvents)
	mux.HandleFunc("GET /api/v1/config-versions", s.hubConfigs)
	mux.HandleFunc("GET /api/v1/config-versions/{id}", s.hubConfig)
	mutation("POST /api/v1/config-versions", s.hubPublish)
	mux.HandleFunc("POST /api/v1/config-versions/validate", s.hubValidate)
	mux.HandleFunc("GET /api/v1/operations", s.hubOperations)
	mux.HandleFunc("GET /api/v1/operations/{id}", s.hubOperation)
	mutation("DELETE /api/v1/operations/{id}", s.hubCancel)
}

// once serves a mutation under the server's lock, and answers a repetition by its key as it did the first time.
func (s *Server) once(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		key := r.Method + " " + r.URL.Path + " " + r.Header.Get("Idempotency-Key")
		kept, ok := s.hub.answers[key]
		switch {
		case r.Header.Get("Idempotency-Key") == "":
			refuseHub(w, 400, "bad_request", "a client of this project sends an Idempotency-Key", nil)
			return
		case ok && !bytes.Equal(kept.request, body):
			refuseHub(w, 409, client.CodeIdempotencyKeyReused, "the key was used with another body", nil)
			return
		case !ok:
			rec := httptest.NewRecorder()
			r.Body = io.NopCloser(bytes.NewReader(body))
			serve(rec, r)
			kept = &hubAnswer{body, rec.Body.Bytes(), rec.Header(), rec.Code}
			s.hub.answers[key] = kept
		default:
			w.Header().Set("Idempotency-Replayed", "true")
		}
		maps.Copy(w.Header(), kept.header)
		w.WriteHeader(kept.status)
		_, _ = w.Write(kept.body)
	}
}

func refuseHub(w http.ResponseWriter, status int, code, message string, details any) {
	answer(w, status, map[string]any{"code": code, "message": message, "correlation_id": "corr-1", "details": details})
}

// pageOf answers one page.
func pageOf[R any](w http.ResponseWriter, r *http.Request, all []R) {
	page, _ := strconv.Atoi(r.URL.Query().Get("page"))
	size, _ := strconv.Atoi(r.URL.Query().Get("page_size"))
	if page < 1 || size < 1 || size > 100 {
		refuseHub(w, 422, "validation_failed", "page and page_size are out of range", nil)
		return
	}
	from := min((page-1)*size, len(all))
	items := append([]R{}, all[from:min(from+size, len(all))]...)
	answer(w, 200, client.HubPage[R]{Items: items, Page: page, PageSize: size, Total: len(all)})
}

func (s *Server) hubNodes(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []client.HubNode
	for _, id := range slices.Sorted(maps.Keys(s.hub.nodes)) {
		all = append(all, s.counted(id))
	}
	pageOf(w, r, all)
}

// counted is a node with its streams counted.
func (s *Server) counted(id string) client.HubNode {
	n := *s.hub.nodes[id]
	n.Streams = map[hub.ConvergenceState]int{}
	for _, v := range s.hub.streams {
		if v.NodeID == id && v.StreamID != hub.NodeConfig && !hub.Removed(v.Desired, v.Convergence) {
			n.Streams[v.Convergence]++
		}
	}
	return n
}

func (s *Server) hubNode(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known(w, r) {
		answer(w, 200, s.counted(r.PathValue("node")))
	}
}

func (s *Server) known(w http.ResponseWriter, r *http.Request) bool {
	_, ok := s.hub.nodes[r.PathValue("node")]
	if !ok {
		refuseHub(w, 404, "not_found", fmt.Sprintf("node %q not found", r.PathValue("node")), nil)
	}
	return ok
}

func (s *Server) hubRegister(w http.ResponseWriter, r *http.Request) {
	var in client.NodeRegistration
	_ = json.NewDecoder(r.Body).Decode(&in)
	if _, ok := s.hub.nodes[in.NodeID]; ok {
		refuseHub(w, 409, "conflict", fmt.Sprintf("node %q exists already", in.NodeID), nil)
		return
	}
	now := s.Now().UTC()
	s.hub.nodes[in.NodeID] = &client.HubNode{NodeID: in.NodeID, State: hub.PresencePending, Since: now, CreatedAt: now, Labels: in.Labels}
	s.enrolment(w, 201, in.NodeID, in.EnrolmentTTLSeconds)
}

func (s *Server) hubEnrolment(w http.ResponseWriter, r *http.Request) {
	var in client.EnrolmentRequest
	_ = json.NewDecoder(r.Body).Decode(&in)
	switch {
	case !s.known(w, r):
	case s.hub.nodes[r.PathValue("node")].Deleting:
		refuseHub(w, 409, client.CodeNodeDeleting, fmt.Sprintf("node %q is being deleted", r.PathValue("node")), nil)
	default:
		s.enrolment(w, 201, r.PathValue("node"), in.EnrolmentTTLSeconds)
	}
}

func (s *Server) enrolment(w http.ResponseWriter, status int, node string, ttl int) {
	if ttl == 0 {
		ttl = int(hub.EnrolmentTTL.Seconds())
	}
	answer(w, status, client.NodeEnrolment{HubNode: s.counted(node), EnrolmentToken: "fhe-shown-once", TokenExpiresAt: s.Now().UTC().Add(time.Duration(ttl) * time.Second)})
}

func (s *Server) hubDeleteNode(w http.ResponseWriter, r *http.Request) {
	if !s.known(w, r) {
		return
	}
	n := s.hub.nodes[r.PathValue("node")]
	if r.URL.Query().Get("force") == "true" || n.State == hub.PresencePending {
		delete(s.hub.nodes, n.NodeID)
	} else {
		n.Deleting = true
	}
	_, left := s.hub.nodes[n.NodeID]
	answer(w, 202, client.NodeDeletion{NodeID: n.NodeID, Deleted: !left})
}

func (s *Server) hubStreams(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known(w, r) {
		return
	}
	pageOf(w, r, s.streamsOf(r.PathValue("node")))
}

func (s *Server) hubAllStreams(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pageOf(w, r, s.streamsOf(r.URL.Query().Get("node_id")))
}

// streamsOf answers the streams of a node, "" of all, by name.
func (s *Server) streamsOf(node string) (all []client.Stream) {
	for _, name := range slices.Sorted(maps.Keys(s.hub.streams)) {
		if v := s.hub.streams[name]; node == "" || v.NodeID == node {
			all = append(all, *v)
		}
	}
	return all
}

func (s *Server) found(w http.ResponseWriter, r *http.Request) *client.Stream {
	if !s.known(w, r) {
		return nil
	}
	v, ok := s.hub.streams[hub.StreamName(r.PathValue("node"), r.PathValue("stream"))]
	if !ok {
		refuseHub(w, 404, "not_found", fmt.Sprintf("stream %q not found on node %q", r.PathValue("stream"), r.PathValue("node")), nil)
		return nil
	}
	return v
}

func (s *Server) hubStream(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.found(w, r); v != nil {
		answer(w, 200, v)
	}
}

func (s *Server) hubSetState(w http.ResponseWriter, r *http.Request) {
	if !s.known(w, r) {
		return
	}
	var in client.DesiredState
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		refuseHub(w, 400, "bad_request", err.Error(), nil)
		return
	}
	s.declare(w, r, r.PathValue("stream"), hub.SetState, hub.Desired{State: in.State, ConfigVersion: in.ConfigVersion})
}

func (s *Server) hubRestart(w http.ResponseWriter, r *http.Request) {
	v := s.found(w, r)
	if v == nil {
		return
	}
	if v.Desired.State != hub.Running {
		refuseHub(w, 409, client.CodeStreamNotRunning, fmt.Sprintf("stream %q is not to be running: start it", v.StreamID), nil)
		return
	}
	s.declare(w, r, v.StreamID, hub.Restart, hub.Desired{State: hub.Running, ActionID: "action-1"})
}

func (s *Server) hubRollback(w http.ResponseWriter, r *http.Request) {
	if v := s.found(w, r); v != nil {
		s.declare(w, r, v.StreamID, hub.ConfigRollback, hub.Desired{State: v.Desired.State, ConfigVersion: "cfg-1"})
	}
}

func (s *Server) hubNodeConfig(w http.ResponseWriter, r *http.Request) {
	var in client.ConfigReference
	_ = json.NewDecoder(r.Body).Decode(&in)
	if s.known(w, r) {
		s.declare(w, r, hub.NodeConfig, hub.ConfigApply, hub.Desired{State: hub.Running, ConfigVersion: in.ConfigVersion})
	}
}

// declare makes the next generation and its intent.
func (s *Server) declare(w http.ResponseWriter, r *http.Request, stream string, verb hub.Verb, d hub.Desired) {
	node, now := r.PathValue("node"), s.Now().UTC()
	v, exists := s.hub.streams[hub.StreamName(node, stream)]
	next, kind := client.Stream{NodeID: node, StreamID: stream, CreatedAt: now, ConvergenceSince: now}, client.Added
	if exists {
		next, kind = *v, client.Modified
		d.Generation = v.Desired.Generation
		if d.ConfigVersion == "" {
			d.ConfigVersion = v.Desired.ConfigVersion
		}
	}
	if match := r.Header.Get("If-Match"); match != "" && match != client.ETag(d.Generation) {
		refuseHub(w, 412, client.CodeGenerationConflict, fmt.Sprintf("Expected %s, current generation %d", match, d.Generation),
			map[string]any{"current_generation": d.Generation})
		return
	}
	if old := s.operation(next.IntentID); old != nil && old.FinishedAt == nil {
		old.State, old.FinishedAt = hub.Superseded, &now
	}
	d.Generation++
	id := fmt.Sprintf("intent-%d-%d", d.Generation, len(s.hub.operations)+1)
	next.Desired, next.IntentID, next.OperationID = &d, id, id
	next.Convergence, next.ConvergenceReason = hub.Pending, ""
	s.hub.operations = append(s.hub.operations, &client.Operation{
		OperationID: id, IntentID: id, NodeID: node, ResourceID: stream, StreamID: stream, Operation: verb, State: hub.Accepted,
		Generation: d.Generation, DesiredState: d.State, ConfigVersion: d.ConfigVersion, ActionID: d.ActionID, Convergence: hub.Pending,
		CorrelationID: "corr-1", Principal: User, CreatedAt: now, UpdatedAt: now, Retry: hub.RetryState{Budget: hub.RetryBudget},
	})
	s.putStream(&next, kind)
	w.Header().Set("ETag", client.ETag(d.Generation))
	answer(w, 202, client.StreamAccepted{
		OperationID: id, IntentID: id, NodeID: node, StreamID: stream, Generation: d.Generation, DesiredState: d.State,
		ConfigVersion: d.ConfigVersion, ActionID: d.ActionID, Convergence: hub.Pending,
	})
}
