package ledger

import (
	"encoding/json"
	"errors"
	"fmt"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Outcome of a report.
type Outcome struct {
	// Changed tells whether anything was stored.
	Changed bool
	// FullRequired tells that the node should report fully, now.
	FullRequired bool
	// Wake tells that there is something to dispatch to the node.
	Wake bool
}

// Report takes over what a node observes and what became of its attempts. It makes the node online, and stores the
// report's cursor.
//
// Errors: [hub.ErrNotEnrolled], [hub.StaleReportError], [hub.ErrFullReportRequired], [hub.ErrIdentityConflict].
func (l *Ledger) Report(tx store.Tx, id string, rep *agentapi.Report) (Outcome, error) {
	node, cursor, err := l.admit(tx, id, rep)
	if err != nil {
		return Outcome{}, err
	}
	b := l.open(tx, node)
	b.presence = hub.PresenceOnline
	open, err := b.openIntents()
	if err != nil {
		return Outcome{}, err
	}
	if err := b.observeAll(rep, open); err != nil {
		return Outcome{}, err
	}
	if err := b.answerAll(rep.Attempts, rep.BootID); err != nil {
		return Outcome{}, err
	}
	boot := bootOf(rep)
	heard, err := b.heard(tx, node, boot)
	if err != nil {
		return Outcome{}, err
	}
	out := b.outcome()
	changed, err := b.save(tx)
	if err != nil {
		return Outcome{}, err
	}
	out.Changed = changed || heard || cursor.Boot != boot
	return out, putCursor(tx, node.UID, hub.Cursor{Boot: boot, ReportSeq: rep.ReportSeq})
}

func bootOf(rep *agentapi.Report) hub.Boot { return hub.Boot{ID: rep.BootID, Seq: rep.BootSeq} }

// admit answers the node that a report is from and its newest stored report, or why it is not taken.
func (l *Ledger) admit(r store.Reader, id string, rep *agentapi.Report) (*hub.Node, hub.Cursor, error) {
	node, err := hub.Nodes.Get(r, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, hub.Cursor{}, hub.ErrNotEnrolled
	}
	if err != nil {
		return nil, hub.Cursor{}, err
	}
	cursor, err := l.Cursor(r, node.UID)
	if err != nil {
		return nil, hub.Cursor{}, err
	}
	boot, newest := bootOf(rep), node.Status.Boot
	if cursor.Boot.Seq > newest.Seq {
		newest = cursor.Boot
	}
	switch {
	case boot.Seq < newest.Seq:
		return nil, cursor, &hub.StaleReportError{Cursor: cursor}
	case boot.Seq == newest.Seq && boot != newest:
		return nil, cursor, hub.ErrIdentityConflict
	case cursor.Boot != boot && !rep.Full:
		return nil, cursor, hub.ErrFullReportRequired
	case cursor.Boot == boot && rep.ReportSeq <= cursor.ReportSeq:
		return nil, cursor, &hub.StaleReportError{Cursor: cursor}
	}
	return node, cursor, nil
}

func cursorBlob(nodeUID string) string { return "hub/cursor/" + nodeUID }

// Cursor answers the newest stored report of a node: the zero Cursor when there is none. Newer reports than that were
// taken that said nothing new.
func (l *Ledger) Cursor(r store.Reader, nodeUID string) (hub.Cursor, error) {
	var c hub.Cursor
	stored, err := r.Blob(cursorBlob(nodeUID))
	if errors.Is(err, store.ErrNotFound) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(stored, &c); err != nil {
		return c, fmt.Errorf("report cursor of node %s: %w", nodeUID, err)
	}
	return c, nil
}

func putCursor(tx store.Tx, nodeUID string, c hub.Cursor) error {
	encoded, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return tx.PutBlob(cursorBlob(nodeUID), encoded)
}

// observeAll takes over the reported streams. A full report tells of every stream, of those it lacks too, and decides
// what open intents wait for.
func (b *book) observeAll(rep *agentapi.Report, open []*operation) error {
	evidence := hub.Evidence{Boot: rep.BootID, Full: rep.Full, Jitter: b.l.cfg.Jitter()}
	reported := make(map[string]bool, len(rep.Streams))
	for i := range rep.Streams {
		r := &rep.Streams[i]
		reported[r.StreamID] = true
		s, err := b.stream(r.StreamID)
		if err != nil {
			return err
		}
		if s == nil {
			s = b.newStream(r.StreamID)
		}
		if err := b.observe(s, observed(r), evidence); err != nil {
			return err
		}
	}
	if !rep.Full {
		return nil
	}
	all, err := b.allStreams()
	if err != nil {
		return err
	}
	for _, s := range all {
		if !reported[s.resource] {
			if err := b.observe(s, &hub.Observed{State: hub.Absent}, evidence); err != nil {
				return err
			}
		}
	}
	return b.decide(open, evidence)
}

func observed(r *agentapi.StreamReport) *hub.Observed {
	return &hub.Observed{
		State: r.State, Generation: r.Generation, ConfigVersion: r.ConfigVersion, ConfigDigest: r.ConfigDigest,
		CompletedActions: r.CompletedActions, InterruptedActions: r.InterruptedActions, Failure: r.Error,
	}
}

// observe takes over one observation, unless it says what is known.
func (b *book) observe(s *stream, o *hub.Observed, e hub.Evidence) error {
	if was := s.Status.Observed; was != nil && was.Same(o) {
		return nil
	}
	o.ReportedAt = b.now
	s.Status.Observed, s.changed = o, true
	if s.Spec.Desired == nil {
		s.gone = e.Full && o.Generation == 0 && o.State == hub.Absent
		b.settle(s, nil)
		return nil
	}
	current, err := b.current(s)
	if err != nil {
		return err
	}
	b.tell(s, current, e)
	return nil
}

// tell lets the stream's intent look at the observation.
func (b *book) tell(s *stream, current *operation, e hub.Evidence) {
	if current.Status.Observe(b.now, s.Status.Observed, e) {
		current.changed = true
		s.converged(&current.Status)
	}
	b.settle(s, current)
}

// converged keeps what a rollback goes to.
func (s *stream) converged(i *hub.Intent) {
	version := i.Desired.ConfigVersion
	if i.State != hub.Converged || i.Desired.State != hub.Running || version == s.Spec.LastConverged {
		return
	}
	s.Spec.PreviousConverged, s.Spec.LastConverged, s.changed = s.Spec.LastConverged, version, true
}

// decide shows a full report to the open intents whose streams it says nothing new of.
func (b *book) decide(open []*operation, e hub.Evidence) error {
	for _, o := range open {
		s, err := b.stream(o.Status.Resource)
		if err != nil {
			return err
		}
		if s != nil && s.Spec.IntentID == o.Name && s.Status.Observed != nil {
			b.tell(s, o, e)
		}
	}
	return nil
}

// answerAll takes over what became of attempts.
func (b *book) answerAll(attempts []agentapi.AttemptReport, boot string) error {
	for i := range attempts {
		a := &attempts[i]
		o, err := b.intentOfAttempt(a.AttemptID)
		if err != nil {
			return err
		}
		if o == nil || !b.answer(&o.Status, a) {
			continue
		}
		o.changed = true
		if err := b.lookAgain(o, boot); err != nil {
			return err
		}
	}
	return nil
}

// lookAgain shows an intent whose attempt is through what the same report, or an earlier one, said of the stream: it may
// tell that the node is there, or has given up.
func (b *book) lookAgain(o *operation, boot string) error {
	s, err := b.stream(o.Status.Resource)
	if err != nil || s == nil || s.Spec.IntentID != o.Name {
		return err
	}
	if s.Status.Observed == nil {
		b.settle(s, o)
		return nil
	}
	b.tell(s, o, hub.Evidence{Boot: boot, Jitter: b.l.cfg.Jitter()})
	return nil
}

// intentOfAttempt answers the intent whose latest attempt it is, if it is one of this node.
func (b *book) intentOfAttempt(attempt string) (*operation, error) {
	id := intentOf(attempt)
	if id == "" {
		return nil, nil
	}
	o, err := b.intent(id)
	if err != nil || o == nil {
		return nil, err
	}
	if i := &o.Status; i.Node != b.node || i.Attempt == nil || i.Attempt.ID != attempt {
		return nil, nil
	}
	return o, nil
}

func (b *book) answer(i *hub.Intent, a *agentapi.AttemptReport) bool {
	switch a.State {
	case hub.Acknowledged:
		return i.Acknowledge(b.now)
	case hub.Succeeded:
		return i.Succeed(b.now)
	case hub.AttemptFail:
		f := hub.Failure{Class: hub.Transient, Code: "failed", Message: "the node did not say why"}
		if a.Failure != nil {
			f = *a.Failure
		}
		return i.Fail(b.now, f, b.l.cfg.Jitter())
	}
	return false
}

// heard makes the node online, and the boot its newest (a hub that was restored from a backup may not know it yet). It
// answers whether the node changed.
func (b *book) heard(tx store.Tx, node *hub.Node, boot hub.Boot) (bool, error) {
	if node.Status.Presence == hub.PresenceOnline && node.Status.Boot == boot {
		return false, nil
	}
	node.Status.Boot = boot
	if node.Status.Presence == hub.PresenceOnline {
		return true, hub.Nodes.Update(tx, node)
	}
	return true, b.setPresence(tx, node, hub.PresenceOnline)
}

// outcome tells what the intents that were looked at wait for.
func (b *book) outcome() Outcome {
	var out Outcome
	for _, o := range b.intents {
		out.FullRequired = out.FullRequired || o.Status.AwaitReport != nil
		out.Wake = out.Wake || o.Status.Dispatchable(b.now)
	}
	return out
}

// ReportChanges tells whether Report would store anything but the cursor, without a transaction. When it would not, the
// report is fully taken over by remembering its cursor, provided that no report before it is missing: one that is missing may
// arrive yet, and is told to be old by a stored cursor only. fullRequired is as in Outcome. Errors are those of Report.
func (l *Ledger) ReportChanges(r store.Reader, id string, rep *agentapi.Report) (changes, fullRequired bool, err error) {
	node, cursor, err := l.admit(r, id, rep)
	if err != nil {
		return false, false, err
	}
	b := l.open(r, node)
	open, err := b.openIntents()
	if err != nil {
		return false, false, err
	}
	fullRequired = b.outcome().FullRequired
	answers, err := b.awaited(rep.Attempts)
	if err != nil {
		return false, false, err
	}
	if answers || cursor.Boot != bootOf(rep) || node.Status.Presence != hub.PresenceOnline || node.Status.Boot != bootOf(rep) || rep.Full && len(open) > 0 {
		return true, fullRequired, nil
	}
	changes, err = b.news(rep)
	return changes, fullRequired, err
}

// awaited tells whether one of the answers is to an attempt that waits for one.
func (b *book) awaited(attempts []agentapi.AttemptReport) (bool, error) {
	for i := range attempts {
		o, err := b.intentOfAttempt(attempts[i].AttemptID)
		if err != nil {
			return false, err
		}
		if o != nil && (o.Status.Attempt.Active() || o.Status.Attempt.State == hub.Ambiguous) {
			return true, nil
		}
	}
	return false, nil
}

// news tells whether the report says anything of a stream that is not stored.
func (b *book) news(rep *agentapi.Report) (bool, error) {
	reported := make(map[string]bool, len(rep.Streams))
	if rep.Full {
		if _, err := b.allStreams(); err != nil {
			return false, err
		}
	}
	for i := range rep.Streams {
		r := &rep.Streams[i]
		reported[r.StreamID] = true
		s, err := b.stream(r.StreamID)
		if err != nil {
			return false, err
		}
		if s == nil || s.Status.Observed == nil || !s.Status.Observed.Same(observed(r)) {
			return true, nil
		}
	}
	if !rep.Full {
		return false, nil
	}
	nothing := hub.Observed{State: hub.Absent}
	for _, s := range b.streams {
		if !reported[s.resource] && (s.Status.Observed == nil || !s.Status.Observed.Same(&nothing)) {
			return true, nil
		}
	}
	return false, nil
}
