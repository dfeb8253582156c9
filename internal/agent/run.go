package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/streamlog"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Run is the agent: it keeps the node's streams true until ctx ends, and stops them then. It answers nil after that,
// and an error for what keeps it from working at all: a data folder that is in use, damaged, or not enrolled.
func Run(ctx context.Context, c Config) (err error) {
	if err := c.prepare(); err != nil {
		return err
	}
	s, err := c.openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	engines, err := c.engines(c.nodeID(ctx, s))
	if err != nil {
		return err
	}
	id, err := c.identity(ctx, s)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	core, err := openCoreWithRoom(ctx, &c, s)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	a, err := newAgent(&c, core, id, engines)
	if err != nil {
		return err
	}
	return a.run(ctx)
}

// unlessEnded forgets an error of an agent that was stopped while it began.
func unlessEnded(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// nodeID is the node's id, as far as it is known.
func (c *Config) nodeID(ctx context.Context, s store.Store) string {
	if id, err := loadIdentity(ctx, s); err == nil {
		return id.NodeID
	}
	if c.Enrolment != nil {
		return c.Enrolment.NodeID
	}
	return ""
}

// identity answers who the node is, and enrols it when it has to be.
func (c *Config) identity(ctx context.Context, s store.Store) (*Identity, error) {
	id, err := loadIdentity(ctx, s)
	if c.Enrolment == nil || err == nil && id.TokenHash == tokenHash(c.Enrolment.Token) {
		return id, err
	}
	if err != nil && !errors.Is(err, ErrNotEnrolled) {
		return nil, err
	}
	for failures := 0; ; failures++ {
		id, err := enrol(ctx, s, *c, *c.Enrolment)
		var unreachable *agentapi.ConnectError
		if err == nil || ctx.Err() != nil || !errors.As(err, &unreachable) {
			return id, err
		}
		c.Logger.WarnContext(ctx, "cannot enrol yet", "error", err)
		wait(ctx, backoffLimit(failures, c.Network.RetryMin/4, c.Network.RetryMax))
	}
}

// openCoreWithRoom waits for room on a full disk: without the boot's number nothing can be told or started.
func openCoreWithRoom(ctx context.Context, c *Config, s store.Store) (*Core, error) {
	for {
		core, err := OpenCore(ctx, CoreConfig{Store: s, Logger: c.Logger, Timing: c.Timing})
		if !errors.Is(err, store.ErrFull) {
			return core, err
		}
		c.Logger.ErrorContext(ctx, "the disk is full: no stream is started before there is room", "folder", c.Data)
		if wait(ctx, c.Network.RetryMin); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// agent is a running agent.
type agent struct {
	config   *Config
	core     *Core
	identity *Identity
	link     *link
	logs     *streamlog.Book
	driver   *driver
	// report wakes the reporter.
	report chan struct{}
	// answers are log requests that are being answered.
	answers chan struct{}
	began   time.Time

	mu sync.Mutex
	// made and answered are the last reports of their kind; reported is closed and replaced with each answer.
	made, answered int64
	reported       chan struct{}
}

// maxAnswers is how many log requests are answered at one time.
const maxAnswers = 16

func newAgent(c *Config, core *Core, id *Identity, engines map[hub.Engine]engine.Engine) (*agent, error) {
	client, err := agentapi.New(agentapi.Options{
		Server: id.Server, CAFile: id.CAFile, Fingerprint: id.Fingerprint, UserAgent: userAgent(c.Version), Timeout: c.Network.Request,
	})
	if err != nil {
		return nil, err
	}
	logs, err := streamlog.Open(c.logs(), core.Boot().Seq, time.Now)
	if err != nil {
		return nil, err
	}
	a := &agent{
		config: c, core: core, identity: id, link: newLink(client, id, core.Boot(), c), logs: logs,
		report: make(chan struct{}, 1), answers: make(chan struct{}, maxAnswers), began: time.Now().UTC(), reported: make(chan struct{}),
	}
	node := newNodeEngine(c)
	engines[hub.EngineNode] = node
	a.driver = &driver{
		core: core, engines: engines, node: node, logs: logs, fetch: a.link.content, logger: c.Logger,
		told: a.wakeReporter, kick: make(chan struct{}, 1), runs: map[string]*liveRun{},
	}
	return a, nil
}

func (a *agent) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, a.logs.Close()) }()
	defer a.link.client.Close()
	socket, err := a.listen(ctx)
	if err != nil {
		return err
	}
	boot := a.core.Boot()
	a.config.Logger.InfoContext(ctx, "the agent runs", "node", a.identity.NodeID, "server", a.identity.Server,
		"boot", boot.Seq, "version", a.config.Version, "capabilities", a.config.Capabilities)
	var work sync.WaitGroup
	work.Go(func() { a.serve(ctx, socket) })
	work.Go(func() {
		a.driver.clean(ctx, a.config.Network.RetryMin)
		a.driver.run(ctx)
	})
	work.Go(func() { a.reportLoop(ctx) })
	work.Go(func() { a.pollLoop(ctx) })
	<-ctx.Done()
	_ = socket.Close()
	a.drain(ctx)
	work.Wait()
	a.driver.work.Wait() // only now that nobody begins more
	return nil
}

