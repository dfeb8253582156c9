package model

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/hub"
)

// patience of an agent with one request.
const patience = 30 * time.Second

// node is a machine with an agent: the core on a store of its own, and around it what the agent's program does, in steps.
type node struct {
	w    *world
	name string
	// label tells two machines with one identity apart.
	label string
	disks int
	path  string
	store *crashStore
	core  *agent.Core
	// key and refresh are the identity, which is kept beside the store.
	key     ed25519.PrivateKey
	refresh string

	engine  *engine
	pending []agent.Effect
	token   string
	// challenge is what the next request for a session signs.
	challenge string
	calls     map[string]*call
	// reportedAt is when it reported last, by its clock.
	reportedAt time.Duration
	// suspended is for how long the machine stood still, its clock too.
	suspended time.Duration
	// disowned: the hub says that it is not enrolled (any more). conflicts counts how often it was told of another agent.
	disowned  bool
	conflicts int
}

// newNode registers a node and enrols its agent.
func newNode(w *world, name string) *node {
	w.t.Helper()
	n := &node{w: w, name: name, label: name, engine: newEngine()}
	out := w.hub.serve(&request{
		method: http.MethodPost, path: "/api/v1/nodes", header: operatorHeader(), body: encode(client.NodeRegistration{NodeID: name}),
	})
	n.install()
	n.enrol(out)
	return n
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what the model makes can be encoded
	}
	return b
}

func decode[T any](w *world, body []byte) T {
	w.t.Helper()
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		w.t.Fatalf("decode %s: %v", body, err)
	}
	return v
}

func (n *node) close() { _ = n.store.Close() }

// install gives the node an empty disk.
func (n *node) install() {
	n.disks++
	n.path = filepath.Join(n.w.dir, fmt.Sprintf("%s-%d.db", n.label, n.disks))
	n.store = openStore(n.w, n.path, agent.Kinds())
	n.boot()
}

// now is the node's clock, which stands still while the machine does.
func (n *node) now() time.Time { return n.w.steady().Add(-n.suspended) }

func (n *node) clock() time.Duration { return n.w.elapsed - n.suspended }

// boot starts the agent, as after a crash: the engine's runs are still there.
func (n *node) boot() {
	n.w.t.Helper()
	full := n.store.full
	// One that cannot begin waits for room.
	n.store.dead, n.store.writes, n.store.full = false, 0, false
	core, err := agent.OpenCore(ctx, agent.CoreConfig{
		Store: n.store, Now: n.now, Rand: func() float64 { return 0.5 }, NewID: func() string { return n.w.id("n") },
	})
	n.store.full = full
	if err != nil {
		n.w.t.Fatalf("%s: open the core: %v", n.label, err)
	}
	n.core, n.pending, n.calls, n.token, n.challenge = core, nil, map[string]*call{}, "", ""
}

// crash ends the agent at once and starts it again.
func (n *node) crash() {
	n.w.t.Helper()
	n.boot()
	n.w.note("%s: the agent is boot %d now", n.label, n.core.Boot().Seq)
}

// reopen ends the agent and opens its file anew.
func (n *node) reopen() {
	full := n.store.full
	n.close()
	n.store = openStore(n.w, n.path, agent.Kinds())
	n.store.full = full
	n.boot()
	n.w.note("%s: the agent is boot %d now, on its file opened anew", n.label, n.core.Boot().Seq)
}

func (n *node) revive() {
	if n.store.dead {
		n.w.note("%s: the agent died at a write", n.label)
		n.crash()
	}
}

// clean ends what earlier boots left over.
func (n *node) clean() {
	n.w.t.Helper()
	for _, token := range n.core.Leftovers() {
		delete(n.engine.runs, token)
	}
	if err := n.core.Cleaned(ctx); err != nil || n.store.dead {
		return
	}
	for _, r := range n.engine.runs {
		if r.core != n.core {
			n.w.t.Fatalf("%s: run %s of %s was left over, and nobody knows of it", n.label, r.token, r.stream)
		}
	}
}

