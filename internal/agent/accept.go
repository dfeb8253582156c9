package agent

import (
	"context"
	"fmt"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// Accept takes commands over, durably, in one transaction; receivedAt is when they arrived. Those that cannot be taken
// over are refused in the next report. A command that has expired is dropped: the hub knows that it did.
func (c *Core) Accept(ctx context.Context, commands []agentapi.Command, receivedAt time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := batch{core: c, undo: map[*stream]stream{}, added: map[string]*stream{}}
	for i := range commands {
		cmd := &commands[i]
		waited := c.config.Now().Sub(receivedAt)
		if waited < 0 || waited >= time.Duration(cmd.ExpiresInMS)*time.Millisecond {
			c.config.Logger.InfoContext(ctx, "a command has expired", "stream", cmd.StreamID, "attempt", cmd.AttemptID)
			continue
		}
		if why := b.consider(cmd); why != nil {
			c.config.Logger.WarnContext(ctx, "a command was refused", "stream", cmd.StreamID, "attempt", cmd.AttemptID, "code", why.Code, "reason", why.Message)
			c.reporting.refuse(cmd.AttemptID, why)
		}
	}
	return b.store(ctx)
}

// batch is commands that are taken over together.
type batch struct {
	core  *Core
	taken []*agentapi.Command
	// undo has the streams as they were; added those that are new.
	undo  map[*stream]stream
	added map[string]*stream
}

func (b *batch) store(ctx context.Context) error {
	var changed []*stream
	for s := range b.undo {
		changed = append(changed, s)
	}
	if err := b.core.saveThese(ctx, changed...); err != nil {
		for s, before := range b.undo {
			*s = before
		}
		for _, cmd := range b.taken {
			b.core.reporting.refuse(cmd.AttemptID, storeFailure(err))
		}
		return fmt.Errorf("take over %d commands: %w", len(b.taken), err)
	}
	for _, s := range b.added {
		b.core.add(s)
	}
	return nil
}

// stream is the one of that name, which is made when there is none.
func (b *batch) stream(id string) *stream {
	s := b.core.streams[id]
	if s == nil {
		s = b.added[id]
	}
	if s == nil {
		s = &stream{id: id, attemptsTold: map[string]hub.AttemptState{}}
	}
	return s
}

// consider takes a command into the record of its stream, or answers why not.
func (b *batch) consider(cmd *agentapi.Command) *hub.Failure {
	if why := invalid(cmd); why != nil {
		return why
	}
	s := b.stream(cmd.StreamID)
	if s.rec.knownAttempt(cmd.AttemptID) != nil {
		if stored := s.saved.knownAttempt(cmd.AttemptID); stored != nil {
			b.core.reporting.put(stored.report())
		}
		return nil
	}
	target := Target{
		Generation: cmd.Generation, State: cmd.State, ConfigVersion: cmd.ConfigVersion, Digest: cmd.Digest,
		ActionID: cmd.ActionID, AcceptedAt: b.core.config.Now().UTC(),
	}
	known := &s.rec.Target
	switch {
	case target.Generation < known.Generation:
		return failure(hub.Incompatible, "stale_generation",
			fmt.Sprintf("the node has accepted generation %d, and does not go back to %d", known.Generation, target.Generation))
	case target.Generation == known.Generation && !known.again(&target):
		return failure(hub.Incompatible, "generation_conflict", fmt.Sprintf("the node has accepted generation %d with another content", known.Generation))
	}
	if _, before := b.undo[s]; !before {
		b.undo[s] = s.copy()
	}
	if known.Generation == 0 {
		b.added[s.id] = s
	}
	s.tryAgain(b.core.config.Now().Add(b.core.timing.ReadyWithin))
	if target.Generation > known.Generation {
		s.rec.Target = target
		s.interruptActions()
	}
	s.rec.addAttempt(cmd.AttemptID, cmd.Generation)
	s.dirty = true
	b.taken = append(b.taken, cmd)
	return nil
}

// again tells whether o asks for t once more. One without the restart asks for what else there is to it.
func (t *Target) again(o *Target) bool {
	return t.State == o.State && t.sameVersion(o) && (o.ActionID == "" || o.ActionID == t.ActionID)
}

// copy is the stream as it is, to return to.
func (s *stream) copy() stream {
	c := *s
	c.rec = s.rec.clone()
	if s.run != nil {
		run := *s.run
		c.run = &run
	}
	return c
}

func invalid(cmd *agentapi.Command) *hub.Failure {
	var why string
	switch {
	case cmd.StreamID != hub.NodeConfig && (!validStream.MatchString(cmd.StreamID) || len(cmd.StreamID) > 1 && cmd.StreamID[:2] == "__"):
		why = fmt.Sprintf("%q is not the name of a stream", cmd.StreamID)
	case cmd.Generation < 1:
		why = fmt.Sprintf("%d is not a generation", cmd.Generation)
	case cmd.State != hub.Running && cmd.State != hub.Stopped && cmd.State != hub.Absent:
		why = fmt.Sprintf("%q is not a state that a stream can be asked to have", cmd.State)
	case cmd.State == hub.Running && (cmd.ConfigVersion == "" || cmd.Digest == ""):
		why = "a stream that is to run needs a config version with its digest"
	case cmd.AttemptID == "":
		why = "it has no attempt id"
	default:
		return nil
	}
	return failure(hub.Permanent, "invalid_command", "the hub's command is not understood: "+why)
}

// tryAgain gives a target that was given up, or waits, another chance at once. It has until the deadline to be ready.
func (s *stream) tryAgain(deadline time.Time) {
	s.rec.Failure, s.last, s.check = nil, nil, nil
	s.forgive()
	if s.run != nil && s.run.phase != ready {
		s.run.deadline = deadline
	}
	s.closeAttempt(superseded())
}

// forgive forgets that runs failed.
func (s *stream) forgive() {
	s.failures, s.retryAt, s.halted, s.failing = 0, time.Time{}, false, Target{}
}

func superseded() *hub.Failure {
	return failure(hub.Transient, "superseded", "a newer command took its place")
}

// closeAttempt ends the newest attempt when it is open: failed, or, without a failure, succeeded.
func (s *stream) closeAttempt(why *hub.Failure) {
	a := s.rec.attempt()
	if !a.open() {
		return
	}
	a.State, a.Failure = hub.Succeeded, cloneFailure(why)
	if why != nil {
		a.State = hub.AttemptFail
	}
	s.dirty = true
}

// interruptActions gives up the restarts that nothing goes on for.
func (s *stream) interruptActions() {
	goes := ""
	if s.run != nil && s.run.phase != stopping {
		goes = s.run.action
	}
	if s.rec.interruptActions(s.rec.Target.ActionID, goes) {
		s.dirty = true
	}
}

// backoff is the delay after some failures, with up to a fifth of jitter.
func (c *Core) backoff(failures int, least, most time.Duration) time.Duration {
	d := least
	for range failures {
		if d *= 2; d >= most {
			d = most
			break
		}
	}
	return d - time.Duration(c.config.Rand()*float64(d)/5)
}
