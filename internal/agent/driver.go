package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/secrets"
	"freehold.dev/freehold/internal/agent/streamlog"
	"freehold.dev/freehold/internal/hub"
)

// driver does what the core asks for, and tells it what became of it.
type driver struct {
	core    *Core
	engines map[hub.Engine]engine.Engine
	node    *nodeEngine
	logs    *streamlog.Book
	fetch   func(ctx context.Context, version string) (*agentapi.ConfigContent, *hub.Failure)
	logger  *slog.Logger
	// told is called when there may be something to report.
	told func()

	kick chan struct{}
	work sync.WaitGroup

	// mask hides secrets in what streams log, and in what is told of their failures.
	mask secrets.Mask

	mu   sync.Mutex
	runs map[string]*liveRun
	// ending: the agent ends, and what ends with it is no news for the core.
	ending bool
}

// liveRun is a run of an engine.
type liveRun struct {
	engine.Run
	stream string
}

const (
	startLimit = time.Minute
	checkLimit = 30 * time.Second
	// stopLimit is beyond what any content may ask for.
	stopLimit = time.Hour + time.Minute
	// cleanLimit bounds one try to end what is left of earlier runs.
	cleanLimit = time.Minute
)

// wake makes the driver look at the core.
func (d *driver) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
	d.told()
}

// run works until ctx ends. Runs go on after it; see [driver.drain].
func (d *driver) run(ctx context.Context) {
	for {
		effects, at := d.core.Effects(ctx)
		d.forgetGone(ctx)
		for _, e := range effects {
			d.work.Go(func() { d.do(ctx, e) })
		}
		d.told()
		if d.rest(ctx, at); ctx.Err() != nil {
			return
		}
	}
}

// rest waits for an event, for the time (zero: none), or for the end.
func (d *driver) rest(ctx context.Context, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-d.kick:
	case <-due:
	case <-ctx.Done():
	}
}

func (d *driver) do(ctx context.Context, e Effect) {
	switch e.Kind {
	case EffectFetch:
		content, why := d.fetch(ctx, e.ConfigVersion)
		d.core.Fetched(ctx, e.ConfigVersion, e.Digest, content, why)
	case EffectCheck:
		d.core.Checked(ctx, e.Stream, e.Token, d.check(ctx, e))
	case EffectStart:
		d.start(ctx, e)
	case EffectStop:
		d.stop(ctx, e)
	}
	d.wake()
}

func (d *driver) engine(e Effect) (engine.Engine, *hub.Failure) {
	found := d.engines[e.Engine]
	if (e.Engine == hub.EngineNode) != (e.Stream == hub.NodeConfig) {
		return nil, failure(hub.ConfigRejected, "invalid_config", fmt.Sprintf("a config version of engine %q is not for %s", e.Engine, e.Stream))
	}
	if found == nil {
		return nil, failure(hub.Incompatible, "engine_unknown", fmt.Sprintf("this agent has no engine %q: install a newer one", e.Engine))
	}
	return found, nil
}

func (d *driver) spec(e Effect) engine.Spec {
	c := d.node.current.Load()
	return engine.Spec{
		Stream: e.Stream, Token: e.Token, Content: e.Content, Secret: d.mask.Over(d.node.secret), Limits: c.EngineLimits(),
		Log: func(source, line string) { d.logs.Append(e.Stream, source, d.mask.Hide(line)) },
	}
}

// hide takes secrets out of a failure's message. It changes the failure.
func (d *driver) hide(why *hub.Failure) *hub.Failure {
	if why != nil {
		why.Message = d.mask.Hide(why.Message)
	}
	return why
}

func (d *driver) say(e Effect, format string, args ...any) {
	if e.Stream != hub.NodeConfig {
		d.logs.Append(e.Stream, "agent", fmt.Sprintf(format, args...))
	}
}

