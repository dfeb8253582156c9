package agent

import (
	"reflect"
	"slices"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// reporting is what the hub is still to be told, beside the streams.
type reporting struct {
	seq int64
	// fullWanted counts the times that a full report became due; fullGiven is how many of them were answered.
	fullWanted, fullGiven int64
	attempts              map[string]agentapi.AttemptReport
	order                 []string
	// fullAt is when the last full report was answered.
	fullAt time.Time
	// inFull is fullWanted when the report of that sequence was made.
	inFull map[int64]int64
}

// maxOutbox bounds the answers to attempts that wait to be told. The hub finds out about a lost one from a full report.
const maxOutbox = 4096

func newReporting(now time.Time) reporting {
	return reporting{fullWanted: 1, fullAt: now, attempts: map[string]agentapi.AttemptReport{}, inFull: map[int64]int64{}}
}

func (r *reporting) put(a agentapi.AttemptReport) {
	if _, waits := r.attempts[a.AttemptID]; !waits {
		r.order = append(r.order, a.AttemptID)
	}
	r.attempts[a.AttemptID] = a
	if len(r.order) > maxOutbox {
		delete(r.attempts, r.order[0])
		r.order = r.order[1:]
	}
}

func (r *reporting) refuse(attempt string, why *hub.Failure) {
	if attempt != "" {
		r.put(agentapi.AttemptReport{AttemptID: attempt, State: hub.AttemptFail, Failure: why})
	}
}

func (r *reporting) answered(a agentapi.AttemptReport) {
	if waits, ok := r.attempts[a.AttemptID]; ok && waits.State == a.State {
		delete(r.attempts, a.AttemptID)
		r.order = slices.DeleteFunc(r.order, func(id string) bool { return id == a.AttemptID })
	}
}

func (a *Attempt) report() agentapi.AttemptReport {
	return agentapi.AttemptReport{AttemptID: a.ID, State: a.State, Failure: cloneFailure(a.Failure)}
}

// putUpAttempts puts what was stored of the stream's attempts up for the next report.
func (c *Core) putUpAttempts(s *stream) {
	known := map[string]hub.AttemptState{}
	for i := range s.saved.Attempts {
		a := &s.saved.Attempts[i]
		known[a.ID] = a.State
		if s.attemptsTold[a.ID] != a.State {
			c.reporting.put(a.report())
		}
	}
	s.attemptsTold = known
}

// report tells what is of a stream.
func (s *stream) report() agentapi.StreamReport {
	out := agentapi.StreamReport{
		StreamID: s.id, State: observed(&s.rec, s.run, s.failures), Generation: s.saved.Target.Generation,
		CompletedActions:   s.saved.actions(ActionCompleted),
		InterruptedActions: s.saved.actions(ActionInterrupted),
		Error:              cloneFailure(s.rec.Failure),
	}
	out.ConfigVersion, out.ConfigDigest = s.config()
	if out.Error == nil {
		out.Error = cloneFailure(s.last)
	}
	if out.Error == nil && s.run == nil && s.rec.finished() {
		out.Error = finishedFailure()
	}
	return out
}

// config is what runs, or what is to.
func (s *stream) config() (version, digest string) {
	t := s.rec.wanted()
	switch {
	case s.run != nil:
		t = &s.run.target
	case t == nil:
		t = &s.rec.Target
	}
	return t.ConfigVersion, t.Digest
}

// Dirty tells whether there is something to report before the next heartbeat.
func (c *Core) Dirty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reporting.fullWanted > c.reporting.fullGiven || len(c.reporting.order) > 0 {
		return true
	}
	for _, s := range c.streams {
		if s.changed(s.report()) {
			return true
		}
	}
	return false
}

func (s *stream) changed(r agentapi.StreamReport) bool {
	return s.told == nil || !reflect.DeepEqual(*s.told, r)
}