func (a *agent) drain(ctx context.Context) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.config.Network.Drain)
	defer cancel()
	a.config.Logger.InfoContext(limited, "the agent stops its streams")
	a.driver.drain(limited)
}

func (a *agent) wakeReporter() {
	select {
	case a.report <- struct{}{}:
	default:
	}
}

// reportLoop tells the hub of changes at once, one report at a time: what happens meanwhile is in the next.
func (a *agent) reportLoop(ctx context.Context) {
	beat, refusals := time.Now(), 0
	for ctx.Err() == nil {
		due := !time.Now().Before(beat)
		if !due && !a.core.Dirty() {
			a.awaitNews(ctx, beat)
			continue
		}
		err := a.link.do(ctx, func(ctx context.Context) error { return a.tell(ctx, due) })
		if err != nil {
			a.afterRefusal(ctx, refusals)
			refusals++
			continue
		}
		refusals = 0
		if due {
			beat = time.Now().Add(a.nextBeat())
		}
	}
}

// afterRefusal waits before what was refused for its own sake is sent again: that would be refused again at once. The link
// has its own pause for what the connection is to blame for.
func (a *agent) afterRefusal(ctx context.Context, before int) {
	n := a.config.Network
	wait(ctx, time.Duration(a.link.rand()*float64(backoffLimit(before, n.RetryMin/4, n.RetryMax))))
}

// nextBeat spreads the heartbeats of many nodes.
func (a *agent) nextBeat() time.Duration {
	every := float64(a.config.Network.Heartbeat)
	return time.Duration(every * (0.9 + 0.2*a.link.rand()))
}

func (a *agent) awaitNews(ctx context.Context, beat time.Time) {
	t := time.NewTimer(time.Until(beat))
	defer t.Stop()
	select {
	case <-a.report:
	case <-t.C:
	case <-ctx.Done():
	}
}

// tell makes a report and deals with the answer.
func (a *agent) tell(ctx context.Context, heartbeat bool) error {
	metrics := a.driver.metrics()
	r := a.core.Report(heartbeat, func(stream string) *agentapi.Metrics {
		if m, runs := metrics[stream]; runs {
			return &m
		}
		return nil
	})
	a.noteReport(r.ReportSeq, false)
	answer, err := a.link.client.Report(ctx, r)
	var refused *agentapi.Error
	switch {
	case err == nil:
		a.core.Reported(r, *answer)
		a.noteReport(r.ReportSeq, true)
	case agentapi.HasCode(err, agentapi.CodeFullReportRequired):
		a.core.RequireFull()
	case agentapi.HasCode(err, agentapi.CodeStaleReport) && errors.As(err, &refused):
		cursor := refused.Cursor()
		if a.core.Stale(cursor.BootSeq, cursor.ReportSeq) {
			return &agentapi.Error{Status: refused.Status, Code: agentapi.CodeSessionSuperseded, Message: refused.Message}
		}
	}
	return err
}

