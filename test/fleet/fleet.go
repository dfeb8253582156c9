package fleet

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// Options of a [Fleet].
type Options struct {
	Nodes int
	// Start is what an engine needs to start; 0: no time, so that an acknowledgement and the result travel together.
	Start time.Duration
	// Heartbeat is the real agent's by default.
	Heartbeat time.Duration
}

// Fleet is the agents of many nodes.
type Fleet struct {
	Traffic Traffic

	options Options
	start   atomic.Int64
	agents  []*agent
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu     sync.Mutex
	faults []string
	// held is closed when polls may go on, nil while they may; poll ends when they may not any more.
	held    chan struct{}
	poll    context.Context
	endPoll context.CancelFunc
}

// Name of a node.
func Name(i int) string { return fmt.Sprintf("node-%04d", i) }

// parallel is how many nodes enrol at a time.
const parallel = 16

// New registers and enrols nodes, and runs their agents until the test ends.
func New(tb testing.TB, s *Server, operators []client.Hub, o Options) *Fleet {
	tb.Helper()
	if o.Heartbeat == 0 {
		o.Heartbeat = hub.HeartbeatEvery
	}
	f := &Fleet{options: o, agents: make([]*agent, o.Nodes)}
	f.Traffic.Reset()
	f.SetStart(o.Start)
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	f.poll, f.endPoll = context.WithCancel(ctx)
	tb.Cleanup(f.Stop)
	err := Each(o.Nodes, parallel, func(i int) (err error) {
		f.agents[i], err = f.enrol(ctx, s, operators[i%len(operators)], Name(i))
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	for _, a := range f.agents {
		f.work.Go(func() { a.reportLoop(ctx) })
		f.work.Go(func() { a.pollLoop(ctx) })
	}
	return f
}

func (f *Fleet) enrol(ctx context.Context, s *Server, h client.Hub, name string) (*agent, error) {
	registered, err := h.RegisterNode(ctx, client.NodeRegistration{NodeID: name}, client.MutationOptions{})
	if err != nil {
		return nil, err
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	t := s.transport()
	t.ForceAttemptHTTP2 = true
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second}
	a := &agent{node: newNode(&f.start), fleet: f, key: key}
	a.client, err = agentapi.New(agentapi.Options{Server: base, HTTPClient: &http.Client{Transport: &counted{t, &f.Traffic}}, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	answer, err := a.client.Enrol(ctx, agentapi.EnrolRequest{
		NodeID: name, EnrolmentToken: registered.EnrolmentToken, ProtocolVersion: agentapi.ProtocolVersion, AgentVersion: "simulated",
		PublicKey: base64.StdEncoding.EncodeToString(public), Capabilities: []string{"process"}, BootID: a.boot.ID, BootSeq: a.boot.Seq,
	})
	if err != nil {
		return nil, err
	}
	a.request = agentapi.SessionRequest{
		NodeID: name, RefreshCredential: answer.RefreshCredential, BootID: a.boot.ID, BootSeq: a.boot.Seq,
		ProtocolVersion: agentapi.ProtocolVersion, AgentVersion: "simulated", Capabilities: []string{"process"},
	}
	return a, nil
}

// Stop ends the agents.
func (f *Fleet) Stop() {
	f.stop()
	f.Release()
	f.work.Wait()
	for _, a := range f.agents {
		if a != nil {
			a.client.Close()
		}
	}
}

// SetStart changes what engines need to start.
func (f *Fleet) SetStart(d time.Duration) { f.start.Store(int64(d)) }

// Hold ends the agents' polls: they report, and take no commands.
func (f *Fleet) Hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = make(chan struct{})
		f.endPoll()
	}
}

// Release lets them poll again.
func (f *Fleet) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held != nil {
		close(f.held)
		f.held = nil
		f.poll, f.endPoll = context.WithCancel(context.Background())
	}
}

// polls answers the context of the next poll, when there may be one; nil when ctx has ended.
func (f *Fleet) polls(ctx context.Context) context.Context {
	for {
		f.mu.Lock()
		held, poll := f.held, f.poll
		f.mu.Unlock()
		if held == nil {
			return poll
		}
		select {
		case <-held:
		case <-ctx.Done():
			return nil
		}
	}
}

// Want notes a generation that was accepted for a stream of a node.
func (f *Fleet) Want(i int, stream string, generation int64) {
	n := f.agents[i].node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted[stream] = max(n.wanted[stream], generation)
}

// Behind counts the streams whose wanted generation the hub does not know to be there, by answered reports.
func (f *Fleet) Behind() int {
	behind := 0
	for _, a := range f.agents {
		a.mu.Lock()
		for stream, generation := range a.wanted {
			if a.proven[stream] < generation {
				behind++
			}
		}
		a.mu.Unlock()
	}
	return behind
}

// Await waits until no more than that many streams are behind.
func (f *Fleet) Await(ctx context.Context, behind int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left := f.Behind()
		if left <= behind {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d streams are behind: %w", left, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Runs tells how often the node began a restart, and how many commands asked for one that it had begun.
func (f *Fleet) Runs(i int, stream, action string) (runs, repeats int) {
	n := f.agents[i].node
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.streams[stream]
	if s == nil {
		return 0, 0
	}
	return s.runs[action], s.repeats
}

// fault notes something that should not have happened.
func (f *Fleet) fault(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) < 20 {
		f.faults = append(f.faults, fmt.Sprintf(format, args...))
	}
}

// Faults are what should not have happened: refusals, and commands that contradict each other.
func (f *Fleet) Faults() []string {
	f.mu.Lock()
	all := f.faults[:len(f.faults):len(f.faults)]
	f.mu.Unlock()
	for _, a := range f.agents {
		a.mu.Lock()
		all = append(all, a.faults...)
		a.mu.Unlock()
	}
	return all
}

// Each calls do with 0 to n-1, width at a time, and answers the first error.
func Each(n, width int, do func(i int) error) error {
	var (
		work  sync.WaitGroup
		mu    sync.Mutex
		next  int
		first error
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, next <= n && first == nil
	}
	for range width {
		work.Go(func() {
			for i, more := take(); more; i, more = take() {
				if err := do(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	return first
}
