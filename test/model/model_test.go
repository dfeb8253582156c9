package model

import (
	"flag"
	"maps"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Runs of the property, unless -rapid.checks says how many; and for how long new ones are begun with -short.
const (
	checks      = 1500
	shortChecks = 2000 // of which rapid makes a fifth
	shortBudget = 10 * time.Second
)

func TestMain(m *testing.M) {
	flag.Parse()
	asked := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { asked[f.Name] = true })
	n := checks
	if testing.Short() {
		n = shortChecks
		// A short run walks known ways: what it finds is news of the change under test. Long runs look for new ones.
		if !asked["rapid.seed"] {
			_ = flag.Set("rapid.seed", "1")
		}
	}
	if !asked["rapid.checks"] {
		_ = flag.Set("rapid.checks", strconv.Itoa(n))
	}
	os.Exit(m.Run())
}

// TestWhateverHappensTheHubKeepsItsPromises lets operators write, requests and answers come late, twice, out of order
// and not at all, agents and the hub die at any write, disks fill up, clocks jump, runs fail, finish and hang, machines
// stand still and lose their disks, and the hub's records go back to an older copy. The world is checked after each step
// (see [world.check]); when the faults stop, everything converges, or is blocked for a reason that the history explains,
// and then converges with the next write.
func TestWhateverHappensTheHubKeepsItsPromises(t *testing.T) {
	begun := time.Now()
	runs := 0
	tally := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		if testing.Short() && runs >= 20 && time.Since(begun) > shortBudget {
			return
		}
		runs++
		dir := scratch(t)
		defer func() { _ = os.RemoveAll(dir) }()
		w := newWorld(rt, dir, 2)
		defer w.close()
		w.tally = tally
		c := &chance{world: w, t: rt}
		c.begin()
		for range rapid.IntRange(10, 150).Draw(rt, "steps") {
			c.step()
			w.check()
		}
		c.calm()
	})
	t.Logf("%d runs met with %v", runs, tally)
}

