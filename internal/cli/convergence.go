package cli

import (
	"errors"
	"fmt"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

// convergence is what a watcher is shown of an operation on its way: what is asked for, what the node reports, and how far
// the try to bring it there is. It takes in what is observed and tells, in words, what that changed.
type convergence struct {
	what    string // "stream local/orders"
	asked   client.StreamAccepted
	started time.Time
	stream  *client.Stream
	op      *client.Operation
	// told is the failure that was told last: it comes with the stream and with the operation, and with each try again.
	told string
}

func newConvergence(what string, asked *client.StreamAccepted, started time.Time) *convergence {
	return &convergence{what: what, asked: *asked, started: started}
}

// sawStream takes in the stream. A view that is older than what was asked for tells nothing.
func (p *convergence) sawStream(s *client.Stream) []note {
	if s.Desired == nil || s.Desired.Generation < p.asked.Generation {
		return nil
	}
	old := p.stream
	p.stream = s
	if old == nil {
		old = &client.Stream{}
	}
	var notes []note
	if was, is := observedText(old.Observed), observedText(s.Observed); is != was && s.Observed != nil {
		notes = append(notes, note{text: "the node reports: " + is})
	}
	notes = append(notes, p.failed(failureOf(s.Observed))...)
	if s.Convergence != old.Convergence || s.ConvergenceReason != old.ConvergenceReason {
		notes = append(notes, note{text: convergenceText(s.Convergence, s.ConvergenceReason)})
	}
	return notes
}

// sawOperation takes in the operation.
func (p *convergence) sawOperation(o *client.Operation) []note {
	old := p.op
	p.op = o
	if old == nil {
		old = &client.Operation{}
	}
	var notes []note
	if text := attemptText(o); text != "" && text != attemptText(old) {
		notes = append(notes, note{text: text})
	}
	if o.Failure != nil && o.State != hub.Converged {
		notes = append(notes, p.failed(failureText(o.Failure))...)
	}
	if o.Retry.NextAt != nil && o.State == hub.Retrying && o.Retry.Count != old.Retry.Count {
		notes = append(notes, note{text: fmt.Sprintf("the node is asked again (try %d of %d)", o.Retry.Count+1, o.Retry.Budget)})
	}
	return notes
}

func (p *convergence) failed(text string) []note {
	if text == "" || text == p.told {
		return nil
	}
	p.told = text
	return []note{{"! " + text, true}}
}

// ended tells whether there is nothing more to wait for, and why it did not come to what was asked for.
func (p *convergence) ended() (bool, error) {
	if s := p.stream; s != nil && s.IntentID == p.asked.IntentID && s.Convergence == hub.InSync {
		return true, nil
	}
	o := p.op
	if o == nil {
		return false, nil
	}
	switch o.State {
	case hub.Converged:
		return true, nil
	case hub.Blocked:
		why := first(o.ConvergenceReason, "the server does not say why")
		if o.Failure != nil {
			why = failureText(o.Failure)
		}
		return true, fmt.Errorf("%s is blocked: %s\n  it needs another change, or the same again; the operation: freehold operation show %s", p.what, why, o.IntentID)
	case hub.Superseded:
		return true, fmt.Errorf("%s was changed again meanwhile: %s is superseded", p.what, o.IntentID)
	case hub.Cancelled:
		return true, fmt.Errorf("%s was cancelled before %s came to it", o.IntentID, p.what)
	}
	return false, nil
}

// why tells what an operation that took too long is waiting for.
func (p *convergence) why() string {
	text := "it is " + string(p.asked.Convergence)
	if p.stream != nil {
		text = "it is " + convergenceText(p.stream.Convergence, p.stream.ConvergenceReason)
	}
	if p.op != nil && p.op.Failure != nil {
		text += "; " + failureText(p.op.Failure)
	} else if p.stream != nil && failureOf(p.stream.Observed) != "" {
		text += "; " + failureOf(p.stream.Observed)
	}
	return text
}

// reasons are those of the convergence that a reader may not understand by themselves.
var reasons = map[string]string{
	"node_offline":     "the node is offline",
	"never_observed":   "the node has not reported it yet",
	"no_desired_state": "nobody declared it",
	"cancelled":        "its operation was cancelled",
	"ambiguous":        "no answer came; the node's next report decides",
}

func convergenceText(c hub.ConvergenceState, reason string) string {
	if reason == "" {
		return string(c)
	}
	return fmt.Sprintf("%s: %s", c, first(reasons[reason], reason))
}

func observedText(o *hub.Observed) string {
	if o == nil {
		return ""
	}
	text := fmt.Sprintf("%s, generation %d", o.State, o.Generation)
	if o.ConfigVersion != "" {
		text += ", " + o.ConfigVersion
	}
	return text
}

func desiredText(d *hub.Desired) string {
	if d == nil {
		return ""
	}
	text := fmt.Sprintf("%s, generation %d", d.State, d.Generation)
	if d.ConfigVersion != "" {
		text += ", " + d.ConfigVersion
	}
	if d.ActionID != "" {
		text += ", restart " + d.ActionID
	}
	return text
}

func failureOf(o *hub.Observed) string {
	if o == nil || o.Failure == nil {
		return ""
	}
	return failureText(o.Failure)
}

func failureText(f *hub.Failure) string {
	return fmt.Sprintf("%s (%s, %s)", first(f.Message, "no message"), f.Code, f.Class)
}

// attempts in words.
var attemptWords = map[hub.AttemptState]string{
	hub.Dispatched:   "sent to the node",
	hub.Acknowledged: "accepted by the node",
	hub.Succeeded:    "done by the node",
	hub.AttemptFail:  "failed on the node",
	hub.Ambiguous:    "no answer from the node: its next report decides",
}

func attemptText(o *client.Operation) string {
	if o.Attempt == nil || attemptWords[o.Attempt.State] == "" {
		return ""
	}
	text := attemptWords[o.Attempt.State]
	if o.Attempts > 1 {
		text += fmt.Sprintf(" (attempt %d)", o.Attempts)
	}
	return text
}

// lines draws the area.
func (p *convergence) lines(l *live, now time.Time) []string {
	frame := string(spinner[int(now.Sub(p.started)/(100*time.Millisecond))%len(spinner)])
	mark, state := l.paint(yellow, frame), string(p.asked.Convergence)
	if p.stream != nil {
		state = convergenceText(p.stream.Convergence, p.stream.ConvergenceReason)
	}
	done, err := p.ended()
	switch {
	case done && err == nil:
		mark, state = l.paint(green, "✓"), string(hub.InSync)
	case done:
		mark = l.paint(red, "✗")
	}
	want := hub.Desired{State: p.asked.DesiredState, Generation: p.asked.Generation, ConfigVersion: p.asked.ConfigVersion, ActionID: p.asked.ActionID}
	out := []string{
		fmt.Sprintf("%s %s  %s  %s", mark, l.paint(bold, p.what), state, l.paint(dim, seconds(now.Sub(p.started)))),
		"    asked for  " + desiredText(&want),
	}
	if p.stream != nil && p.stream.Observed != nil {
		out = append(out, "    observed   "+observedText(p.stream.Observed))
	}
	if p.op != nil && attemptText(p.op) != "" && !(done && err == nil) {
		text := attemptText(p.op)
		if at := p.op.Retry.NextAt; at != nil && at.After(now) && p.op.State == hub.Retrying {
			text += fmt.Sprintf("; again in %s, try %d of %d", seconds(at.Sub(now)), p.op.Retry.Count+1, p.op.Retry.Budget)
		}
		out = append(out, "    attempt    "+text)
	}
	return out
}

// mayRecover tells whether asking again later may succeed.
func mayRecover(err error) bool {
	var e *client.Error
	return client.IsConnect(err) || errors.As(err, &e) && (e.Code >= 500 || e.Code == 429)
}
