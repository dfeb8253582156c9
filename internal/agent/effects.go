package agent

import (
	"context"
	"slices"
	"time"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// EffectKind is what the world is asked to do.
type EffectKind string

// The effects.
const (
	// EffectFetch asks for the content of ConfigVersion; [Core.Fetched] answers.
	EffectFetch EffectKind = "fetch"
	// EffectCheck asks the engine whether it would take the content; [Core.Checked] answers.
	EffectCheck EffectKind = "check"
	// EffectStart starts a run; [Core.Started] answers, then [Core.Ready] and [Core.Ended] tell.
	EffectStart EffectKind = "start"
	// EffectStop drains a run; [Core.Ended] answers.
	EffectStop EffectKind = "stop"
)

// Effect is something to do. Each is told once.
type Effect struct {
	Kind   EffectKind
	Stream string
	// Token names the run, or the check.
	Token         string
	Generation    int64
	ConfigVersion string
	Digest        string
	Engine        hub.Engine
	Content       string
	// Final: no run is to follow the one that is stopped.
	Final bool
}

// Effects answers what to do now, and when to ask again at the latest (zero: after the next event). What it answers
// is durable before it is answered.
func (c *Core) Effects(ctx context.Context) ([]Effect, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &pass{ctx: ctx, core: c, now: c.config.Now(), undo: map[*stream]stream{}}
	for _, id := range c.passOrder() {
		p.look(c.streams[id])
	}
	p.commit()
	return p.effects, p.wake
}

// passOrder is all streams, the node's own configuration first.
func (c *Core) passOrder() []string {
	order := slices.Clone(c.order)
	if at := slices.Index(order, hub.NodeConfig); at > 0 {
		order = slices.Insert(slices.Delete(order, at, at+1), 0, hub.NodeConfig)
	}
	return order
}

// pass is one look at all streams.
type pass struct {
	ctx  context.Context
	core *Core
	now  time.Time
	// hold: the node's own configuration is being applied, and streams start after it.
	hold    bool
	effects []Effect
	// undo has the streams whose next step must be durable before it is taken, as they were.
	undo map[*stream]stream
	wake time.Time
}

func (p *pass) wakeAt(t time.Time) {
	if t.After(p.now) && (p.wake.IsZero() || t.Before(p.wake)) {
		p.wake = t
	}
}

func (p *pass) look(s *stream) {
	c := p.core
	have := func(t *Target) bool { _, ok := c.contents[t.content()]; return ok }
	if want := s.rec.wanted(); want != nil && want.State == hub.Running && !have(want) {
		p.fetch(s, want)
	}
	now := situation{rec: &s.rec, run: s.run, goal: goal(&s.rec, have), now: p.now}
	if now.goal != nil && s.failing.sameVersion(now.goal) {
		now.halted, now.retryAt = s.halted, s.retryAt
	}
	now.checked = s.check != nil && s.check.passed && now.goal != nil && s.check.target.sameVersion(now.goal)
	switch now.decide() {
	case stepCheck:
		p.check(s, now.goal)
	case stepStart:
		p.start(s, now.goal)
	case stepReplace:
		p.replace(s)
	case stepEnd:
		p.stop(s, true)
	case stepSettle:
		s.settle()
	case stepNone:
		p.wait(s)
	}
	if s.id == hub.NodeConfig {
		p.hold = s.run != nil && s.run.phase == launching
	}
}

// wait looks after what does not come.
func (p *pass) wait(s *stream) {
	switch {
	case s.run == nil:
		p.wakeAt(s.retryAt)
		if s.rec.finished() {
			s.closeAttempt(finishedFailure())
		}
	case s.run.phase != starting || s.run.deadline.IsZero():
	case p.now.Before(s.run.deadline):
		p.wakeAt(s.run.deadline)
	default:
		s.run.deadline = time.Time{}
		s.last = failure(hub.Timeout, "not_ready", "the stream was started, and is not ready yet")
		s.closeAttempt(s.last)
	}
}

func finishedFailure() *hub.Failure {
	return failure(hub.Permanent, "finished", "the stream came to its end by itself; a restart runs it once more")
}

func (p *pass) fetch(s *stream, want *Target) {
	key := want.content()
	f := p.core.fetches[key]
	if f == nil {
		f = &fetch{}
		p.core.fetches[key] = f
	}
	if f.asked {
		return
	}
	if p.now.Before(f.retryAt) {
		p.wakeAt(f.retryAt)
		return
	}
	f.asked = true
	p.effects = append(p.effects, Effect{Kind: EffectFetch, Stream: s.id, Generation: want.Generation, ConfigVersion: want.ConfigVersion, Digest: want.Digest})
}

func (p *pass) check(s *stream, goal *Target) {
	if s.check != nil && s.check.target.sameVersion(goal) {
		return // it is being asked
	}
	if p.now.Before(s.retryAt) {
		p.wakeAt(s.retryAt)
		return
	}
	content, ok := p.content(goal)
	if !ok {
		return
	}
	s.check = &check{token: p.core.config.NewID(), target: *goal}
	e := p.core.effect(EffectCheck, s, s.check.token, goal)
	e.Content = content
	p.effects = append(p.effects, e)
}

func (c *Core) effect(kind EffectKind, s *stream, token string, t *Target) Effect {
	return Effect{
		Kind: kind, Stream: s.id, Token: token, Generation: t.Generation,
		ConfigVersion: t.ConfigVersion, Digest: t.Digest, Engine: c.contents[t.content()],
	}
}

// start records the run, and the restart that it is for, before it begins.
func (p *pass) start(s *stream, goal *Target) {
	c := p.core
	if !c.cleaned || p.hold {
		return
	}
	if p.now.Before(c.storeRetryAt) {
		p.wakeAt(c.storeRetryAt)
		return
	}
	content, ok := p.content(goal)
	if !ok {
		return
	}
	p.undo[s] = s.copy()
	if !s.failing.sameVersion(goal) {
		s.forgive()
	}
	run := &running{
		token: c.config.NewID(), target: *goal, engine: c.contents[goal.content()],
		phase: launching, deadline: p.now.Add(c.timing.ReadyWithin),
	}
	if s.rec.Failure == nil && goal.Generation == s.rec.Target.Generation && goal.ActionID != "" {
		if s.rec.actionDue() {
			s.rec.beginAction()
		}
		if a := s.rec.action(goal.ActionID); a.State == ActionBegun {
			run.action = a.ID
		}
	}
	s.rec.Runs = append(s.rec.Runs, run.token)
	s.run, s.check, s.dirty = run, nil, true
	s.starts++
	e := c.effect(EffectStart, s, run.token, goal)
	e.Content = content
	p.effects = append(p.effects, e)
}

// replace drains a run for another. A restart is recorded before.
func (p *pass) replace(s *stream) {
	if s.rec.actionDue() {
		if p.now.Before(p.core.storeRetryAt) {
			p.wakeAt(p.core.storeRetryAt)
			return
		}
		p.undo[s] = s.copy()
		s.rec.beginAction()
		s.dirty = true
	}
	p.stop(s, false)
}

func (p *pass) stop(s *stream, final bool) {
	s.run.phase = stopping
	s.interruptActions()
	e := p.core.effect(EffectStop, s, s.run.token, &s.run.target)
	e.Final, e.Engine = final, s.run.engine
	p.effects = append(p.effects, e)
}

// commit stores what the pass changed. The steps that had to be durable are not taken when it cannot be.
func (p *pass) commit() {
	c := p.core
	if p.now.Before(c.storeRetryAt) && len(p.undo) == 0 {
		p.wakeAt(c.storeRetryAt)
		return
	}
	err := c.save(p.ctx)
	if err == nil {
		return
	}
	for s, before := range p.undo {
		*s = before
		s.last = storeFailure(err)
		p.effects = slices.DeleteFunc(p.effects, func(e Effect) bool { return e.Stream == s.id && e.Kind != EffectFetch })
	}
	p.wakeAt(c.storeRetryAt)
}

// content reads what the goal needs from the cache. One that cannot be read is fetched anew.
func (p *pass) content(goal *Target) (string, bool) {
	c, key := p.core, goal.content()
	var out string
	err := c.config.Store.View(p.ctx, func(r store.Reader) error {
		content, err := readContent(r, key)
		if err == nil {
			out = content.Content
		}
		return err
	})
	if err != nil {
		delete(c.contents, key)
		p.wakeAt(p.now.Add(c.timing.FetchMin))
		c.config.Logger.ErrorContext(p.ctx, "cannot read a config version from the node's cache", "config_version", key.version, "error", err)
	}
	return out, err == nil
}

// settle records that the target is reached.
func (s *stream) settle() {
	if s.rec.Failure != nil {
		return
	}
	if !s.rec.reached() {
		applied := s.rec.Target
		s.rec.Applied, s.dirty = &applied, true
	}
	if s.rec.interrupted() && s.rec.Target.State == hub.Running {
		s.closeAttempt(interruptedFailure(s.rec.Target.ActionID))
		return
	}
	s.closeAttempt(nil)
}
