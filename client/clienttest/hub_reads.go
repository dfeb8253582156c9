package clienttest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

func (s *Server) hubPublish(w http.ResponseWriter, r *http.Request) {
	var in client.ConfigContent
	_ = json.NewDecoder(r.Body).Decode(&in)
	if lints := s.hub.lint(in); len(lints) > 0 {
		refuseHub(w, 422, "validation_failed", "the configuration has faults", map[string]any{"lints": lints})
		return
	}
	for _, v := range s.hub.configs {
		if v.Content == in.Content && v.Engine == in.Engine {
			answer(w, 200, client.ConfigPublished{ConfigVersion: v.ConfigVersion, Digest: v.Digest, Engine: v.Engine})
			return
		}
	}
	v := client.ConfigVersion{
		ConfigVersion: fmt.Sprintf("cfg-%d", len(s.hub.configs)+1), Engine: in.Engine, Content: in.Content, Size: len(in.Content),
		Digest: fmt.Sprintf("sha256:%064d", len(s.hub.configs)+1), Description: in.Description, Principal: User, CreatedAt: s.Now().UTC(),
	}
	s.hub.configs = append(s.hub.configs, v)
	answer(w, 201, client.ConfigPublished{ConfigVersion: v.ConfigVersion, Digest: v.Digest, Engine: v.Engine})
}

func (s *Server) hubValidate(w http.ResponseWriter, r *http.Request) {
	var in client.ConfigContent
	_ = json.NewDecoder(r.Body).Decode(&in)
	s.mu.Lock()
	defer s.mu.Unlock()
	lints := s.hub.lint(in)
	answer(w, 200, client.ConfigValidation{Valid: len(lints) == 0, Lints: lints})
}

func (s *Server) hubConfigs(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.hub.configs)
	all = slices.DeleteFunc(all, func(v client.ConfigVersion) bool {
		e := r.URL.Query().Get("engine")
		return e != "" && e != string(v.Engine)
	})
	slices.Reverse(all)
	for i := range all {
		all[i].Content = ""
	}
	pageOf(w, r, all)
}

func (s *Server) hubConfig(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.hub.configs {
		if v.ConfigVersion == r.PathValue("id") {
			answer(w, 200, v)
			return
		}
	}
	refuseHub(w, 404, "not_found", fmt.Sprintf("config version %q not found", r.PathValue("id")), nil)
}

func (s *Server) hubOperations(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	matches := func(name, value string) bool { return q.Get(name) == "" || q.Get(name) == value }
	var all []client.Operation
	for _, o := range slices.Backward(s.hub.operations) {
		if matches("node_id", o.NodeID) && matches("resource_id", o.ResourceID) && matches("operation", string(o.Operation)) &&
			matches("state", string(o.State)) && matches("correlation_id", o.CorrelationID) {
			all = append(all, *o)
		}
	}
	pageOf(w, r, all)
}

func (s *Server) hubOperation(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.operation(r.PathValue("id")); o != nil {
		answer(w, 200, o)
		return
	}
	refuseHub(w, 404, "not_found", fmt.Sprintf("operation %q not found", r.PathValue("id")), nil)
}

func (s *Server) hubCancel(w http.ResponseWriter, r *http.Request) {
	o := s.operation(r.PathValue("id"))
	switch {
	case o == nil:
		refuseHub(w, 404, "not_found", fmt.Sprintf("operation %q not found", r.PathValue("id")), nil)
	case o.State == hub.Converged || o.State == hub.Cancelled || o.State == hub.Superseded:
		refuseHub(w, 409, client.CodeOperationTerminal, fmt.Sprintf("operation %s is over: it is %s", o.IntentID, o.State), nil)
	default:
		now := s.Now().UTC()
		o.State, o.FinishedAt, o.Convergence, o.ConvergenceReason = hub.Cancelled, &now, hub.ConvergenceBlocked, "cancelled"
		v := *s.hub.streams[hub.StreamName(o.NodeID, o.ResourceID)]
		v.Convergence, v.ConvergenceReason = hub.ConvergenceBlocked, "cancelled"
		s.putStream(&v, client.Modified)
		answer(w, 200, o)
	}
}

func (s *Server) hubMetrics(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.found(w, r); v != nil {
		m := s.hub.metrics[hub.StreamName(v.NodeID, v.StreamID)]
		m.NodeID, m.StreamID = v.NodeID, v.StreamID
		answer(w, 200, m)
	}
}

// hubLogs waits for a line as long as it is asked to.
func (s *Server) hubLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	after, _ := strconv.ParseInt(q.Get("after"), 10, 64)
	limit, _ := strconv.Atoi(q.Get("limit"))
	wait, _ := time.ParseDuration(q.Get("wait"))
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.found(w, r)
	if v == nil {
		return
	}
	if s.hub.nodes[v.NodeID].State != hub.PresenceOnline {
		refuseHub(w, 503, client.CodeNodeUnavailable, fmt.Sprintf("node %q is not connected", v.NodeID), nil)
		return
	}
	defer context.AfterFunc(ctx, func() { s.mu.Lock(); s.cond.Broadcast(); s.mu.Unlock() })()
	lines := func() []agentapi.LogLine { return s.hub.logs[hub.StreamName(v.NodeID, v.StreamID)] }
	for after > 0 && int64(len(lines())) <= after && ctx.Err() == nil && !s.closed {
		s.cond.Wait()
	}
	all := lines()
	from := int(after)
	if after == 0 && limit > 0 {
		from = max(0, len(all)-limit)
	}
	items := append([]agentapi.LogLine{}, all[min(from, len(all)):]...)
	answer(w, 200, client.StreamLogs{Items: items, Next: int64(len(all))})
}

// hubEvents streams changes of streams as server-sent events.
func (s *Server) hubEvents(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	since, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	matches := func(v *client.Stream) bool {
		return (q.Get("node_id") == "" || q.Get("node_id") == v.NodeID) && (q.Get("stream_id") == "" || q.Get("stream_id") == v.StreamID) &&
			(q.Get("convergence") == "" || q.Get("convergence") == string(v.Convergence))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if since > 0 && since < s.floor {
		refuseHub(w, 410, "gone", "revision was compacted", nil)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(id int64, kind string, v any) {
		data, _ := json.Marshal(client.Event[any]{Type: kind, Object: v})
		if id > 0 {
			_, _ = fmt.Fprintf(w, "id: %d\n", id)
		}
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	}
	_, _ = io.WriteString(w, ": hello\n\n")
	if since == 0 {
		since = s.rev
		for _, name := range slices.Sorted(maps.Keys(s.hub.streams)) {
			if v := s.hub.streams[name]; matches(v) {
				send(0, client.Added, v)
			}
		}
		send(since, client.Bookmark, struct{}{})
	}
	epoch := s.epoch
	s.streams++
	defer func() { s.streams-- }()
	for !s.closed && s.epoch == epoch {
		for _, c := range s.hub.changes {
			if c.rev <= since {
				continue
			}
			since = c.rev
			kind := c.kind
			if !matches(&c.stream) {
				kind = client.Deleted
			}
			send(c.rev, kind, c.stream)
		}
		w.(http.Flusher).Flush()
		s.cond.Wait()
	}
}
