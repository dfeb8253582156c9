package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// proof is the newest that the hub was told of a stream, with what was true then.
type proof struct {
	report agentapi.StreamReport
	truth  truth
}

// cursor is the newest report of a node that the hub took in.
type cursor struct {
	agentapi.Cursor
	// stored is the newest that changed something, start the hub's process that took the newest in.
	stored agentapi.Cursor
	start  int
}

// seen is what an observer who sees all remembers, to check what happens next.
type seen struct {
	// proofs by "node/stream", done by "node/stream/action".
	proofs map[string]proof
	done   map[string]bool
	// cursors of the newest report of each node that the hub took in.
	cursors map[string]cursor
	intents map[string]hub.Intent

	// highest generation that a machine accepted, reached is the highest that it made true, by "label/stream".
	highest, reached map[string]int64
	// begunBy is the boot that began a restart, stops how often a run was ended for it, by "node/stream/action".
	begunBy map[string]*agent.Core
	stops   map[string]int

	revision int64
}

func newSeen() *seen {
	return &seen{
		proofs: map[string]proof{}, done: map[string]bool{}, cursors: map[string]cursor{}, intents: map[string]hub.Intent{},
		highest: map[string]int64{}, reached: map[string]int64{}, begunBy: map[string]*agent.Core{}, stops: map[string]int{},
	}
}

// hubPart copies what the hub's records are compared with, for when they go back in time.
func (s *seen) hubPart() seen {
	return seen{proofs: maps.Clone(s.proofs), done: maps.Clone(s.done), cursors: maps.Clone(s.cursors)}
}

// goBack takes over a copy.
func (s *seen) goBack(c seen) {
	s.proofs, s.done, s.cursors = maps.Clone(c.proofs), maps.Clone(c.done), maps.Clone(c.cursors)
	s.intents, s.revision = map[string]hub.Intent{}, 0
}

func (s *seen) enrolled(node string) { delete(s.cursors, node) }

func (s *seen) wiped(n *node) {
	for key := range s.highest {
		if strings.HasPrefix(key, n.label+"/") {
			delete(s.highest, key)
			delete(s.reached, key)
		}
	}
}

// agentServed looks at what the hub did about an agent's request.
func (s *seen) agentServed(w *world, c *call, out *served) {
	w.t.Helper()
	if c.report == nil || !out.done() {
		return
	}
	r, node := c.report, c.node.name
	at := agentapi.Cursor{BootSeq: r.BootSeq, ReportSeq: r.ReportSeq}
	newest := s.cursors[node]
	if newest.start != w.hub.starts {
		// What is not stored with a change is not remembered by a hub that was started anew.
		newest.Cursor = newest.stored
	}
	if !newest.Before(at) {
		w.t.Fatalf("report %+v of %s was taken in after %+v", at, node, newest)
	}
	newest.Cursor, newest.start = at, w.hub.starts
	if out.committed {
		newest.stored = at
	}
	s.cursors[node] = newest
	if r.Full {
		s.forget(w, node)
	}
	for _, st := range r.Streams {
		key := node + "/" + st.StreamID
		s.proofs[key] = proof{st, c.truth[st.StreamID]}
		for _, action := range st.CompletedActions {
			s.done[key+"/"+action] = true
		}
	}
}

// forget: a full report tells of what it lacks, too.
func (s *seen) forget(w *world, node string) {
	known := slices.Collect(maps.Keys(s.proofs))
	for _, key := range slices.AppendSeq(known, maps.Keys(w.operator.targets)) {
		if strings.HasPrefix(key, node+"/") {
			s.proofs[key] = proof{report: agentapi.StreamReport{State: hub.Absent}}
		}
	}
}