// noteReport keeps which reports were made, and which of them answered.
func (a *agent) noteReport(seq int64, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !answered {
		a.made = seq
		return
	}
	a.answered = seq
	close(a.reported)
	a.reported = make(chan struct{})
}

// afterReport waits for the answer to a report that is made from now on. It gives up after a while: the hub sends
// again what it was not told about.
func (a *agent) afterReport(ctx context.Context) {
	if !a.core.Dirty() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.Network.Request)
	defer cancel()
	a.mu.Lock()
	after := a.made
	a.mu.Unlock()
	a.wakeReporter()
	for {
		a.mu.Lock()
		next, done := a.reported, a.answered > after
		a.mu.Unlock()
		// The one that was on its way may have told all there was, and none follows it.
		if done || !a.core.Dirty() {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// pollLoop takes commands over as they come.
func (a *agent) pollLoop(ctx context.Context) {
	for refusals := 0; ctx.Err() == nil; {
		var got *agentapi.Commands
		err := a.link.do(ctx, func(ctx context.Context) (err error) {
			got, err = a.link.client.Commands(ctx, a.config.Network.Poll)
			return err
		})
		if err != nil {
			a.afterRefusal(ctx, refusals)
			refusals++
			continue
		}
		refusals = 0
		a.take(ctx, got, time.Now())
	}
}

func (a *agent) take(ctx context.Context, got *agentapi.Commands, receivedAt time.Time) {
	for _, r := range got.Requests {
		a.answer(ctx, r)
	}
	if got.FullRequired {
		a.core.RequireFull()
	}
	if len(got.Commands) > 0 {
		if err := a.core.Accept(ctx, got.Commands, receivedAt); err != nil {
			a.config.Logger.ErrorContext(ctx, "commands were refused", "error", err)
		}
		a.driver.wake()
	}
	if len(got.Commands) > 0 || got.FullRequired {
		a.afterReport(ctx)
	}
}

// answer answers a request for a log, beside the poll. One too many is not answered: the hub tells who asked.
func (a *agent) answer(ctx context.Context, r agentapi.Request) {
	select {
	case a.answers <- struct{}{}:
	default:
		return
	}
	a.driver.work.Go(func() {
		defer func() { <-a.answers }()
		out := a.readLog(ctx, r)
		limited, cancel := context.WithTimeout(ctx, a.config.Network.Request)
		defer cancel()
		if err := a.link.client.AnswerRequest(limited, r.RequestID, out); err != nil && ctx.Err() == nil {
			a.config.Logger.DebugContext(ctx, "a request was answered in vain", "request", r.RequestID, "error", err)
		}
	})
}

// maxLogWait is how long a request may wait for a line.
const maxLogWait = 30 * time.Second

func (a *agent) readLog(ctx context.Context, r agentapi.Request) agentapi.LogAnswer {
	if r.Kind != "logs" {
		return agentapi.LogAnswer{Lines: []agentapi.LogLine{}, Error: fmt.Sprintf("this agent does not know requests of kind %q", r.Kind)}
	}
	limited, cancel := context.WithTimeout(ctx, min(max(time.Duration(r.WaitMS)*time.Millisecond, 0), maxLogWait))
	defer cancel()
	out, err := a.logs.Read(limited, r.StreamID, r.After, r.Limit)
	if err != nil {
		if a.core.Known(r.StreamID) {
			return agentapi.LogAnswer{Lines: []agentapi.LogLine{}, Next: max(r.After, 0)} // it has not said anything yet
		}
		return agentapi.LogAnswer{Lines: []agentapi.LogLine{}, Error: fmt.Sprintf("there is no stream %s on this node", r.StreamID)}
	}
	return out
}

// capabilities are the names of the engines, and what else was said.
func capabilities(engines map[hub.Engine]engine.Engine, more ...string) []string {
	out := slices.Clone(more)
	for name := range engines {
		out = append(out, string(name))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