func (d *driver) check(ctx context.Context, e Effect) *hub.Failure {
	eng, why := d.engine(e)
	if why != nil {
		return why
	}
	checker, can := eng.(engine.Checker)
	if !can {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if why = d.hide(failureOf(checker.Check(ctx, d.spec(e)))); why != nil {
		d.say(e, "%s is refused: %s", e.ConfigVersion, why.Message)
	}
	return why
}

func (d *driver) start(ctx context.Context, e Effect) {
	eng, why := d.engine(e)
	if why != nil {
		d.core.Started(ctx, e.Stream, e.Token, why)
		return
	}
	d.say(e, "starting generation %d with %s", e.Generation, e.ConfigVersion)
	limited, cancel := context.WithTimeout(ctx, startLimit)
	run, err := eng.Start(limited, d.spec(e))
	cancel()
	if err != nil {
		why := d.hide(failureOf(err))
		d.say(e, "cannot start: %s", why.Message)
		d.core.Started(ctx, e.Stream, e.Token, why)
		return
	}
	if !d.add(e, run) {
		_ = run.Stop(ctx) // the agent is ending: ctx has ended, and there is no grace
		return
	}
	d.core.Started(ctx, e.Stream, e.Token, nil)
	d.work.Go(func() { d.watch(ctx, e, run) })
}

func (d *driver) add(e Effect, run engine.Run) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ending {
		d.runs[e.Token] = &liveRun{run, e.Stream}
	}
	return !d.ending
}

// watch tells the core how a run goes. It ends with the run.
func (d *driver) watch(ctx context.Context, e Effect, run engine.Run) {
	select {
	case <-run.Ready():
		d.say(e, "running")
		d.core.Ready(ctx, e.Stream, e.Token)
		d.wake()
	case <-run.Done():
	}
	<-run.Done()
	d.mu.Lock()
	delete(d.runs, e.Token)
	ending := d.ending
	d.mu.Unlock()
	if ending {
		return
	}
	why := d.hide(cloneFailure(run.Err()))
	if why != nil {
		d.say(e, "ended: %s", why.Message)
	} else {
		d.say(e, "ended")
	}
	d.core.Ended(ctx, e.Stream, e.Token, why)
	d.wake()
}

// forgetGone removes the logs of streams that were told to be absent and have no run any more.
func (d *driver) forgetGone(ctx context.Context) {
	for _, stream := range d.logs.Streams() {
		if d.core.Known(stream) || d.live(stream) {
			continue
		}
		if err := d.logs.Forget(stream); err != nil {
			d.logger.WarnContext(ctx, "cannot remove the log of a stream that is gone", "stream", stream, "error", err)
		}
	}
}

func (d *driver) live(stream string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, run := range d.runs {
		if run.stream == stream {
			return true
		}
	}
	return false
}

func (d *driver) stop(ctx context.Context, e Effect) {
	d.mu.Lock()
	run := d.runs[e.Token]
	d.mu.Unlock()
	if run == nil {
		return // it has ended by itself, which is being told
	}
	if e.Engine == hub.EngineNode && e.Final {
		d.node.reset()
	}
	d.say(e, "stopping")
	limited, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	if err := run.Stop(limited); err != nil && ctx.Err() == nil {
		d.logger.WarnContext(ctx, "a stream was stopped by force", "stream", e.Stream, "error", err)
		d.say(e, "stopped by force: %v", err)
	}
}

// clean ends what is left of the runs of earlier boots. It tries until it is done: nothing may run twice.
func (d *driver) clean(ctx context.Context, retry time.Duration) {
	for {
		err := d.cleanOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		d.logger.ErrorContext(ctx, "cannot end what earlier runs of the agent left; streams are not started before", "error", err)
		wait(ctx, retry)
	}
}

func (d *driver) cleanOnce(ctx context.Context) error {
	tokens := d.core.Leftovers()
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	for name, eng := range d.engines {
		if err := eng.Clean(ctx, tokens); err != nil {
			return fmt.Errorf("clean up after engine %s: %w", name, err)
		}
	}
	return d.core.Cleaned(ctx)
}

// drain stops all runs, by force when ctx ends. What is started from then on is stopped at once.
func (d *driver) drain(ctx context.Context) {
	d.mu.Lock()
	d.ending = true
	var stops sync.WaitGroup
	for _, run := range d.runs {
		stops.Go(func() {
			if err := run.Stop(ctx); err != nil {
				d.logger.WarnContext(ctx, "a stream was stopped by force", "stream", run.stream, "error", err)
			}
		})
	}
	d.mu.Unlock()
	stops.Wait()
}

// metrics answers those of all runs, by stream.
func (d *driver) metrics() map[string]agentapi.Metrics {
	d.mu.Lock()
	runs := slices.Collect(maps.Values(d.runs))
	d.mu.Unlock()
	out := make(map[string]agentapi.Metrics, len(runs))
	for _, run := range runs {
		out[run.stream] = run.Metrics()
	}
	return out
}

// wait waits for a time, or for ctx to end.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