// Report makes the next report: a full one when one is due, else what changed since the last one that was answered. A
// heartbeat repeats the acknowledgements of attempts that go on, and has the metrics of what runs.
func (c *Core) Report(heartbeat bool, metrics func(stream string) *agentapi.Metrics) agentapi.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.reporting
	if heartbeat && r.fullWanted == r.fullGiven && c.config.Now().Sub(r.fullAt) >= hub.FullReportEvery {
		r.fullWanted++
	}
	r.seq++
	out := agentapi.Report{BootID: c.boot.ID, BootSeq: c.boot.Seq, ReportSeq: r.seq, Full: r.fullWanted > r.fullGiven}
	if out.Full {
		r.inFull[r.seq] = r.fullWanted
	}
	for _, id := range r.order {
		out.Attempts = append(out.Attempts, r.attempts[id])
	}
	for _, id := range c.order {
		s := c.streams[id]
		if a := s.saved.attempt(); a != nil && (out.Full || heartbeat && a.open()) {
			if _, there := r.attempts[a.ID]; !there {
				out.Attempts = append(out.Attempts, a.report())
			}
		}
		told := s.report()
		runs := s.run != nil && s.run.phase == ready
		if !out.Full && !s.changed(told) && !(heartbeat && runs && metrics != nil) {
			continue
		}
		if metrics != nil && s.run != nil {
			if told.Metrics = metrics(id); told.Metrics != nil {
				told.Metrics.Restarts = max(0, s.starts-1)
			}
		}
		out.Streams = append(out.Streams, told)
	}
	return out
}

// RequireFull makes the next report a full one.
func (c *Core) RequireFull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reporting.fullWanted++
}

// Reported tells that the hub has taken a report in. A report without an answer stays to be told.
func (c *Core) Reported(in agentapi.Report, answer agentapi.ReportAnswer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.reporting
	if in.BootID != c.boot.ID {
		return
	}
	for i := range in.Attempts {
		r.answered(in.Attempts[i])
	}
	for i := range in.Streams {
		if s := c.streams[in.Streams[i].StreamID]; s != nil {
			told := in.Streams[i]
			told.Metrics = nil
			s.told = &told
		}
	}
	if in.Full {
		r.fullAt = c.config.Now()
		r.fullGiven = max(r.fullGiven, r.inFull[in.ReportSeq])
	}
	for seq := range r.inFull {
		if seq <= in.ReportSeq {
			delete(r.inFull, seq)
		}
	}
	if answer.FullRequired {
		r.fullWanted++
	}
}

// Stale tells that the hub knows a newer report than the last one. One of this boot is gone past, with a full report.
// It answers whether the hub knows a newer boot of this node: another agent uses its identity, or the node's data is
// older than the hub's.
func (c *Core) Stale(bootSeq, reportSeq int64) (newerBoot bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bootSeq > c.boot.Seq {
		return true
	}
	if bootSeq == c.boot.Seq {
		c.reporting.seq = max(c.reporting.seq, reportSeq)
	}
	c.reporting.fullWanted++
	return false
}

// StreamStatus is a stream as the node knows it.
type StreamStatus struct {
	agentapi.StreamReport
	Target   Target     `json:"target"`
	Engine   hub.Engine `json:"engine,omitempty"`
	Attempt  *Attempt   `json:"attempt,omitempty"`
	Restarts int64      `json:"restarts"`
}

// Streams answers all streams by name, those that are gone too.
func (c *Core) Streams() []StreamStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]StreamStatus, 0, len(c.order))
	for _, id := range c.order {
		s := c.streams[id]
		st := StreamStatus{StreamReport: s.report(), Target: s.saved.Target, Restarts: max(0, s.starts-1)}
		st.Engine = c.contents[s.saved.Target.content()]
		if a := s.saved.attempt(); a != nil {
			attempt := *a
			st.Attempt = &attempt
		}
		out = append(out, st)
	}
	return out
}

// Known tells whether the node has the stream, and has not been told to forget it.
func (c *Core) Known(stream string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[stream]
	return s != nil && s.saved.Target.State != hub.Absent
}
