package model

import (
	"bytes"
	"slices"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent"
)

// call is a request that an agent has sent. Its answer counts while that boot of the agent waits for it.
type call struct {
	node    *node
	core    *agent.Core
	kind    string
	request *request
	// sent is when, by the node's clock.
	sent int64
	// report, with what was true on the node when it was made.
	report *agentapi.Report
	truth  map[string]truth
	// version and digest of a content that is fetched.
	version, digest string
}

// packet is on its way to the hub.
type packet struct {
	call  *call
	write *write
}

func (p packet) String() string {
	if p.write != nil {
		return p.write.String()
	}
	return p.call.String()
}

// answer is on its way back to a node.
type answer struct {
	call *call
	out  *served
}

// network holds what is on its way. What is sent arrives once, twice or not at all, in any order.
type network struct {
	toHub  []packet
	toNode []answer
}

func (w *world) send(p packet) { w.network.toHub = append(w.network.toHub, p) }

// lose drops what is on its way to the hub.
func (w *world) lose(i int) {
	w.note("lost: %s", w.network.toHub[i])
	w.network.toHub = slices.Delete(w.network.toHub, i, i+1)
}

// deliver lets something arrive at the hub; twice: it will arrive once more.
func (w *world) deliver(i int, twice bool) {
	w.t.Helper()
	p := w.network.toHub[i]
	if !twice {
		w.network.toHub = slices.Delete(w.network.toHub, i, i+1)
	}
	out := w.arrive(p)
	if p.call != nil && !out.died {
		w.network.toNode = append(w.network.toNode, answer{p.call, out})
	}
}

// arrive lets the hub handle what arrived, and looks at what it does.
func (w *world) arrive(p packet) *served {
	w.t.Helper()
	if p.write != nil {
		return w.operator.arrived(p.write)
	}
	out := w.hub.serve(p.call.request)
	if !out.ok() || !p.call.idle(out) {
		w.note("hub: %s: %s", p.call, out)
	}
	w.seen.agentServed(w, p.call, out)
	return out
}

// idle tells whether a request and its answer say nothing new.
func (c *call) idle(out *served) bool {
	if c.report != nil {
		return !c.report.Full && len(c.report.Streams)+len(c.report.Attempts) == 0
	}
	return c.kind == "poll" && bytes.Contains(out.body, []byte(`"commands":[],"full_required":false`))
}

// loseAnswer drops what is on its way back.
func (w *world) loseAnswer(i int) {
	w.note("lost: the answer to %s", w.network.toNode[i].call)
	w.network.toNode = slices.Delete(w.network.toNode, i, i+1)
}

func (w *world) deliverAnswer(i int) {
	w.t.Helper()
	a := w.network.toNode[i]
	w.network.toNode = slices.Delete(w.network.toNode, i, i+1)
	a.call.node.answered(a.call, a.out)
}
