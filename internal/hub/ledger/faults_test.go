package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// TestFaultsBreakNoPromise lets an operator, a node and the network between them do anything in any order, checks after
// each step what must always hold, and at the end, when faults have stopped, that everything converges.
func TestFaultsBreakNoPromise(t *testing.T) {
	w := newWorld(t)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		w.fail = rt
		defer func() { w.fail = t }()
		s := newStorm(rt, w, fmt.Sprintf("node-%d", runs))
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			s.step()
			s.check()
		}
		s.settle()
	})
}

var resources = []string{"orders", "payments"}

// storm is one node under faults.
type storm struct {
	*rapid.T
	w *world
	a *agent
	// commands and reports that are on their way, and may arrive late, or never.
	commands []agentapi.Command
	reports  []*agentapi.Report
	// known is what the hub has taken over of each stream by the reports that it accepted.
	known map[string]agentapi.StreamReport
	// proven actions were reported as completed.
	proven map[string]bool
	// sent is the highest generation that was sent of each stream.
	sent map[string]int64
	// ended intents stay as they are.
	ended map[string]hub.IntentState
	// newest is the newest report that the hub took.
	newest hub.Cursor
}

func newStorm(t *rapid.T, w *world, node string) *storm {
	s := &storm{
		T: t, w: w, a: w.agent(node), known: map[string]agentapi.StreamReport{}, proven: map[string]bool{},
		sent: map[string]int64{}, ended: map[string]hub.IntentState{},
	}
	if rapid.Bool().Draw(t, "running") {
		for _, r := range resources {
			w.declare(node, r, hub.Running)
		}
		s.deliver(s.a.report(true))
		s.round()
	}
	return s
}

// round is a poll, what follows from it, and a report, without faults.
func (s *storm) round() {
	commands, full := s.a.poll()
	s.polled(commands)
	for _, c := range commands {
		s.a.take(c)
	}
	s.a.act()
	s.deliver(s.a.report(full))
}

func (s *storm) resource() string { return rapid.SampledFrom(resources).Draw(s.T, "resource") }

func (s *storm) step() {
	switch what := rapid.SampledFrom([]string{
		"declare", "declare", "restart", "restart", "restart", "cancel", "poll", "poll", "poll", "lose command", "late command", "late command", "act", "act",
		"report", "report", "full report", "lose report", "round", "round", "late report", "time", "time", "offline", "reboot", "lose disk", "break", "repair",
	}).Draw(s.T, "what"); what {
	case "declare":
		s.w.declare(s.a.id, s.resource(), rapid.SampledFrom([]hub.State{hub.Running, hub.Running, hub.Stopped, hub.Absent}).Draw(s.T, "state"))
	case "restart":
		_, err := s.w.tryDeclare(Mutation{Node: s.a.id, Resource: s.resource(), Verb: hub.Restart})
		var missing *hub.NotFoundError
		if err != nil && !errors.Is(err, hub.ErrNotRunning) && !errors.As(err, &missing) {
			s.Fatalf("restart: %v", err)
		}
	case "cancel":
		if st := s.stream(s.resource()); st != nil && st.Spec.IntentID != "" {
			_, err := s.w.cancel(st.Spec.IntentID)
			var terminal *hub.TerminalError
			if err != nil && !errors.As(err, &terminal) {
				s.Fatalf("cancel: %v", err)
			}
		}
	case "poll":
		commands, _ := s.a.poll()
		s.polled(commands)
		if rapid.Bool().Draw(s.T, "arrives") {
			for _, c := range commands {
				s.a.take(c)
			}
		}
		s.commands = append(s.commands, commands...)
	case "late command":
		if n := len(s.commands); n > 0 {
			s.a.take(s.commands[rapid.IntRange(0, n-1).Draw(s.T, "which")])
		}
	case "round":
		s.round()
	case "lose command":
		s.commands = nil
	case "act":
		s.a.act()
	case "report", "full report":
		s.deliver(s.a.report(what == "full report"))
	case "lose report":
		s.reports = append(s.reports, s.a.report(rapid.Bool().Draw(s.T, "full")))
	case "late report":
		if n := len(s.reports); n > 0 {
			s.deliver(s.reports[rapid.IntRange(0, n-1).Draw(s.T, "which")])
		}
	case "time":
		s.pass(time.Duration(rapid.IntRange(1, 150).Draw(s.T, "seconds")) * time.Second)
	case "offline":
		s.w.presence(s.a.id, hub.PresenceOffline)
	case "reboot":
		s.crash()
		s.a.reboot()
	case "lose disk":
		s.crash()
		s.a.loseDisk()
		s.reports = nil
	case "break":
		s.a.broken = &hub.Failure{Class: hub.Transient, Code: "start_failed", Message: "no"}
	case "repair":
		s.a.broken = nil
	}
}

// crash ends the agent's process: what is on its way to it is lost, and an action that it had begun may have run.
func (s *storm) crash() {
	s.commands = nil
	for _, t := range s.a.disk {
		id := t.desired.ActionID
		begun := t.state == hub.Starting && id != "" && !slices.Contains(t.completed, id) && !slices.Contains(t.interrupted, id)
		if begun && rapid.Bool().Draw(s.T, "begun") {
			s.a.ran[id]++
			t.interrupted = append(t.interrupted, id)
		}
	}
}

func (s *storm) pass(d time.Duration) {
	s.w.now = s.w.now.Add(d)
	s.w.advanceAll()
}

