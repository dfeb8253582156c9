package model

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/hub"
)

// quietWorld has no faults but those that its test makes.
func quietWorld(t *testing.T, nodes int) *world {
	t.Helper()
	dir := scratch(t)
	w := newWorld(t, dir, nodes)
	t.Cleanup(func() {
		w.close()
		_ = os.RemoveAll(dir)
	})
	w.converge()
	return w
}

func (w *world) stream(node, stream string) client.Stream {
	w.t.Helper()
	return get[client.Stream](w, streamPath(node, stream))
}

// wantInSync fails unless the stream is in sync at the generation.
func (w *world) wantInSync(node, stream string, generation int64) {
	w.t.Helper()
	if s := w.stream(node, stream); s.Convergence != hub.InSync || s.Observed.Generation != generation {
		w.t.Fatalf("%s/%s is not in_sync at generation %d: %s", node, stream, generation, w.describe(s))
	}
}

// accept fails unless the write is accepted.
func (o *operator) accept(p *write) {
	o.w.t.Helper()
	if out := o.do(p); !out.ok() {
		o.w.t.Fatalf("%s: %d %s", p, out.status, out.body)
	}
}

// accepted is the generation of a stream that the agent took over last.
func (n *node) accepted(stream string) []int64 {
	var generations []int64
	for _, st := range n.core.Streams() {
		if st.StreamID == stream {
			generations = append(generations, st.Target.Generation)
		}
	}
	return generations
}

// TestAnAgentThatWasAwayForADayGetsTheLatestGenerationAndNoOther lets a node be silent for a day in which its stream is
// written again and again, restarted, and its hub crashes.
func TestAnAgentThatWasAwayForADayGetsTheLatestGenerationAndNoOther(t *testing.T) {
	w := quietWorld(t, 2)
	away, other := w.nodes[0], w.nodes[1]
	w.operator.accept(w.operator.put(away.name, "orders", hub.Running, "cfg-1"))
	w.converge()
	w.wantInSync(away.name, "orders", 1)

	for hour := range 24 {
		w.operator.accept(w.operator.put(away.name, "orders", hub.Running, w.operator.wells[hour%2]))
		if hour%5 == 0 {
			w.operator.accept(w.operator.restart(away.name, "orders"))
		}
		if hour%7 == 0 {
			w.hub.crash()
		}
		for range 60 {
			w.pass(time.Minute)
			other.exchange()
			w.hub.reconcile()
		}
		w.check()
	}
	w.operator.accept(w.operator.put(away.name, "orders", hub.Running, w.operator.wells[1]))
	last := w.stream(away.name, "orders")
	if last.Convergence == hub.InSync || last.Observed.Generation != 1 {
		t.Fatalf("nobody reported, and the stream is %s", w.describe(last))
	}
	if n := get[client.HubNode](w, "/api/v1/nodes/"+away.name); n.State != hub.PresenceOffline {
		t.Fatalf("the node is %s after a day of silence", n.State)
	}

	// Everything that it takes over from now on.
	took := map[int64]bool{}
	for range 20 {
		away.exchange()
		for _, generation := range away.accepted("orders") {
			took[generation] = true
		}
		away.settle()
		w.pass(time.Second)
		w.hub.reconcile()
		w.check()
	}
	w.wantInSync(away.name, "orders", last.Desired.Generation)
	delete(took, 1)
	if len(took) != 1 || !took[last.Desired.Generation] {
		t.Fatalf("the node took over the generations %v, and the latest is %d", took, last.Desired.Generation)
	}
	attempts := 0
	for _, o := range get[client.HubPage[client.Operation]](w, "/api/v1/operations?page_size=100&node_id="+away.name).Items {
		if o.Generation > 1 {
			attempts += o.Attempts
		}
		if o.Generation > 1 && o.Generation < last.Desired.Generation && o.State != hub.Superseded {
			t.Fatalf("operation %s is %s", o.IntentID, o.State)
		}
	}
	if attempts != 1 {
		t.Fatalf("%d commands were sent for the generations after the first", attempts)
	}
	if starts := w.seen.stops; len(starts) != 0 {
		t.Fatalf("restarts that were superseded were run: %v", starts)
	}
}

// clone copies a node's disk, its identity too, to another machine.
func (w *world) clone(n *node) *node {
	w.t.Helper()
	c := &node{w: w, name: n.name, label: n.name + "-clone", engine: newEngine(), key: n.key, refresh: n.refresh}
	n.close()
	c.path = n.path + "-clone"
	copyStore(w, n.path, c.path)
	n.store = openStore(w, n.path, agent.Kinds())
	n.boot()
	c.store = openStore(w, c.path, agent.Kinds())
	c.boot()
	w.nodes = append(w.nodes, c)
	return c
}

func (w *world) conditions(node string) []hub.Condition {
	return get[client.HubNode](w, "/api/v1/nodes/"+node).Conditions
}

