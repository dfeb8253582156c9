// Package hubtest is a hub for tests of agents: it speaks the agents' protocol, keeps nothing durably, and can be taken
// away and brought back.
package hubtest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// Token enrols a node.
const Token = "enrolment-token"

// Hub is a server with one node.
type Hub struct {
	*httptest.Server
	t testing.TB

	mu      sync.Mutex
	changed chan struct{}
	boot    hub.Boot
	seq     int64
	streams map[string]agentapi.StreamReport
	// Attempts are the newest that was told of each.
	attempts map[string]agentapi.AttemptReport
	configs  map[string]agentapi.ConfigContent
	queue    []agentapi.Command
	// newest command of each stream; a new boot that has not answered it gets it again.
	newest   map[string]agentapi.Command
	requests []agentapi.Request
	answers  map[string]agentapi.LogAnswer
	refusal  *agentapi.Error
	reports  int
	full     int
	sessions int
	attempt  int
}

// New starts a hub that ends with the test.
func New(t testing.TB) *Hub {
	t.Helper()
	h := &Hub{
		t: t, changed: make(chan struct{}), streams: map[string]agentapi.StreamReport{}, attempts: map[string]agentapi.AttemptReport{},
		configs: map[string]agentapi.ConfigContent{}, answers: map[string]agentapi.LogAnswer{},
		newest: map[string]agentapi.Command{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /agent/v1/enroll", h.enrol)
	mux.HandleFunc("POST /agent/v1/session", h.session)
	mux.HandleFunc("POST /agent/v1/reports", h.report)
	mux.HandleFunc("GET /agent/v1/commands", h.commands)
	mux.HandleFunc("GET /agent/v1/config-versions/{id}", h.config)
	mux.HandleFunc("POST /agent/v1/requests/{id}", h.answer)
	h.Server = httptest.NewServer(h.refusing(mux))
	t.Cleanup(h.Close)
	return h
}

// refusing answers the refusal that is set.
func (h *Hub) refusing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		refusal := h.refusal
		h.mu.Unlock()
		if refusal != nil {
			fail(w, refusal.Status, refusal.Code, nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func fail(w http.ResponseWriter, status int, code string, details any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": code, "message": "refused: " + code, "details": details})
}

func answer(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

// change wakes all that wait. The lock is held.
func (h *Hub) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Hub) enrol(w http.ResponseWriter, r *http.Request) {
	var in agentapi.EnrolRequest
	if json.NewDecoder(r.Body).Decode(&in) != nil || in.EnrolmentToken != Token {
		fail(w, http.StatusForbidden, agentapi.CodeEnrolmentRefused, nil)
		return
	}
	answer(w, agentapi.EnrolAnswer{Session: agentapi.Session{SessionToken: "session", ExpiresIn: 3600}, RefreshCredential: "refresh"})
}

func (h *Hub) session(w http.ResponseWriter, r *http.Request) {
	var in agentapi.SessionRequest
	if json.NewDecoder(r.Body).Decode(&in) != nil || in.RefreshCredential != "refresh" {
		fail(w, http.StatusUnauthorized, agentapi.CodeUnauthorized, nil)
		return
	}
	if in.Signature == "" {
		fail(w, http.StatusUnauthorized, agentapi.CodeChallenge, map[string]string{"challenge": "c"})
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if in.BootSeq < h.boot.Seq {
		fail(w, http.StatusConflict, agentapi.CodeSessionSuperseded, nil)
		return
	}
	if h.boot.ID != in.BootID {
		h.boot, h.seq, h.queue = hub.Boot{ID: in.BootID, Seq: in.BootSeq}, 0, nil
		for _, c := range h.newest {
			if _, answered := h.attempts[c.AttemptID]; !answered {
				h.queue = append(h.queue, c)
			}
		}
	}
	h.sessions++
	answer(w, agentapi.Session{SessionToken: "session", ExpiresIn: 3600})
}

func (h *Hub) report(w http.ResponseWriter, r *http.Request) {
	var in agentapi.Report
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, agentapi.CodeBadRequest, nil)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case in.BootSeq < h.boot.Seq || in.ReportSeq <= h.seq:
		fail(w, http.StatusConflict, agentapi.CodeStaleReport, agentapi.Cursor{BootSeq: h.boot.Seq, ReportSeq: h.seq})
		return
	case h.seq == 0 && !in.Full:
		fail(w, http.StatusConflict, agentapi.CodeFullReportRequired, nil)
		return
	}
	h.seq = in.ReportSeq
	h.reports++
	if in.Full {
		h.full++
		clear(h.streams)
	}
	for _, s := range in.Streams {
		h.streams[s.StreamID] = s
	}
	for _, a := range in.Attempts {
		h.attempts[a.AttemptID] = a
	}
	h.change()
	answer(w, agentapi.ReportAnswer{AcceptedSeq: in.ReportSeq})
}

func (h *Hub) commands(w http.ResponseWriter, r *http.Request) {
	wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		h.mu.Lock()
		out, next := agentapi.Commands{Commands: h.queue, Requests: h.requests}, h.changed
		h.queue, h.requests = nil, nil
		h.mu.Unlock()
		if len(out.Commands)+len(out.Requests) > 0 {
			answer(w, out)
			return
		}
		select {
		case <-next:
		case <-over.C:
			answer(w, out)
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (h *Hub) config(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	c, known := h.configs[r.PathValue("id")]
	h.mu.Unlock()
	if !known {
		fail(w, http.StatusNotFound, agentapi.CodeNotFound, nil)
		return
	}
	answer(w, c)
}

func (h *Hub) answer(w http.ResponseWriter, r *http.Request) {
	var in agentapi.LogAnswer
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		fail(w, http.StatusBadRequest, agentapi.CodeBadRequest, nil)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers[r.PathValue("id")] = in
	h.change()
	w.WriteHeader(http.StatusNoContent)
}

// Publish makes a config version.
func (h *Hub) Publish(version string, engine hub.Engine, content string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := sha256.Sum256([]byte(content))
	h.configs[version] = agentapi.ConfigContent{ConfigVersion: version, Engine: engine, Content: content, Digest: "sha256:" + hex.EncodeToString(sum[:])}
}

// Send hands a command to the node, with a new attempt, whose id it answers.
func (h *Hub) Send(stream string, generation int64, state hub.State, version, action string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempt++
	id := fmt.Sprintf("attempt-%d-%d", generation, h.attempt)
	c := agentapi.Command{
		AttemptID: id, IntentID: fmt.Sprintf("intent-%d-%d", generation, h.attempt), StreamID: stream, Generation: generation, State: state,
		ConfigVersion: version, Digest: h.configs[version].Digest, ActionID: action, ExpiresInMS: 30_000,
	}
	h.queue, h.newest[stream] = append(h.queue, c), c
	h.change()
	return id
}

// Refuse makes the hub refuse everything, until it is called with an empty code.
func (h *Hub) Refuse(status int, code string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusal = nil
	if code != "" {
		h.refusal = &agentapi.Error{Status: status, Code: code}
	}
	h.change()
}

// deadline of what a test waits for. It is not a measure: slow machines exist.
const deadline = time.Minute

// await waits until f says so; what is for the message.
func (h *Hub) await(what string, f func() bool, state func() any) {
	h.t.Helper()
	over := time.NewTimer(deadline)
	defer over.Stop()
	for {
		h.mu.Lock()
		done, next := f(), h.changed
		h.mu.Unlock()
		if done {
			return
		}
		select {
		case <-next:
		case <-over.C:
			h.mu.Lock()
			defer h.mu.Unlock()
			h.t.Fatalf("waited in vain for %s; there is %+v", what, state())
		}
	}
}

// AwaitStream waits for a report of a stream that f accepts, and answers it.
func (h *Hub) AwaitStream(stream, what string, f func(agentapi.StreamReport) bool) agentapi.StreamReport {
	h.t.Helper()
	var got agentapi.StreamReport
	h.await(stream+" "+what, func() bool {
		s, known := h.streams[stream]
		got = s
		return known && f(s)
	}, func() any { raw, _ := json.Marshal(h.streams); return string(raw) })
	return got
}

// AwaitState waits until a stream is reported in a state and a generation.
func (h *Hub) AwaitState(stream string, state hub.State, generation int64) agentapi.StreamReport {
	h.t.Helper()
	return h.AwaitStream(stream, fmt.Sprintf("to be %s at generation %d", state, generation), func(s agentapi.StreamReport) bool {
		return s.State == state && s.Generation == generation
	})
}

// AwaitAttempt waits until an attempt has ended, and answers it.
func (h *Hub) AwaitAttempt(id string) agentapi.AttemptReport {
	h.t.Helper()
	var got agentapi.AttemptReport
	h.await("the end of "+id, func() bool {
		got = h.attempts[id]
		return got.State == hub.Succeeded || got.State == hub.AttemptFail
	}, func() any { return h.attempts[id] })
	return got
}

// AwaitBoot waits for a full report of a boot.
func (h *Hub) AwaitBoot(seq int64) {
	h.t.Helper()
	h.await(fmt.Sprintf("boot %d", seq), func() bool { return h.boot.Seq >= seq && h.seq > 0 }, func() any { return h.boot })
}

// Boot is the number of the newest boot that the hub knows.
func (h *Hub) Boot() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boot.Seq
}

// AwaitReports waits for so many more reports.
func (h *Hub) AwaitReports(more int) {
	h.t.Helper()
	h.mu.Lock()
	wanted := h.reports + more
	h.mu.Unlock()
	h.await("reports", func() bool { return h.reports >= wanted }, func() any { return h.reports })
}

// Logs asks the node for a log until the answer contains a text.
func (h *Hub) Logs(stream, text string) agentapi.LogAnswer {
	h.t.Helper()
	var got agentapi.LogAnswer
	for i := 0; ; i++ {
		id := fmt.Sprintf("request-%s-%d", stream, i)
		h.mu.Lock()
		delete(h.answers, id)
		h.requests = append(h.requests, agentapi.Request{RequestID: id, Kind: "logs", StreamID: stream, Limit: 100})
		h.change()
		h.mu.Unlock()
		h.await("the log of "+stream, func() bool {
			a, there := h.answers[id]
			got = a
			return there
		}, func() any { return nil })
		var all strings.Builder
		for _, l := range got.Lines {
			all.WriteString(l.Text + "\n")
		}
		if text == "" || got.Error != "" || strings.Contains(all.String(), text) {
			return got
		}
		if i > 1000 {
			h.t.Fatalf("the log of %s has no %q:\n%s", stream, text, all.String())
		}
		h.AwaitReports(1)
	}
}

// Sessions counts the sessions that were made.
func (h *Hub) Sessions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions
}
