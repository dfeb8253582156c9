// Package presence is what one server knows of nodes without storing it: when each reported last and how far its
// reports got, the counters of its streams, the poll that it holds, and the questions that wait for it.
//
// All of it can be lost at any moment: a restarted server learns it again from the next reports, without asking.
package presence

import (
	"sync"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// Registry of the nodes that speak to this server. It is safe for concurrent use.
type Registry struct {
	now     func() time.Time
	started time.Time

	mu    sync.Mutex
	nodes map[string]*node
	// questions by their ids, until they are answered or given up.
	questions map[string]*question
	// nextFull is when the next full report may be asked for.
	nextFull time.Time
}

// node is one incarnation of a node: another one of the same name begins anew.
type node struct {
	uid string
	// reporting is held while a report of the node is taken in, so that they are taken in one after the other.
	reporting sync.Mutex

	cursor     agentapi.Cursor
	known      bool // cursor is
	lastReport time.Time
	streams    map[string]*counters
	poll       *Poll
	polled     time.Time
	questions  []*question
	// delivered are the attempts that were handed out lately, and when.
	delivered map[string]time.Time
	// fullSeen: a full report came since this server started.
	fullSeen  bool
	fullAsked time.Time
}

const (
	// fullEvery is the least time between two requests for full reports, to all nodes together: a thousand nodes that
	// come back at once are not asked at once.
	fullEvery = 5 * time.Millisecond
	// fullAgain is how long a node that was asked for a full report may take.
	fullAgain = 5 * time.Second
)

// New makes a registry that knows nothing yet.
func New(now func() time.Time) *Registry {
	return &Registry{now: now, started: now(), nodes: map[string]*node{}, questions: map[string]*question{}}
}

// of answers the node's entry, a new one for an incarnation that is seen first. r.mu is held.
func (r *Registry) of(name, uid string) *node {
	n := r.nodes[name]
	if n == nil || n.uid != uid {
		if n != nil {
			r.drop(n)
		}
		n = &node{uid: uid}
		r.nodes[name] = n
	}
	return n
}

func (r *Registry) drop(n *node) {
	if n.poll != nil {
		n.poll.signal()
	}
	for id, q := range r.questions {
		if q.node == n {
			delete(r.questions, id)
		}
	}
}

// Forget drops what is known of a node, unless it is a later incarnation than the one meant.
func (r *Registry) Forget(name, uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[name]; n != nil && n.uid == uid {
		r.drop(n)
		delete(r.nodes, name)
	}
}

// LastReport is when the node reported last to this server.
func (r *Registry) LastReport(name string) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[name]
	if n == nil || n.lastReport.IsZero() {
		return time.Time{}, false
	}
	return n.lastReport, true
}

// OfflineIn is how long the node may still be silent before it counts as offline; negative or zero: it does. A node
// that did not report since this server started is given the time from then.
func (r *Registry) OfflineIn(name string) time.Duration {
	last, ok := r.LastReport(name)
	if !ok {
		last = r.started
	}
	return last.Add(hub.OfflineAfter).Sub(r.now())
}

// ReportAges are the times since the last report of each node that reported to this server and is not offline.
func (r *Registry) ReportAges() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	ages := make([]time.Duration, 0, len(r.nodes))
	for _, n := range r.nodes {
		if age := now.Sub(n.lastReport); !n.lastReport.IsZero() && age < hub.OfflineAfter {
			ages = append(ages, age)
		}
	}
	return ages
}

// Knows tells whether something is known of this incarnation of a node.
func (r *Registry) Knows(name, uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[name]
	return n != nil && n.uid == uid
}

// Reporting lets one report of a node in at a time. The cursor is that of the newest report that this server took in,
// false when there was none: then what is stored decides.
func (r *Registry) Reporting(name, uid string) *Reporting {
	r.mu.Lock()
	n := r.of(name, uid)
	r.mu.Unlock()
	n.reporting.Lock()
	r.mu.Lock()
	defer r.mu.Unlock()
	return &Reporting{registry: r, node: n, Cursor: n.cursor, Known: n.known}
}

// Reporting is a report that is being taken in. Close it.
type Reporting struct {
	registry *Registry
	node     *node

	Cursor agentapi.Cursor
	Known  bool
}

// Close lets the next report in.
func (p *Reporting) Close() { p.node.reporting.Unlock() }

// Accept remembers a report that was taken in.
func (p *Reporting) Accept(in *agentapi.Report) {
	r, n := p.registry, p.node
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	cursor := agentapi.Cursor{BootSeq: in.BootSeq, ReportSeq: in.ReportSeq}
	if n.known && n.cursor.BootSeq != in.BootSeq {
		n.streams = nil
	}
	n.cursor, n.known, n.lastReport = cursor, true, now
	if in.Full {
		n.fullSeen, n.fullAsked = true, time.Time{}
	}
	n.count(in, now)
}

// AskFull tells whether a node is to be asked for a full report now: if it owes one, or sent none since this server
// started; but not again while it may be on its way, and not many nodes at once.
func (r *Registry) AskFull(name, uid string, owed bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[name]
	if n == nil || n.uid != uid || !owed && n.fullSeen {
		return false
	}
	now := r.now()
	if !n.fullAsked.IsZero() && now.Sub(n.fullAsked) < fullAgain || now.Before(r.nextFull) {
		return false
	}
	n.fullAsked, r.nextFull = now, now.Add(fullEvery)
	return true
}