// TestANodeThatWasClonedWithItsCredentialsIsNoticedAndSaid starts a copy of a machine beside it: one of the two is
// refused and told so, the node says that there is a conflict, and what the hub believes comes from one of them only.
func TestANodeThatWasClonedWithItsCredentialsIsNoticedAndSaid(t *testing.T) {
	for _, ahead := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("the copy was started %d times more", ahead), func(t *testing.T) {
			w := quietWorld(t, 1)
			n := w.nodes[0]
			w.operator.accept(w.operator.put(n.name, "orders", hub.Running, "cfg-1"))
			w.converge()
			c := w.clone(n)
			for range ahead {
				c.crash()
			}
			for range 20 {
				for _, m := range w.nodes {
					m.clean()
					m.exchange()
					m.settle()
				}
				w.pass(time.Second)
				w.hub.reconcile()
				w.check()
			}
			found := w.conditions(n.name)
			if len(found) != 1 || found[0].Type != hub.ConditionIdentityConflict || !strings.Contains(found[0].Message, "two agents use this node's identity") {
				t.Fatalf("the node says %+v", found)
			}
			if (n.conflicts > 0) == (c.conflicts > 0) {
				t.Fatalf("the two agents were told of a conflict %d and %d times: it must be one of them", n.conflicts, c.conflicts)
			}
			stays, goes := n, c
			if n.conflicts > 0 {
				stays, goes = c, n
			}
			w.operator.accept(w.operator.put(n.name, "orders", hub.Running, "cfg-2"))
			for range 10 {
				for _, m := range w.nodes {
					m.exchange()
					m.settle()
				}
				w.pass(time.Second)
				w.hub.reconcile()
				w.check()
			}
			w.wantInSync(n.name, "orders", 2)
			if goes.status("orders").Target.Generation != 1 || stays.status("orders").Target.Generation != 2 {
				t.Fatalf("generation 2 went to the wrong one of two: %s has %+v, %s has %+v", stays.label, stays.status("orders").Target, goes.label, goes.status("orders").Target)
			}

			// One of them is taken away, and the sign goes with it.
			w.nodes = slices.DeleteFunc(w.nodes, func(m *node) bool { return m == goes })
			goes.close()
			w.pass(11 * time.Minute)
			w.converge()
			if left := w.conditions(n.name); len(left) > 0 {
				t.Fatalf("there is one agent only, and the node says %+v", left)
			}
		})
	}
}

// TestAHubWhoseRecordsWentBackInTimeFindsItsNodesAgain restores a copy of the hub's records that is older than what its
// nodes have: what they are ahead with is said, and the next write converges, without anything being run twice.
func TestAHubWhoseRecordsWentBackInTimeFindsItsNodesAgain(t *testing.T) {
	w := quietWorld(t, 2)
	n, silent := w.nodes[0], w.nodes[1]
	for _, m := range w.nodes {
		w.operator.accept(w.operator.put(m.name, "orders", hub.Running, "cfg-1"))
		w.operator.accept(w.operator.put(m.name, "rides", hub.Running, "cfg-1"))
	}
	w.converge()
	w.hub.snapshot()
	part := w.seen.hubPart()

	w.operator.accept(w.operator.put(n.name, "orders", hub.Running, "cfg-2"))
	w.operator.accept(w.operator.restart(n.name, "orders"))
	w.operator.accept(w.operator.put(silent.name, "orders", hub.Stopped, ""))
	w.operator.accept(w.operator.put(n.name, "new", hub.Running, "cfg-1"))
	w.converge()
	w.wantInSync(n.name, "orders", 3)
	restarts := fmt.Sprint(w.seen.stops)

	w.hub.restore()
	w.seen.goBack(part)
	w.operator.readAll()
	w.converge()
	for _, m := range w.nodes {
		s := w.stream(m.name, "orders")
		if s.Convergence != hub.ConvergenceBlocked || s.ConvergenceReason != hub.CodeNodeAhead {
			t.Fatalf("%s has what the hub has forgotten, and is %s", m.name, w.describe(s))
		}
		w.wantInSync(m.name, "rides", 1)
	}
	if s := w.stream(n.name, "new"); s.Desired != nil || s.Observed == nil || s.Convergence != hub.Unknown {
		t.Fatalf("what nobody declared is %s", w.describe(s))
	}
	for _, m := range w.nodes {
		w.operator.accept(w.operator.put(m.name, "orders", hub.Running, "cfg-1"))
	}
	w.operator.accept(w.operator.put(n.name, "new", hub.Absent, ""))
	w.converge()
	w.wantInSync(n.name, "orders", 4)
	w.wantInSync(silent.name, "orders", 3)
	w.wantInSync(n.name, "new", 2)
	if now := fmt.Sprint(w.seen.stops); now != restarts {
		t.Fatalf("restarts were run again: %s, and before %s", now, restarts)
	}
}