// enrol makes the agent known with a key of its own. The operator carries the token over.
func (n *node) enrol(registered *served) {
	n.w.t.Helper()
	if registered.status != http.StatusCreated {
		n.w.t.Fatalf("register %s: %d %s", n.name, registered.status, registered.body)
	}
	token := decode[client.NodeEnrolment](n.w, registered.body).EnrolmentToken
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		n.w.t.Fatalf("make a key: %v", err)
	}
	boot := n.core.Boot()
	out := n.w.hub.serve(&request{method: http.MethodPost, path: "/agent/v1/enroll", body: encode(agentapi.EnrolRequest{
		NodeID: n.name, EnrolmentToken: token, ProtocolVersion: agentapi.ProtocolVersion, AgentVersion: "1.0.0",
		PublicKey: base64.StdEncoding.EncodeToString(public), Capabilities: []string{"process"}, BootID: boot.ID, BootSeq: boot.Seq,
	})})
	if out.status != http.StatusOK {
		n.w.t.Fatalf("enrol %s: %d %s", n.name, out.status, out.body)
	}
	answer := decode[agentapi.EnrolAnswer](n.w, out.body)
	n.key, n.refresh, n.token, n.disowned, n.challenge = key, answer.RefreshCredential, answer.SessionToken, false, ""
	n.calls = map[string]*call{}
	n.w.seen.enrolled(n.name)
}

// reenrol is what an operator does about a node that lost its disk, or that the hub does not know any more.
func (n *node) reenrol() {
	n.w.t.Helper()
	n.w.note("%s is enrolled anew", n.label)
	n.core.RequireFull()
	n.enrol(n.w.hub.serve(&request{method: http.MethodPost, path: "/api/v1/nodes/" + n.name + "/enrolment", header: operatorHeader()}))
}

// wipe loses the disk, and all processes with the machine.
func (n *node) wipe() {
	n.w.note("%s loses its disk", n.label)
	n.close()
	n.engine.runs = map[string]*run{}
	n.w.seen.wiped(n)
	n.install()
	n.reenrol()
}

// ask sends a request to the hub, unless one of the kind is under way.
func (n *node) ask(c *call) {
	if n.calls[c.kind] != nil {
		return
	}
	c.node, c.core, c.sent = n, n.core, int64(n.clock())
	n.calls[c.kind] = c
	n.w.send(packet{call: c})
}

func (c *call) String() string {
	s := fmt.Sprintf("%s of %s (boot %d)", c.kind, c.node.label, c.core.Boot().Seq)
	if c.report != nil {
		s += " " + sketch(c.report)
	}
	return s
}

// sketch is a report in the history.
func sketch(r *agentapi.Report) string {
	s := fmt.Sprintf("#%d", r.ReportSeq)
	if r.Full {
		s += " full"
	}
	for _, st := range r.Streams {
		s += fmt.Sprintf(" [%s %s gen %d %s", st.StreamID, st.State, st.Generation, st.ConfigVersion)
		if len(st.CompletedActions)+len(st.InterruptedActions) > 0 {
			s += fmt.Sprintf(" done %v interrupted %v", st.CompletedActions, st.InterruptedActions)
		}
		if st.Error != nil {
			s += " " + st.Error.Code
		}
		s += "]"
	}
	for _, a := range r.Attempts {
		s += fmt.Sprintf(" {%s %s", a.AttemptID, a.State)
		if a.Failure != nil {
			s += " " + a.Failure.Code
		}
		s += "}"
	}
	return s
}

func (n *node) authorized() map[string]string {
	return map[string]string{"Authorization": "Bearer " + n.token}
}

// timeOut gives up requests that are not answered.
func (n *node) timeOut() {
	for kind, c := range n.calls {
		if n.clock()-time.Duration(c.sent) >= patience {
			delete(n.calls, kind)
			if c.version != "" {
				n.fetched(c, nil)
			}
		}
	}
}