// scratch is a folder in memory where there is one: what is tested is the death of processes, not of machines.
func scratch(t *testing.T) string {
	t.Helper()
	base := "/dev/shm"
	if info, err := os.Stat(base); err != nil || !info.IsDir() {
		base = ""
	}
	dir, err := os.MkdirTemp(base, "freehold-model-")
	if err != nil {
		dir, err = os.MkdirTemp("", "freehold-model-")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// chance draws what happens to a world.
type chance struct {
	*world
	t *rapid.T
	// copied is what the hub's copied records are compared with.
	copied  *seen
	answers map[string]kept
	// wiped: a machine lost its disk since the copy. With both, nobody remembers what was done.
	wiped bool
}

var streams = []string{"orders", "rides"}

// kinds of steps, by how often they come.
var kinds = []string{
	"write", "write", "write", "write", "retry", "deliver", "deliver", "deliver", "deliver", "deliver", "double", "lose", "answer", "answer", "answer", "answer",
	"lose answer", "talk", "talk", "talk", "talk", "look", "look", "look", "act", "act", "act", "progress", "progress", "progress",
	"work", "work", "work", "work", "settle", "settle", "exchange", "exchange", "exchange", "exchange", "reconcile", "reconcile", "reconcile", "time", "time", "time", "time",
	"agent crash", "agent crash", "agent crash", "agent doom", "agent doom", "agent disk", "clean", "clean", "suspend", "hub crash", "hub doom", "hub disk", "hub clock",
	"tidy", "rare",
}

func (c *chance) step() {
	kind := rapid.SampledFrom(kinds).Draw(c.t, "step")
	switch kind {
	case "write":
		c.write()
	case "retry":
		if o := c.operator; len(o.writes) > 0 {
			c.send(packet{write: o.writes[c.below(len(o.writes), "which")]})
		}
	case "deliver", "double", "lose", "answer", "lose answer":
		c.networkStep(kind)
	case "time":
		c.pass(rapid.SampledFrom([]time.Duration{10 * time.Millisecond, time.Second, 3 * time.Second, 16 * time.Second, 50 * time.Second, 3 * time.Minute}).Draw(c.t, "time"))
	case "reconcile":
		c.hub.reconcile()
	case "tidy":
		c.hub.tidy()
	case "rare":
		c.rare()
	case "hub crash", "hub doom", "hub disk", "hub clock":
		c.hubStep(kind)
	default:
		n := c.nodes[c.below(len(c.nodes), "node")]
		c.nodeStep(kind, n)
		n.revive()
	}
}

// begin lets streams run before the faults begin, more often than not.
func (c *chance) begin() {
	if rapid.IntRange(0, 3).Draw(c.t, "empty") == 0 {
		return
	}
	for _, n := range c.nodes {
		for _, stream := range streams {
			c.operator.do(c.operator.put(n.name, stream, hub.Running, c.operator.wells[0]))
		}
		for range 3 {
			n.exchange()
			n.settle()
		}
	}
}

func (c *chance) below(n int, label string) int { return rapid.IntRange(0, n-1).Draw(c.t, label) }

func (c *chance) networkStep(kind string) {
	switch up, down := len(c.network.toHub), len(c.network.toNode); {
	case kind == "answer" && down > 0:
		i := c.below(down, "which")
		n := c.network.toNode[i].call.node
		c.deliverAnswer(i)
		n.revive()
	case kind == "lose answer" && down > 0:
		c.loseAnswer(c.below(down, "which"))
	case kind == "deliver" && up > 0:
		c.deliver(c.below(up, "which"), false)
	case kind == "double" && up > 0:
		c.deliver(c.below(up, "which"), true)
	case kind == "lose" && up > 0:
		c.lose(c.below(up, "which"))
	}
}

func (c *chance) nodeStep(kind string, n *node) {
	switch kind {
	case "talk":
		n.talk()
	case "look":
		n.look()
	case "act":
		if len(n.pending) > 0 {
			n.act(c.below(len(n.pending), "which"))
		}
	case "progress":
		if tokens := n.engine.tokens(n.core); len(tokens) > 0 {
			n.progress(n.engine.runs[tokens[c.below(len(tokens), "run")]])
		}
	case "settle":
		n.settle()
	case "exchange":
		n.exchange()
	case "work":
		n.exchange()
		n.settle()
	case "agent crash":
		if rapid.IntRange(0, 3).Draw(c.t, "reopen") == 0 {
			n.reopen()
			break
		}
		n.crash()
	case "agent doom":
		n.store.writes, n.store.durable = rapid.IntRange(1, 4).Draw(c.t, "writes"), rapid.Bool().Draw(c.t, "durable")
	case "agent disk":
		n.store.full = !n.store.full
		c.note("%s: disk full %v", n.label, n.store.full)
	case "clean":
		n.clean()
	case "suspend":
		n.suspended += rapid.SampledFrom([]time.Duration{time.Second, 40 * time.Second, 10 * time.Minute}).Draw(c.t, "for")
		c.pass(rapid.SampledFrom([]time.Duration{time.Second, 40 * time.Second, 10 * time.Minute}).Draw(c.t, "away"))
		n.suspended = min(n.suspended, c.elapsed)
	}
}

func (c *chance) hubStep(kind string) {
	switch kind {
	case "hub crash":
		c.note("the hub crashes")
		c.hub.crash()
	case "hub doom":
		c.hub.store.writes, c.hub.store.durable = rapid.IntRange(1, 4).Draw(c.t, "writes"), rapid.Bool().Draw(c.t, "durable")
	case "hub disk":
		c.hub.store.full = !c.hub.store.full
		c.note("hub: disk full %v", c.hub.store.full)
	case "hub clock":
		by := rapid.SampledFrom([]time.Duration{-2 * time.Hour, -5 * time.Minute, -20 * time.Second, 20 * time.Second, 5 * time.Minute, 2 * time.Hour}).Draw(c.t, "by")
		c.hub.drift += by
		c.note("the hub's clock jumps by %s", by)
	}
}

// rare is what happens seldom.
func (c *chance) rare() {
	if c.hub.store.full || c.hub.store.writes > 0 {
		return // people are at work here, and look after the hub first
	}
	switch rapid.SampledFrom([]string{"publish", "publish", "wipe", "snapshot", "snapshot", "restore"}).Draw(c.t, "rare") {
	case "publish":
		c.operator.publish(runsWell)
	case "wipe":
		if !c.hub.restored {
			c.wiped = true
			c.nodes[c.below(len(c.nodes), "node")].wipe()
		}
	case "snapshot":
		c.note("the hub's records are copied")
		c.hub.snapshot()
		part := c.seen.hubPart()
		c.copied, c.answers, c.wiped = &part, maps.Clone(c.operator.answers), false
	case "restore":
		if c.copied != nil && !c.wiped {
			c.note("the hub's records go back to the copy")
			c.hub.restore()
			c.seen.goBack(*c.copied)
			c.operator.answers = maps.Clone(c.answers)
			c.operator.readAll()
		}
	}
}

// write lets an operator send something.
func (c *chance) write() {
	o := c.operator
	node, stream := c.nodes[c.below(len(c.nodes), "node")].name, rapid.SampledFrom(streams).Draw(c.t, "stream")
	p := c.draw(node, stream)
	if p == nil {
		return
	}
	if rapid.IntRange(0, 3).Draw(c.t, "keyed") == 0 {
		p.key = c.id("key-")
		o.writes = append(o.writes, p)
	}
	if p.cancel == "" && rapid.IntRange(0, 3).Draw(c.t, "matching") == 0 {
		p.match = max(0, o.targets[node+"/"+stream].desired.Generation-int64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(c.t, "behind")))
	}
	c.send(packet{write: p})
	if rapid.IntRange(0, 4).Draw(c.t, "slow") > 0 {
		c.deliver(len(c.network.toHub)-1, false)
	}
}

func (c *chance) draw(node, stream string) *write {
	o := c.operator
	post := func(action string) *write {
		return &write{method: http.MethodPost, path: streamPath(node, stream) + action, node: node, stream: stream, match: -1}
	}
	switch rapid.SampledFrom([]string{"put", "put", "put", "restart", "restart", "restart", "cancel", "stop", "start", "apply", "rollback"}).Draw(c.t, "verb") {
	case "put":
		state := rapid.SampledFrom([]hub.State{hub.Running, hub.Running, hub.Running, hub.Stopped, hub.Absent}).Draw(c.t, "state")
		return o.put(node, stream, state, c.version())
	case "restart":
		return o.restart(node, stream)
	case "cancel":
		id := c.someIntent()
		if id == "" {
			return nil
		}
		return &write{method: http.MethodDelete, path: "/api/v1/operations/" + id, cancel: id, match: -1}
	case "stop":
		p := post("/stop")
		p.state, p.existing = hub.Stopped, true
		return p
	case "start":
		p := post("/start")
		p.state, p.existing = hub.Running, true
		return p
	case "apply":
		p := post("/config/apply")
		p.version = c.version()
		p.body = map[string]string{"config_version": p.version}
		return p
	default:
		p := post("/config/rollback")
		p.rollback = true
		return p
	}
}

// version is one of all, more often one that runs well.
func (c *chance) version() string {
	if rapid.IntRange(0, 1).Draw(c.t, "well") == 0 {
		return rapid.SampledFrom(c.operator.wells).Draw(c.t, "version")
	}
	return rapid.SampledFrom(c.operator.versions()).Draw(c.t, "version")
}

// someIntent is one that can still be cancelled, or, sometimes, any.
func (c *chance) someIntent() string {
	var ids []string
	any := rapid.IntRange(0, 4).Draw(c.t, "any") == 0
	c.hub.view(func(r store.Reader) error {
		all, _, err := hub.Operations.List(r, store.Query{})
		for _, o := range all {
			if any || !o.Status.Ended() {
				ids = append(ids, o.Name)
			}
		}
		return err
	})
	if len(ids) == 0 {
		return ""
	}
	return rapid.SampledFrom(ids).Draw(c.t, "intent")
}