// TestAVersionNameThatIsGivenTwiceIsNotTakenForTheOtherContent: a hub whose records went back gives the names of config
// versions out again. A node that runs the first content of that name does not prove the second.
func TestAVersionNameThatIsGivenTwiceIsNotTakenForTheOtherContent(t *testing.T) {
	for _, behaviour := range []string{runsWell, rejected, slow} {
		t.Run(behaviour, func(t *testing.T) {
			w := quietWorld(t, 1)
			n := w.nodes[0]
			w.hub.snapshot()
			part := w.seen.hubPart()
			version := w.operator.publish(runsWell)
			w.operator.accept(w.operator.put(n.name, "orders", hub.Running, version))
			w.converge()
			w.wantInSync(n.name, "orders", 1)

			w.hub.restore()
			w.seen.goBack(part)
			w.operator.readAll()
			if again := w.operator.publish(behaviour); again != version {
				t.Fatalf("the name %s is not given again, but %s", version, again)
			}
			// At the same generation as the node has, before the node is heard, and at the next.
			for range 2 {
				w.operator.accept(w.operator.put(n.name, "orders", hub.Running, version))
				for range 30 {
					n.exchange()
					n.settle()
					w.pass(time.Second)
					w.hub.reconcile()
					w.check()
				}
			}
			if s := w.stream(n.name, "orders"); (s.Convergence == hub.InSync) != (behaviour == runsWell) {
				t.Fatalf("with a content that is %s the stream is %s", behaviour, w.describe(s))
			}
		})
	}
}

func TestANodeThatLosesItsDiskIsBroughtBackWithoutRunningARestartAgain(t *testing.T) {
	w := quietWorld(t, 1)
	n := w.nodes[0]
	w.operator.accept(w.operator.put(n.name, "orders", hub.Running, "cfg-1"))
	w.converge()
	w.operator.accept(w.operator.restart(n.name, "orders"))
	w.converge()
	w.wantInSync(n.name, "orders", 2)
	n.wipe()
	w.converge()
	w.wantInSync(n.name, "orders", 2)
	if len(w.seen.stops) != 1 {
		t.Fatalf("restarts: %v", w.seen.stops)
	}
	// One that was not proven yet is not run again, but said.
	w.operator.accept(w.operator.restart(n.name, "orders"))
	n.exchange() // it has it
	n.wipe()
	w.converge()
	if s := w.stream(n.name, "orders"); s.Convergence != hub.ConvergenceBlocked || s.ConvergenceReason != "action_interrupted" {
		t.Fatalf("nobody can tell whether the restart ran, and the stream is %s", w.describe(s))
	}
	w.operator.accept(w.operator.put(n.name, "orders", hub.Running, "cfg-1"))
	w.converge()
	w.wantInSync(n.name, "orders", 4)
}

func TestAFullDiskOfTheHubIsSaidAndPasses(t *testing.T) {
	w := quietWorld(t, 1)
	n := w.nodes[0]
	w.operator.accept(w.operator.put(n.name, "orders", hub.Running, "cfg-1"))
	w.hub.store.full = true
	for range 10 {
		n.exchange()
		n.settle()
		w.pass(time.Second)
		w.hub.reconcile()
		w.check()
	}
	if out := w.operator.do(w.operator.put(n.name, "orders", hub.Running, "cfg-2")); out.status != http.StatusServiceUnavailable || out.code() != "repository_unavailable" {
		t.Fatalf("a full disk is answered %d %s", out.status, out.body)
	}
	w.hub.store.full = false
	w.converge()
	w.wantInSync(n.name, "orders", 1)
}

// TestARestartThatAnAgentDiedOverIsSaidAndNotRunAgain lets the agent die at each moment of a restart.
func TestARestartThatAnAgentDiedOverIsSaidAndNotRunAgain(t *testing.T) {
	interrupted := 0
	for steps := range 8 {
		w := quietWorld(t, 1)
		n := w.nodes[0]
		w.operator.accept(w.operator.put(n.name, "orders", hub.Running, "cfg-1"))
		w.converge()
		w.operator.accept(w.operator.restart(n.name, "orders"))
		n.exchange()
		for range steps {
			n.step()
		}
		n.crash()
		w.converge()
		s := w.stream(n.name, "orders")
		switch {
		case s.Convergence == hub.InSync && w.seen.stops[n.name+"/orders/"+s.Desired.ActionID] <= 1:
		case s.Convergence == hub.ConvergenceBlocked && s.ConvergenceReason == "action_interrupted":
			interrupted++
		default:
			t.Fatalf("the agent died after %d steps of a restart, and the stream is %s", steps, w.describe(s))
		}
		if truth := n.truth("orders"); len(truth.live) != 1 {
			t.Fatalf("the agent died after %d steps of a restart, and the stream does not run: %+v", steps, truth)
		}
	}
	if interrupted == 0 || interrupted == 8 {
		t.Fatalf("%d of 8 deaths interrupted the restart: the others came before or after it", interrupted)
	}
}

// step does the next thing that can be done on the node.
func (n *node) step() {
	n.w.t.Helper()
	if len(n.pending) > 0 {
		n.act(0)
		return
	}
	for _, token := range n.engine.tokens(n.core) {
		if n.progress(n.engine.runs[token]) {
			return
		}
	}
	n.look()
}
