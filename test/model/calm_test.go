package model

import (
	"strings"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// calm ends all faults, and checks what becomes of everything.
func (w *world) calm() {
	w.t.Helper()
	w.note("the faults stop")
	w.hub.store.full, w.hub.store.writes = false, 0
	for _, n := range w.nodes {
		n.store.full, n.store.writes, n.engine.healed = false, 0, true
	}
	for len(w.network.toHub) > 0 { // what was late arrives after all
		w.deliver(0, false)
		w.check()
	}
	for len(w.network.toNode) > 0 {
		w.deliverAnswer(0)
	}
	w.converge()
	w.checkEnd()
	w.note("operators write once more")
	for _, n := range w.nodes {
		for _, stream := range w.declaredOn(n.name) {
			w.operator.do(w.operator.put(n.name, stream, hub.Running, w.operator.wells[0]))
		}
	}
	w.converge()
	for _, n := range w.nodes {
		for _, stream := range w.declaredOn(n.name) {
			s := get[client.Stream](w, streamPath(n.name, stream))
			if s.Convergence != hub.InSync {
				// A generation that the hub does not know was used by the node in the time that the hub has forgotten.
				if w.hub.restored && s.Convergence == hub.ConvergenceBlocked {
					continue
				}
				w.t.Fatalf("%s/%s does not converge with one more write: %s", n.name, stream, w.describe(s))
			}
		}
	}
}

func (w *world) declaredOn(node string) []string {
	var out []string
	for _, s := range get[client.HubPage[client.Stream]](w, "/api/v1/nodes/"+node+"/streams?page_size=100").Items {
		if s.Desired != nil {
			out = append(out, s.StreamID)
		}
	}
	return out
}

// patienceWithHub is more than ten tries take, with the delays between them.
const patienceWithHub = 90 * time.Minute

// converge lets everybody work, without faults, until nothing changes any more.
func (w *world) converge() {
	w.t.Helper()
	quiet, begun := 0, w.elapsed
	for round := 0; quiet < 8; round++ {
		if why := w.unrest(); round > 400 || why != "" && w.elapsed-begun > patienceWithHub {
			w.t.Fatalf("the world does not come to rest: %s", why)
		}
		before := w.hub.revision()
		for _, n := range w.nodes {
			if n.disowned {
				n.reenrol()
			}
			n.clean()
			n.settle()
			n.exchange()
			n.settle()
			n.exchange()
		}
		w.hub.reconcile()
		w.check()
		switch {
		case w.hub.revision() != before:
			quiet = 0
		case quiet < 4 || w.unrest() == "":
			quiet++
		}
		step := 3 * time.Second
		if quiet > 3 {
			step = 3 * time.Minute // full reports come now and then
		}
		w.pass(step)
	}
}

// unrest is an intent that somebody still has to work on.
func (w *world) unrest() (out string) {
	w.hub.view(func(r store.Reader) error {
		all, _, err := hub.Operations.List(r, store.Query{})
		for _, o := range all {
			if o.Status.Open() {
				out = o.Name + " of " + hub.StreamName(o.Status.Node, o.Status.Resource) + ": " + string(encode(o.Status))
			}
		}
		return err
	})
	return out
}

// checkEnd: everything is as declared, or is blocked for a reason.
func (w *world) checkEnd() {
	w.t.Helper()
	for _, n := range w.nodes {
		if n.core.Dirty() {
			w.t.Fatalf("%s still has something to tell", n.label)
		}
		for _, s := range get[client.HubPage[client.Stream]](w, "/api/v1/nodes/"+n.name+"/streams?page_size=100").Items {
			w.checkEndOf(n, s)
		}
	}
}

func (w *world) describe(s client.Stream) string {
	op := ""
	if s.IntentID != "" {
		op = string(encode(get[client.Operation](w, "/api/v1/operations/"+s.IntentID)))
	}
	return string(encode(s)) + "\n" + op
}

func (w *world) checkEndOf(n *node, s client.Stream) {
	w.t.Helper()
	if s.Desired == nil {
		if !w.hub.restored {
			w.t.Fatalf("nobody declared %s/%s: %s", n.name, s.StreamID, w.describe(s))
		}
		return
	}
	w.tally["end "+string(s.Convergence)+" "+s.ConvergenceReason]++
	t := n.truth(s.StreamID)
	d := s.Desired
	behaviour := behaviourOf(w.operator.contents[d.ConfigVersion])
	bad := d.State == hub.Running && (strings.HasPrefix(behaviour, rejected) || behaviour == finishes)
	switch {
	case s.Convergence == hub.InSync:
		if d.State == hub.Running && (len(t.live) != 1 || t.live[0] != digestOf(w.operator.contents[d.ConfigVersion])) || d.State != hub.Running && len(t.live)+t.pending > 0 {
			w.t.Fatalf("%s/%s is in_sync, and what runs is %+v: %s", n.name, s.StreamID, t, w.describe(s))
		}
	case bad && s.Convergence == hub.Degraded:
		// It was in sync, for a while.
	case s.Convergence != hub.ConvergenceBlocked:
		w.t.Fatalf("%s/%s is neither in_sync nor blocked: %s", n.name, s.StreamID, w.describe(s))
	default:
		if why := w.explain(s, bad); why != "" {
			w.t.Fatalf("%s/%s is blocked, and %s: %s", n.name, s.StreamID, why, w.describe(s))
		}
	}
}

// explain tells what is wrong with the reason of a blocked stream, "" if the history explains it.
func (w *world) explain(s client.Stream, bad bool) string {
	switch s.ConvergenceReason {
	case hub.ReasonCancelled:
		if !w.operator.cancels[s.IntentID] && !w.hub.restored {
			return "nobody cancelled it"
		}
	case "invalid_config", "finished":
		if !bad {
			return "there is nothing wrong with its content"
		}
	case "action_interrupted":
		if s.Desired.ActionID == "" {
			return "there was no restart"
		}
	case "budget_spent":
		op := get[client.Operation](w, "/api/v1/operations/"+s.IntentID)
		if op.Retry.Count < op.Retry.Budget {
			return "its budget is not spent"
		}
	case hub.CodeNodeAhead, "generation_conflict", "stale_generation", "generation_used", "generation_superseded":
		if !w.hub.restored {
			return "the hub has forgotten nothing"
		}
	default:
		return "nothing explains it"
	}
	return ""
}