// talk sends what the agent has to say now.
func (n *node) talk() {
	n.w.t.Helper()
	n.timeOut()
	switch {
	case n.disowned:
		return
	case n.token == "":
		n.ask(n.session())
		return
	}
	if n.calls["report"] == nil && (n.core.Dirty() || n.clock()-n.reportedAt >= hub.HeartbeatEvery) {
		n.ask(n.report())
	}
	n.ask(&call{kind: "poll", request: &request{method: http.MethodGet, path: "/agent/v1/commands", header: n.authorized()}})
}

func (n *node) session() *call {
	boot := n.core.Boot()
	in := agentapi.SessionRequest{
		NodeID: n.name, RefreshCredential: n.refresh, BootID: boot.ID, BootSeq: boot.Seq,
		ProtocolVersion: agentapi.ProtocolVersion, AgentVersion: "1.0.0", Capabilities: []string{"process"},
	}
	if n.challenge != "" {
		in.Challenge = n.challenge
		in.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(n.key, agentapi.SessionStatement(n.name, boot.ID, n.challenge)))
	}
	return &call{kind: "session", request: &request{method: http.MethodPost, path: "/agent/v1/session", body: encode(in)}}
}

func (n *node) report() *call {
	heartbeat := n.clock()-n.reportedAt >= hub.HeartbeatEvery
	n.reportedAt = n.clock()
	r := n.core.Report(heartbeat, func(string) *agentapi.Metrics { return &agentapi.Metrics{} })
	c := &call{kind: "report", report: &r, truth: map[string]truth{}}
	for _, s := range r.Streams {
		c.truth[s.StreamID] = n.truth(s.StreamID)
	}
	c.request = &request{method: http.MethodPost, path: "/agent/v1/reports", header: n.authorized(), body: encode(r)}
	return c
}

func (n *node) fetch(e agent.Effect) {
	c := &call{
		kind: "content " + e.ConfigVersion + " " + e.Digest, version: e.ConfigVersion, digest: e.Digest,
		request: &request{method: http.MethodGet, path: "/agent/v1/config-versions/" + e.ConfigVersion, header: n.authorized()},
	}
	if n.token == "" {
		n.fetched(c, nil)
		return
	}
	n.ask(c)
}

// fetched tells the core what became of a content; nil: it did not come.
func (n *node) fetched(c *call, content *agentapi.ConfigContent) {
	var why *hub.Failure
	if content == nil {
		why = &hub.Failure{Class: hub.Transient, Code: "config_unavailable", Message: "the hub did not answer"}
	}
	n.core.Fetched(ctx, c.version, c.digest, content, why)
}

// answered takes in what the hub said, if this boot still waits for it.
func (n *node) answered(c *call, out *served) {
	n.w.t.Helper()
	if n.core != c.core || n.calls[c.kind] != c {
		return
	}
	delete(n.calls, c.kind)
	if !out.ok() {
		n.refused(c, out)
		return
	}
	switch {
	case c.kind == "session":
		n.token, n.challenge = decode[agentapi.Session](n.w, out.body).SessionToken, ""
	case c.report != nil:
		n.core.Reported(*c.report, decode[agentapi.ReportAnswer](n.w, out.body))
	case c.version != "":
		content := decode[agentapi.ConfigContent](n.w, out.body)
		n.fetched(c, &content)
	default:
		n.polled(decode[agentapi.Commands](n.w, out.body))
	}
}

func (n *node) polled(in agentapi.Commands) {
	n.w.t.Helper()
	if in.FullRequired {
		n.core.RequireFull()
	}
	if len(in.Commands) == 0 {
		return
	}
	err := n.core.Accept(ctx, in.Commands, n.now())
	for _, c := range in.Commands {
		n.w.note("%s: takes %s: %s gen %d %s %s %s: %v", n.label, c.AttemptID, c.StreamID, c.Generation, c.State, c.ConfigVersion, c.ActionID, err)
	}
}

