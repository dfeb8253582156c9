package agent

import (
	"context"
	"time"

	"freehold.dev/freehold/internal/hub"
)

// event finds the stream whose run the token names; f tells what happened to it.
func (c *Core) event(id, token string, f func(*stream)) {
	s := c.streams[id]
	if s == nil || s.run == nil || s.run.token != token {
		return
	}
	f(s)
}

// Checked answers an [EffectCheck]; why is what the engine has against the content.
func (c *Core) Checked(ctx context.Context, id, token string, why *hub.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[id]
	if s == nil || s.check == nil || s.check.token != token {
		return
	}
	if why == nil {
		s.check.passed = true
		s.failures, s.retryAt = 0, time.Time{}
		return
	}
	ofTarget := s.rec.Failure == nil && s.check.target.Generation == s.rec.Target.Generation
	s.check = nil
	if ofTarget {
		c.failed(s, why, s.rec.Target, true) // what may pass (a secret that is missing) is asked again; the old run goes on
	}
	_ = c.save(ctx)
}

// Started answers an [EffectStart]; why is what kept the run from starting, which then is over.
func (c *Core) Started(ctx context.Context, id, token string, why *hub.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event(id, token, func(s *stream) {
		if why == nil {
			s.run.phase = starting
			return
		}
		c.ended(s, why)
	})
	_ = c.save(ctx) // what could not be stored stays to be stored
}

// Ready tells that a run is up.
func (c *Core) Ready(ctx context.Context, id, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event(id, token, func(s *stream) {
		if s.run.phase == stopping {
			return
		}
		s.run.phase, s.run.readyAt = ready, c.config.Now()
		if want := s.rec.wanted(); want == nil || want.sameVersion(&s.run.target) {
			s.last = nil
		}
		if a := s.rec.action(s.run.action); a != nil && a.State == ActionBegun {
			a.State, s.dirty = ActionCompleted, true
		}
		if s.rec.Failure == nil && s.rec.Target.State == hub.Running && s.run.target.sameVersion(&s.rec.Target) && !s.rec.actionDue() {
			s.settle()
		}
	})
	_ = c.save(ctx)
}

// Ended tells that everything of a run is over. why is nil for one that was stopped, and for one that finished its
// work.
func (c *Core) Ended(ctx context.Context, id, token string, why *hub.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stopped := false
	c.event(id, token, func(s *stream) {
		stopped = s.run.phase == stopping
		c.ended(s, why)
	})
	if !stopped {
		_ = c.save(ctx)
	} // else the next step's write carries it: the gap between two runs holds none of its own
}

func (c *Core) ended(s *stream, why *hub.Failure) {
	run := s.run
	s.run, s.dirty = nil, true
	s.rec.forgetRun(run.token)
	if run.phase == stopping {
		s.retryAt = time.Time{}
		return
	}
	if run.phase == ready && c.config.Now().Sub(run.readyAt) >= c.timing.StableAfter {
		s.failures = 0
	}
	ofTarget := s.rec.Failure == nil && run.target.sameVersion(&s.rec.Target)
	if why != nil {
		c.failed(s, why, run.target, ofTarget)
		return
	}
	s.rec.Finished = run.target.Generation
	if want := s.rec.wanted(); want != nil && want.sameVersion(&run.target) {
		s.rec.Finished = want.Generation
	}
	s.interruptActions()
}

// failed deals with what went wrong with a generation. When trying again would not help, a target that was never reached is given up for
// what was reached before it, and one that was reached waits for the hub's next word, or the next boot. Everything
// else is tried again, with a growing delay.
func (c *Core) failed(s *stream, why *hub.Failure, of Target, ofTarget bool) {
	if ofTarget {
		s.closeAttempt(why)
	}
	if ofTarget && hopeless(why.Class) && !s.rec.reached() {
		s.rec.Failure, s.dirty = cloneFailure(why), true
		s.last = nil
		s.forgive()
		s.interruptActions()
		return
	}
	if !s.failing.sameVersion(&of) {
		s.forgive()
	}
	s.failing = of
	s.last, s.halted = cloneFailure(why), hopeless(why.Class)
	s.retryAt = c.config.Now().Add(c.backoff(s.failures, c.timing.RestartMin, c.timing.RestartMax))
	s.failures++
}