// polled checks what the node is sent.
func (s *storm) polled(commands []agentapi.Command) {
	for _, c := range commands {
		if c.Generation < s.sent[c.StreamID] {
			s.Fatalf("%s was sent generation %d after %d", c.StreamID, c.Generation, s.sent[c.StreamID])
		}
		s.sent[c.StreamID] = c.Generation
		i := s.w.intent(c.IntentID)
		if !i.Live() || i.AwaitReport != nil || i.Attempt.ID != c.AttemptID || !i.Attempt.Active() {
			s.Fatalf("sent %+v of %+v", c, i)
		}
		if s.stream(c.StreamID).Spec.IntentID != c.IntentID {
			s.Fatalf("sent %+v, which is not the current intent", c)
		}
	}
}

// deliver hands a report to the hub, and remembers what an accepted one says. The newest that said nothing new is held
// in memory only, by the server.
func (s *storm) deliver(r *agentapi.Report) {
	cursor := hub.Cursor{Boot: hub.Boot{ID: r.BootID, Seq: r.BootSeq}, ReportSeq: r.ReportSeq}
	if cursor.Boot == s.newest.Boot && cursor.ReportSeq <= s.newest.ReportSeq {
		return
	}
	_, err := s.a.send(r)
	var stale *hub.StaleReportError
	switch {
	case errors.As(err, &stale) || errors.Is(err, hub.ErrFullReportRequired):
		return
	case err != nil:
		s.Fatalf("report: %v", err)
	}
	s.newest = cursor
	if r.Full {
		s.known = map[string]agentapi.StreamReport{}
	}
	for _, sr := range r.Streams {
		s.known[sr.StreamID] = sr
		for _, id := range sr.CompletedActions {
			s.proven[id] = true
		}
	}
}

// stream answers the stored stream, nil when there is none.
func (s *storm) stream(resource string) *hub.Stream {
	var st *hub.Stream
	s.w.view(func(r store.Reader) (err error) {
		st, err = hub.Streams.Get(r, hub.StreamName(s.a.id, resource))
		if errors.Is(err, store.ErrNotFound) {
			st, err = nil, nil
		}
		return err
	})
	return st
}

// check is what must hold at any time.
func (s *storm) check() {
	for id, times := range s.a.ran {
		if times > 1 {
			s.Fatalf("action %s ran %d times", id, times)
		}
	}
	s.w.view(func(r store.Reader) error {
		streams, _, err := hub.Streams.List(r, store.Query{Prefix: s.a.id + "/"})
		if err != nil {
			return err
		}
		for _, st := range streams {
			s.checkStream(r, st)
		}
		own := labels.SelectorFromValidatedSet(labels.Set{hub.LabelNode: s.a.id})
		operations, _, err := hub.Operations.List(r, store.Query{Selector: own})
		for _, o := range operations {
			s.checkIntent(r, &o.Status)
		}
		return err
	})
}

func (s *storm) checkStream(r store.Reader, st *hub.Stream) {
	resource := strings.TrimPrefix(st.Name, s.a.id+"/")
	if st.Labels[hub.LabelConvergence] != string(st.Status.Convergence.State) {
		s.Fatalf("label %q of %+v", st.Labels[hub.LabelConvergence], st.Status)
	}
	owner, err := r.Claimed(claimAttempt, st.Name)
	if errors.Is(err, store.ErrNotFound) {
		owner = ""
	} else if err != nil {
		s.Fatalf("%v", err)
	}
	if owner != st.Status.AttemptID {
		s.Fatalf("%s is claimed by %q, its active attempt is %q", st.Name, owner, st.Status.AttemptID)
	}
	if st.Status.Convergence.State != hub.InSync {
		return
	}
	said, d := s.known[resource], st.Spec.Desired
	if said.State == "" {
		said.State = hub.Absent
	}
	if !hub.Proves(d, observed(&said), s.proven[d.ActionID]) {
		s.Fatalf("%s is in sync: desired %+v, reported %+v", st.Name, d, said)
	}
}

func (s *storm) checkIntent(r store.Reader, i *hub.Intent) {
	if was, ended := s.ended[i.ID]; ended && i.State != was {
		s.Fatalf("%s was %s and is %s", i.ID, was, i.State)
	}
	if i.State == hub.Superseded || i.State == hub.Cancelled {
		s.ended[i.ID] = i.State
	}
	st, err := hub.Streams.Get(r, hub.StreamName(i.Node, i.Resource))
	if err != nil {
		s.Fatalf("%v", err)
	}
	current := st.Spec.IntentID == i.ID
	if !current && (i.Live() || i.State == hub.Blocked) {
		s.Fatalf("%s is %s and not the current intent", i.ID, i.State)
	}
	if current && (i.State != st.Status.IntentState || i.Attempt.Active() != (st.Status.AttemptID != "")) {
		s.Fatalf("%s is %s, %+v; its stream says %+v", i.ID, i.State, i.Attempt, st.Status)
	}
}

// settle lets the faults stop: what is on its way arrives, the node works, and everything converges, but for what was
// cancelled, and for restarts that may have run.
func (s *storm) settle() {
	s.a.broken = nil
	for _, c := range s.commands {
		s.a.take(c)
	}
	for _, r := range s.reports {
		s.deliver(r)
	}
	if s.a.boot.Seq > 0 {
		s.deliver(s.a.report(true))
	}
	for range 8 {
		s.round()
		s.check()
		s.pass(hub.RetryMax)
		s.deliver(s.a.report(true))
	}
	for _, resource := range resources {
		st := s.stream(resource)
		if st == nil || st.Spec.Desired == nil {
			continue
		}
		switch c := st.Status.Convergence; {
		case c.State == hub.InSync:
		case c.State == hub.ConvergenceBlocked && (c.Reason == hub.ReasonCancelled || c.Reason == "action_interrupted" || c.Reason == "budget_spent"):
		default:
			s.Fatalf("%s does not converge: %+v, desired %+v, reported %+v, intent %+v", st.Name, c, st.Spec.Desired, s.known[resource], s.w.intent(st.Spec.IntentID))
		}
	}
}