// refused is what the agent's program does about each code.
func (n *node) refused(c *call, out *served) {
	if c.version != "" {
		n.fetched(c, nil)
	}
	switch out.code() {
	case agentapi.CodeChallenge:
		var details struct{ Details struct{ Challenge string } }
		_ = json.Unmarshal(out.body, &details)
		n.challenge = details.Details.Challenge
	case agentapi.CodeStaleReport:
		var details struct{ Details agentapi.Cursor }
		_ = json.Unmarshal(out.body, &details)
		if n.core.Stale(details.Details.BootSeq, details.Details.ReportSeq) {
			n.conflicts++
		}
	case agentapi.CodeFullReportRequired:
		n.core.RequireFull()
	case agentapi.CodeNotEnrolled:
		n.disowned, n.token = true, ""
	case agentapi.CodeSessionSuperseded, agentapi.CodeIdentityConflict:
		n.conflicts++
		n.token, n.challenge = "", ""
	case agentapi.CodeSessionExpired, agentapi.CodeUnauthorized:
		n.token, n.challenge = "", ""
	}
}

// look asks the core what is to be done, and checks that it may be.
func (n *node) look() {
	n.w.t.Helper()
	effects, _ := n.core.Effects(ctx)
	if n.store.dead {
		return // it died before anything was done
	}
	for _, e := range effects {
		n.w.seen.effect(n, e)
		if e.Kind == agent.EffectStart {
			n.w.note("%s: starts %s gen %d with %s", n.label, e.Stream, e.Generation, e.ConfigVersion)
			n.engine.runs[e.Token] = &run{
				stream: e.Stream, token: e.Token, version: e.ConfigVersion, digest: digestOf(e.Content),
				behaviour: behaviourOf(e.Content), core: n.core,
			}
		}
		if e.Kind == agent.EffectStop {
			n.w.note("%s: stops %s gen %d (final %v)", n.label, e.Stream, e.Generation, e.Final)
		}
	}
	n.pending = append(n.pending, effects...)
}

// truth is what a node knows better than its reports.
type truth struct {
	// live are the digests of what runs and is ready; pending counts the other runs.
	live    []string
	pending int
}

func (n *node) truth(stream string) truth {
	var t truth
	for _, token := range n.engine.tokens(n.core) {
		r := n.engine.runs[token]
		switch {
		case r.stream != stream:
		case r.ready && !r.stopping:
			t.live = append(t.live, r.digest)
		default:
			t.pending++
		}
	}
	return t
}

// settle lets everything happen on the node that can, the hub aside.
func (n *node) settle() {
	n.w.t.Helper()
	for range 200 {
		n.look()
		n.revive()
		moved := len(n.pending) > 0
		for len(n.pending) > 0 {
			n.act(0)
			n.revive()
		}
		for _, token := range n.engine.tokens(n.core) {
			if r := n.engine.runs[token]; r != nil && r.core == n.core {
				moved = n.progress(r) || moved
				n.revive()
			}
		}
		if !moved {
			return
		}
	}
	n.w.t.Fatalf("%s does not come to rest", n.label)
}

// exchange lets the node talk with the hub without any fault, once.
func (n *node) exchange() {
	n.w.t.Helper()
	for range 2 { // a session takes two requests
		n.talk()
		n.w.flush(n)
		if n.token != "" {
			break
		}
	}
	n.talk()
	n.w.flush(n)
	n.revive()
}

// flush lets what a node has sent arrive, and the answers too.
func (w *world) flush(n *node) {
	w.t.Helper()
	for {
		i := slices.IndexFunc(w.network.toHub, func(p packet) bool { return p.call != nil && p.call.node == n })
		if i < 0 {
			break
		}
		w.deliver(i, false)
		w.check()
	}
	for {
		i := slices.IndexFunc(w.network.toNode, func(a answer) bool { return a.call.node == n })
		if i < 0 {
			return
		}
		w.deliverAnswer(i)
		n.revive()
	}
}