// effect looks at what an agent is about to do.
func (s *seen) effect(n *node, e agent.Effect) {
	n.w.t.Helper()
	key := n.label + "/" + e.Stream
	st := n.status(e.Stream)
	sameVersion := e.ConfigVersion == st.Target.ConfigVersion && e.Digest == st.Target.Digest
	action := st.Target.ActionID
	switch e.Kind {
	case agent.EffectStart:
		for _, r := range n.engine.runs {
			if r.stream == e.Stream {
				n.w.t.Fatalf("%s: %s is started beside a run that there is", n.label, e.Stream)
			}
		}
		if digestOf(e.Content) != e.Digest {
			n.w.t.Fatalf("%s: %s is started with a content that is not %s", n.label, e.Stream, e.Digest)
		}
		if e.Generation > st.Target.Generation || e.Generation < s.reached[key] {
			n.w.t.Fatalf("%s: %s is started at generation %d, accepted is %d, reached was %d", n.label, e.Stream, e.Generation, st.Target.Generation, s.reached[key])
		}
		if e.Generation == st.Target.Generation && action != "" && !slices.Contains(st.CompletedActions, action) && !slices.Contains(st.InterruptedActions, action) {
			s.begin(n, e.Stream, action)
		}
	case agent.EffectStop:
		if e.Final || !sameVersion || action == "" {
			return
		}
		// Nothing but the restart ends a run of what is to run.
		s.begin(n, e.Stream, action)
		id := n.name + "/" + e.Stream + "/" + action
		if s.stops[id]++; s.stops[id] > 1 {
			n.w.t.Fatalf("%s: restart %s of %s is run a second time", n.label, action, e.Stream)
		}
	}
}

// begin notes that a boot is at work on a restart, which no other may be after it.
func (s *seen) begin(n *node, stream, action string) {
	n.w.t.Helper()
	id := n.name + "/" + stream + "/" + action
	if by := s.begunBy[id]; by != nil && by != n.core {
		n.w.t.Fatalf("%s: restart %s of %s was begun by an earlier boot, and is begun again", n.label, action, stream)
	}
	s.begunBy[id] = n.core
}

func (n *node) status(stream string) agent.StreamStatus {
	for _, st := range n.core.Streams() {
		if st.StreamID == stream {
			return st
		}
	}
	return agent.StreamStatus{}
}

// node looks at what a machine has accepted.
func (s *seen) node(n *node) {
	n.w.t.Helper()
	for _, st := range n.core.Streams() {
		key := n.label + "/" + st.StreamID
		if st.Target.Generation < s.highest[key] {
			n.w.t.Fatalf("%s: %s went back from generation %d to %d", n.label, st.StreamID, s.highest[key], st.Target.Generation)
		}
		s.highest[key] = st.Target.Generation
		if st.Attempt != nil && st.Attempt.State == hub.Succeeded {
			s.reached[key] = max(s.reached[key], st.Attempt.Generation)
		}
	}
}

// check compares everything with everything, when something has changed.
func (w *world) check() {
	w.t.Helper()
	for _, n := range w.nodes {
		w.seen.node(n)
	}
	revision := w.hub.revision()
	if revision == w.seen.revision {
		return
	}
	w.seen.revision = revision
	names := map[string]bool{}
	for _, n := range w.nodes {
		if !names[n.name] {
			names[n.name] = true
			w.checkStreams(n.name)
		}
	}
	w.checkIntents()
}

// checkStreams reads the streams of a node as operators do.
func (w *world) checkStreams(node string) {
	w.t.Helper()
	found := 0
	for _, s := range get[client.HubPage[client.Stream]](w, "/api/v1/nodes/"+node+"/streams?page_size=100").Items {
		key := node + "/" + s.StreamID
		t, declared := w.operator.targets[key]
		if (s.Desired != nil) != declared || declared && (*s.Desired != t.desired || s.IntentID != t.intent) {
			w.t.Fatalf("%s is desired %+v (%s), and was declared %+v", key, s.Desired, s.IntentID, t)
		}
		if declared {
			found++
		}
		p, told := w.seen.proofs[key]
		if s.Observed != nil && (!told || s.Observed.State != p.report.State || s.Observed.Generation != p.report.Generation || s.Observed.ConfigVersion != p.report.ConfigVersion) {
			w.t.Fatalf("%s is observed %+v, and the newest report said %+v", key, s.Observed, p.report)
		}
		if s.Convergence == hub.InSync {
			w.checkProof(key, &t.desired)
		}
	}
	for key := range w.operator.targets {
		if strings.HasPrefix(key, node+"/") {
			found--
		}
	}
	if found != 0 {
		w.t.Fatalf("streams of %s that were declared are not there", node)
	}
}

