package fleet

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// node is what an agent keeps: of each stream the newest generation that it accepted, and what became of it.
type node struct {
	// start is what an engine needs to start.
	start *atomic.Int64
	wake  chan struct{}

	mu       sync.Mutex
	boot     hub.Boot
	seq      int64
	streams  map[string]*stream
	attempts map[string]agentapi.AttemptReport
	// outbox are the attempts, and changed the streams, that the hub is to be told of; full: of all.
	outbox  map[string]bool
	changed map[string]bool
	full    bool
	// answered is closed and replaced when a report was answered.
	answered chan struct{}
	// wanted and proven are the newest generations of each stream that were asked for, and that the hub knows to be there.
	wanted, proven map[string]int64
	faults         []string
}

type stream struct {
	accepted agentapi.Command
	state    hub.State
	done     []string
	// runs counts how often each restart was begun; repeats, how often another command asked for one that was.
	runs    map[string]int
	repeats int
}

func newNode(start *atomic.Int64) *node {
	return &node{
		start: start, wake: make(chan struct{}, 1), boot: hub.Boot{ID: "boot-1", Seq: 1}, full: true,
		streams: map[string]*stream{}, attempts: map[string]agentapi.AttemptReport{}, outbox: map[string]bool{},
		changed: map[string]bool{}, answered: make(chan struct{}), wanted: map[string]int64{}, proven: map[string]int64{},
	}
}

// accept takes commands over as the protocol asks: a known attempt is answered as it was, generations never go back, and
// a restart is begun once. It answers whether there is something to tell of them.
func (n *node) accept(commands []agentapi.Command) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range commands {
		n.take(&commands[i])
	}
	n.kick()
	return len(n.outbox) > 0
}

func (n *node) take(c *agentapi.Command) {
	s := n.streams[c.StreamID]
	if s == nil {
		s = &stream{state: hub.Absent, runs: map[string]int{}}
		n.streams[c.StreamID] = s
	}
	_, known := n.attempts[c.AttemptID]
	switch {
	case known:
		n.outbox[c.AttemptID] = true
		return
	case c.ExpiresInMS <= 0:
		return
	case c.Generation < s.accepted.Generation:
		n.end(c, &hub.Failure{Class: hub.Incompatible, Code: "stale_generation", Message: "a newer generation was accepted"})
		return
	case c.Generation == s.accepted.Generation && (c.State != s.accepted.State || c.ConfigVersion != s.accepted.ConfigVersion):
		n.end(c, &hub.Failure{Class: hub.Incompatible, Code: "generation_conflict", Message: "the generation has another content"})
		n.faults = append(n.faults, fmt.Sprintf("%s: two contents of generation %d", c.StreamID, c.Generation))
		return
	}
	if before := s.accepted.AttemptID; before != "" && n.attempts[before].State == hub.Acknowledged {
		n.end(&s.accepted, &hub.Failure{Class: hub.Transient, Code: "superseded", Message: "a newer command came"})
	}
	if c.ActionID != "" {
		if s.runs[c.ActionID] > 0 {
			s.repeats++
		} else {
			s.runs[c.ActionID]++
		}
	}
	s.accepted = *c
	n.tell(c.AttemptID, agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.Acknowledged})
	n.changed[c.StreamID] = true
	start := time.Duration(n.start.Load())
	if start == 0 || c.State != hub.Running {
		n.settle(s)
		return
	}
	s.state = hub.Starting
	attempt := c.AttemptID
	time.AfterFunc(start, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if s.accepted.AttemptID == attempt {
			n.settle(s)
			n.kick()
		}
	})
}

// settle: the stream is as it was asked for.
func (n *node) settle(s *stream) {
	c := &s.accepted
	s.state = c.State
	if c.ActionID != "" && !slices.Contains(s.done, c.ActionID) {
		s.done = append(s.done, c.ActionID)
	}
	n.changed[c.StreamID] = true
	n.end(c, nil)
}

func (n *node) end(c *agentapi.Command, why *hub.Failure) {
	a := agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.Succeeded, Failure: why}
	if why != nil {
		a.State = hub.AttemptFail
	}
	n.tell(c.AttemptID, a)
}

func (n *node) tell(attempt string, a agentapi.AttemptReport) {
	n.attempts[attempt] = a
	n.outbox[attempt] = true
}

// kick wakes the reporter.
func (n *node) kick() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *node) requireFull() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.full = true
	n.kick()
}

func (n *node) dirty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.full || len(n.outbox) > 0 || len(n.changed) > 0
}

// report makes the next report. What it tells counts as told until it is known that it was not.
func (n *node) report() agentapi.Report {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seq++
	r := agentapi.Report{BootID: n.boot.ID, BootSeq: n.boot.Seq, ReportSeq: n.seq, Full: n.full}
	for id := range n.outbox {
		r.Attempts = append(r.Attempts, n.attempts[id])
	}
	for id, s := range n.streams {
		if n.full || n.changed[id] {
			r.Streams = append(r.Streams, s.report(id))
		}
	}
	n.full = false
	clear(n.outbox)
	clear(n.changed)
	return r
}

func (s *stream) report(id string) agentapi.StreamReport {
	return agentapi.StreamReport{
		StreamID: id, State: s.state, Generation: s.accepted.Generation, ConfigVersion: s.accepted.ConfigVersion,
		ConfigDigest: s.accepted.Digest, CompletedActions: slices.Clone(s.done),
	}
}

// taken: the hub has the report.
func (n *node) taken(r *agentapi.Report, fullRequired bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range r.Streams {
		if s := &r.Streams[i]; s.State.Desirable() {
			n.proven[s.StreamID] = s.Generation
		}
	}
	n.full = n.full || fullRequired
	close(n.answered)
	n.answered = make(chan struct{})
}

// lost: what became of the report is not known, or it was not taken. Seq is the newest that the hub knows, 0 if unknown.
func (n *node) lost(r *agentapi.Report, seq int64, full bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range r.Attempts {
		n.outbox[r.Attempts[i].AttemptID] = true
	}
	for i := range r.Streams {
		n.changed[r.Streams[i].StreamID] = true
	}
	n.seq = max(n.seq, seq)
	n.full = n.full || r.Full || full
}

func (n *node) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answered
}
