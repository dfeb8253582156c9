package agent

import (
	"time"

	"freehold.dev/freehold/internal/hub"
)

// runPhase is how far a run is.
type runPhase string

const (
	// launching: the engine was asked to start it and did not answer.
	launching runPhase = "launching"
	// starting: it goes, and is not ready.
	starting runPhase = "starting"
	ready    runPhase = "ready"
	// stopping: the engine was asked to drain it.
	stopping runPhase = "stopping"
)

// running is a run of the present boot.
type running struct {
	token  string
	target Target
	engine hub.Engine
	// action is the restart that the run is for, or "".
	action string
	phase  runPhase
	// deadline is when the attempt that waits for the run fails.
	deadline time.Time
	readyAt  time.Time
}

// stepKind is what a stream needs next.
type stepKind int

const (
	stepNone stepKind = iota
	// stepCheck: the engine is to look at the goal's content while the old run goes on.
	stepCheck
	stepStart
	// stepReplace drains a run that another follows, stepEnd one that none follows.
	stepReplace
	stepEnd
	// stepSettle: the goal is reached.
	stepSettle
)

// situation is all that decides what a stream needs.
type situation struct {
	rec *Record
	run *running
	// goal is what to run, or to be, now; nil: nothing can be done.
	goal *Target
	// checked: the goal's engine would take its content.
	checked bool
	// halted: the last failure is not one to try again after.
	halted bool
	// retryAt is when the next start after a failed one is due.
	retryAt time.Time
	now     time.Time
}

// goal is what is wanted, when its content is here; until then what was reached before goes on.
func goal(rec *Record, have func(*Target) bool) *Target {
	want := rec.wanted()
	switch {
	case want == nil || want.State != hub.Running || have(want):
		return want
	case rec.Applied != nil && rec.Applied.State == hub.Running && have(rec.Applied):
		return rec.Applied
	}
	return nil
}

func (s *situation) decide() stepKind {
	if s.run != nil {
		return s.decideRunning()
	}
	switch {
	case s.goal == nil:
		return stepNone
	case s.goal.State != hub.Running:
		return stepSettle
	case s.rec.Finished == s.goal.Generation, s.halted, s.now.Before(s.retryAt):
		return stepNone
	}
	return stepStart
}

func (s *situation) decideRunning() stepKind {
	want := s.rec.wanted()
	switch {
	case s.run.phase == launching || s.run.phase == stopping:
		return stepNone
	case want == nil || want.State != hub.Running:
		return stepEnd
	case s.goal == nil:
		return stepNone // it goes on until the content is here
	case !s.goal.sameVersion(&s.run.target) && !s.checked:
		return stepCheck
	case !s.goal.sameVersion(&s.run.target):
		return stepReplace
	case s.goal.Generation != s.rec.Target.Generation:
		return stepNone
	case s.rec.actionDue():
		return stepReplace
	case s.run.phase == ready:
		return stepSettle
	}
	return stepNone
}

// observed is the state to report.
func observed(rec *Record, run *running, failures int) hub.State {
	if run != nil {
		switch {
		case run.phase == stopping:
			return hub.Stopping
		case run.phase == ready:
			return hub.Running
		case failures > 0:
			return hub.Failed // between its tries too: the state tells what an operator has to know
		}
		return hub.Starting
	}
	switch {
	case rec.Failure != nil && (rec.Applied == nil || rec.Applied.State != hub.Running):
		return hub.Failed
	case rec.Failure == nil && rec.Target.State != hub.Running:
		return rec.Target.State
	case rec.finished():
		return hub.Stopped
	case failures > 0:
		return hub.Failed
	}
	return hub.Starting
}

// hopeless tells whether trying the same again would fail again.
func hopeless(c hub.Class) bool {
	return c == hub.Permanent || c == hub.Incompatible || c == hub.ConfigRejected
}
