package presence

import (
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// Poll is one request of a node that waits for work.
type Poll struct {
	registry *Registry
	node     *node
	wake     chan struct{}
	// work: it was woken for work.
	work bool
}

// Poll registers a waiting request. A node has one at a time: an earlier one, whose agent has most likely gone, is
// woken and finds itself replaced. Close it.
func (r *Registry) Poll(name, uid string) *Poll {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.of(name, uid)
	p := &Poll{registry: r, node: n, wake: make(chan struct{}, 1)}
	if n.poll != nil {
		n.poll.signal()
	}
	n.poll, n.polled = p, r.now()
	return p
}

func (p *Poll) signal() {
	select {
	case p.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Wake receives when there may be work, or when another poll has replaced this one.
func (p *Poll) Wake() <-chan struct{} { return p.wake }

// Expects tells whether [Registry.Wake] has woken the poll since the last call.
func (p *Poll) Expects() bool {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	expects := p.work
	p.work = false
	return expects
}

// Replaced tells that a later poll of the node has taken this one's place, or that the node is not known any more.
func (p *Poll) Replaced() bool {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	return p.node.poll != p
}

// Requests takes the questions that wait for the node.
func (p *Poll) Requests() []agentapi.Request {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	if len(p.node.questions) == 0 || p.node.poll != p {
		return nil
	}
	out := make([]agentapi.Request, len(p.node.questions))
	for i, q := range p.node.questions {
		out[i] = q.request
	}
	p.node.questions = nil
	return out
}

// Deliver leaves out the commands that were handed to the node a moment ago: they are on their way, or their
// acknowledgement is. It remembers the others.
func (p *Poll) Deliver(commands []agentapi.Command) []agentapi.Command {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	now := p.registry.now()
	recent := make(map[string]time.Time, len(commands))
	for id, at := range p.node.delivered {
		if now.Sub(at) < hub.RedeliverAfter {
			recent[id] = at
		}
	}
	fresh := make([]agentapi.Command, 0, len(commands))
	for _, c := range commands {
		if _, again := recent[c.AttemptID]; !again {
			recent[c.AttemptID] = now
			fresh = append(fresh, c)
		}
	}
	p.node.delivered = recent
	return fresh
}

// Close ends the wait.
func (p *Poll) Close() {
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	p.node.polled = p.registry.now()
	if p.node.poll == p {
		p.node.poll = nil
	}
}

// Wake lets the node's poll look for work, if it holds one.
func (r *Registry) Wake(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[name]; n != nil && n.poll != nil {
		n.poll.work = true
		n.poll.signal()
	}
}

// Polls is how many nodes hold a poll now.
func (r *Registry) Polls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := 0
	for _, n := range r.nodes {
		if n.poll != nil {
			held++
		}
	}
	return held
}