// checkProof fails unless the newest report proves that the target is reached, and told the truth.
func (w *world) checkProof(key string, d *hub.Desired) {
	w.t.Helper()
	p := w.seen.proofs[key]
	r := p.report
	switch {
	case r.Generation != d.Generation || r.State != d.State || d.State != hub.Absent && r.ConfigVersion != d.ConfigVersion:
		w.t.Fatalf("%s is in_sync with %+v, and the newest report said %+v", key, d, r)
	case d.ActionID != "" && !w.seen.done[key+"/"+d.ActionID]:
		w.t.Fatalf("%s is in_sync, and no report proved the restart %s", key, d.ActionID)
	case d.State == hub.Running && (len(p.truth.live) != 1 || p.truth.live[0] != digestOf(w.operator.contents[d.ConfigVersion])):
		w.t.Fatalf("%s is in_sync with %+v (%q), and what ran was %+v", key, d, w.operator.contents[d.ConfigVersion], p.truth)
	case d.State != hub.Running && len(p.truth.live)+p.truth.pending > 0:
		w.t.Fatalf("%s is in_sync with %+v, and what ran was %+v", key, d, p.truth)
	}
}

// checkIntents reads the records of operations.
func (w *world) checkIntents() {
	w.t.Helper()
	active := map[string]string{}
	now := map[string]hub.Intent{}
	w.hub.view(func(r store.Reader) error {
		all, _, err := hub.Operations.List(r, store.Query{})
		for _, o := range all {
			now[o.Name] = o.Status
		}
		return err
	})
	for _, id := range slices.Sorted(maps.Keys(now)) {
		i := now[id]
		if i.Attempt.Active() {
			generation := fmt.Sprintf("%s/%s at %d", i.Node, i.Resource, i.Generation)
			if other := active[generation]; other != "" {
				w.t.Fatalf("%s and %s have active attempts for one generation", other, id)
			}
			active[generation] = id
		}
		if i.Retry.Count > i.Retry.Budget {
			w.t.Fatalf("%s was tried %d times, its budget is %d", id, i.Retry.Count, i.Retry.Budget)
		}
		before, known := w.seen.intents[id]
		if i.State != before.State {
			w.tally["intent "+string(i.State)]++
		}
		if a, b := before.Attempt, i.Attempt; b != nil && (a == nil || a.State != b.State) {
			w.tally["attempt "+string(b.State)]++
		}
		if known {
			w.checkStep(&before, &i)
		}
	}
	w.seen.intents = now
}

// checkStep looks at how an intent went on.
func (w *world) checkStep(before, now *hub.Intent) {
	w.t.Helper()
	if (before.State == hub.Superseded || before.State == hub.Cancelled) && now.State != before.State {
		w.t.Fatalf("%s was %s, and is %s", now.ID, before.State, now.State)
	}
	if before.State != hub.Converged && now.State == hub.Converged {
		w.checkProof(hub.StreamName(now.Node, now.Resource), &now.Desired)
	}
	if a, b := before.Attempt, now.Attempt; a.Active() && b.ID != a.ID {
		w.t.Fatalf("%s: attempt %s was %s when %s was begun", now.ID, a.ID, a.State, b.ID)
	}
	if now.Attempts < before.Attempts || now.Desired != before.Desired {
		w.t.Fatalf("%s was %+v, and is %+v", now.ID, before, now)
	}
	if before.ActionDone && !now.ActionDone {
		w.t.Fatalf("%s: the restart was proven, and is not any more", now.ID)
	}
}
