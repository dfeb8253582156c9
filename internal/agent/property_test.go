package agent

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// TestWhateverHappensTheNodeKeepsItsPromises lets commands come late, twice and out of order, runs fail, finish and
// hang, the disk fill up, the hub go away, and the agent die at any write, before or after it became durable. The world
// checks each step (see world); in the end everything that can converge has.
func TestWhateverHappensTheNodeKeepsItsPromises(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	open := func() store.Store {
		s, err := sqlite.Open(ctx, path, sqlite.Options{Kinds: Kinds(), Readers: 1})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	defer func() { _ = s.Close() }()
	rapid.Check(t, func(t *rapid.T) {
		wipe(t, s)
		w := newWorld(t, s)
		c := &chance{world: w, t: t, next: map[string]int64{}}
		for range rapid.IntRange(10, 80).Draw(t, "steps") {
			c.step()
			if w.store.dead {
				w.boot()
			}
		}
		if rapid.IntRange(0, 9).Draw(t, "reopen") == 0 {
			if err := s.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			s = open()
			w.store.Store = s
			w.boot()
		}
		c.calm()
	})
}

// chance draws what happens to a world.
type chance struct {
	*world
	t    *rapid.T
	sent []agentapi.Command
	next map[string]int64
}

var (
	propStreams  = []string{"a", "b"}
	propVersions = []string{"cfg-1", "cfg-2", "cfg-3"}
	behaviours   = []string{"ok", "ok", "rejected", "rejected late", "fails", "finishes", "slow", "no secret"}
)

func (c *chance) step() {
	switch rapid.SampledFrom([]string{
		"command", "command", "redeliver", "look", "look", "look", "act", "act", "act", "progress", "progress", "progress",
		"report", "clock", "engine", "hub", "disk", "crash", "doom", "clean", "clean",
	}).Draw(c.t, "step") {
	case "command":
		c.command()
	case "redeliver":
		c.redeliver()
	case "look":
		c.look()
	case "act":
		if len(c.pending) > 0 {
			c.act(rapid.IntRange(0, len(c.pending)-1).Draw(c.t, "which"))
		}
	case "progress":
		c.someRun()
	case "report":
		c.report(rapid.Bool().Draw(c.t, "heartbeat"), rapid.Bool().Draw(c.t, "answered"))
	case "clock":
		c.now = c.now.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 100}).Draw(c.t, "seconds")) * time.Second)
	case "engine":
		c.engine[rapid.SampledFrom(propVersions).Draw(c.t, "version")] = rapid.SampledFrom(behaviours).Draw(c.t, "behaviour")
	case "hub":
		c.offline = !c.offline
	case "disk":
		c.store.full = !c.store.full
	case "crash":
		c.boot()
	case "doom":
		c.store.writes, c.store.durable = rapid.IntRange(1, 4).Draw(c.t, "writes"), rapid.Bool().Draw(c.t, "durable")
	case "clean":
		c.clean()
	}
}

func (c *chance) command() {
	stream := rapid.SampledFrom(propStreams).Draw(c.t, "stream")
	c.next[stream]++
	generation := c.next[stream]
	state := rapid.SampledFrom([]hub.State{hub.Running, hub.Running, hub.Running, hub.Stopped, hub.Absent}).Draw(c.t, "state")
	version, action := rapid.SampledFrom(propVersions).Draw(c.t, "version"), ""
	if state == hub.Running && rapid.IntRange(0, 2).Draw(c.t, "restart") == 0 {
		action = fmt.Sprintf("act-%s-%d", stream, generation)
		if prev := c.accepted[stream]; prev.State == hub.Running {
			version = prev.ConfigVersion
		}
	}
	c.deliver(command(stream, generation, state, version, action))
}

func (c *chance) redeliver() {
	if len(c.sent) == 0 {
		return
	}
	cmd := c.sent[rapid.IntRange(0, len(c.sent)-1).Draw(c.t, "sent")]
	if rapid.Bool().Draw(c.t, "new attempt") {
		cmd.AttemptID += "+"
	}
	c.deliver(cmd)
}

// deliver hands a command over, or lets it arrive too late, when it must change nothing.
func (c *chance) deliver(cmd agentapi.Command) {
	c.sent = append(c.sent, cmd)
	if rapid.IntRange(0, 5).Draw(c.t, "late") > 0 {
		_ = c.accept(cmd)
		return
	}
	before := c.core.Streams()
	_ = c.core.Accept(ctx, []agentapi.Command{cmd}, c.now.Add(-time.Minute))
	after := c.core.Streams()
	if len(before) != len(after) || slices.ContainsFunc(after, func(s StreamStatus) bool {
		return s.Attempt != nil && !slices.ContainsFunc(before, func(b StreamStatus) bool { return b.Attempt != nil && b.Attempt.ID == s.Attempt.ID })
	}) {
		c.t.Fatalf("an expired command was taken over: %+v", cmd)
	}
}

func (c *chance) someRun() {
	var live []*worldRun
	for _, token := range c.tokens() {
		if r := c.runs[token]; r.boot == c.core.Boot().Seq {
			live = append(live, r)
		}
	}
	if len(live) > 0 {
		c.progress(live[rapid.IntRange(0, len(live)-1).Draw(c.t, "run")])
	}
}

// calm ends all faults, and checks that what was accepted last is so, or is given up for a reason.
func (c *chance) calm() {
	c.store.full, c.offline, c.store.writes = false, false, 0
	for version, how := range c.engine {
		if how == "fails" || how == "slow" || how == "finishes" || how == "no secret" {
			c.engine[version] = "ok"
		}
	}
	c.now = c.now.Add(2 * time.Minute)
	c.clean()
	for range 3 {
		c.settle()
		c.now = c.now.Add(2 * time.Minute)
	}
	c.settle()
	c.report(true, true)
	if c.core.Dirty() {
		c.t.Fatalf("there is something left to report: %+v", c.core.Report(false, nil))
	}
	for _, s := range c.core.Streams() {
		c.checkCalm(s)
	}
}

func (c *chance) checkCalm(s StreamStatus) {
	rec := c.stored(s.StreamID)
	if rec.attempt().open() {
		c.t.Fatalf("%s: the attempt is still open: %+v", s.StreamID, rec)
	}
	rejected := c.engine[s.Target.ConfigVersion] == "rejected" || c.engine[s.Target.ConfigVersion] == "rejected late"
	switch {
	case s.Target.State == hub.Running && rec.finished():
		if s.State != hub.Stopped {
			c.t.Fatalf("%s has finished, and is %s", s.StreamID, s.State)
		}
		return
	case s.Target.State == hub.Running && (rejected || rec.Failure != nil):
		if s.State == hub.Running && s.ConfigVersion == s.Target.ConfigVersion && rejected {
			return // it ran before its engine changed its mind
		}
		if s.Error == nil {
			c.t.Fatalf("%s does not run what it should, and says nothing: %+v", s.StreamID, rec)
		}
		return
	}
	if s.State != s.Target.State || s.ConfigVersion != s.Target.ConfigVersion || !rec.reached() {
		c.t.Fatalf("%s is %s %s, and should be %+v", s.StreamID, s.State, s.ConfigVersion, s.Target)
	}
	if id := s.Target.ActionID; id != "" && s.Target.State == hub.Running {
		if a := rec.action(id); a == nil || a.State == ActionBegun {
			c.t.Fatalf("%s: the restart %s came to nothing: %+v", s.StreamID, id, rec)
		}
	}
}

// TestACrashAtAnyWriteOfAnyPathLosesNothingAndRepeatsNothing walks one path with all kinds of writes, and dies at each.
func TestACrashAtAnyWriteOfAnyPathLosesNothingAndRepeatsNothing(t *testing.T) {
	path := []agentapi.Command{
		command("a", 1, hub.Running, "cfg-1", ""), command("a", 2, hub.Running, "cfg-2", ""), command("a", 3, hub.Running, "cfg-2", "act-1"),
		command("a", 4, hub.Running, "cfg-bad", ""), command("a", 5, hub.Running, "cfg-1", "act-2"), command("a", 6, hub.Stopped, "cfg-1", ""),
		command("a", 7, hub.Running, "cfg-1", ""), command("a", 8, hub.Absent, "cfg-1", ""),
	}
	writes, s := 0, openTestStore(t)
	for at := 1; at == 1 || at <= writes; at++ {
		for _, durable := range []bool{false, true} {
			wipe(t, s)
			w := newWorld(t, s)
			w.engine["cfg-bad"] = "rejected late"
			w.store.writes, w.store.durable = at, durable
			for _, cmd := range path {
				for w.accept(cmd) != nil || w.store.dead {
					w.boot() // the hub sends it again
					w.clean()
				}
				w.settle()
				if w.store.dead {
					w.boot()
					w.clean()
					w.settle()
				}
				w.report(true, true)
			}
			last := w.state("a")
			if last.State != hub.Absent || last.Generation != 8 || len(w.runs) > 0 {
				t.Fatalf("death at write %d (durable %v): %+v, runs %+v", at, durable, last, w.runs)
			}
			if at == 1 && !durable {
				writes = countWrites(t, path)
			}
		}
	}
	if writes < 2*len(path) {
		t.Fatalf("only %d writes were tried", writes)
	}
}

func countWrites(t *testing.T, path []agentapi.Command) int {
	w := newWorld(t, openTestStore(t))
	w.engine["cfg-bad"] = "rejected late"
	n := 0
	check := w.store.written
	w.store.written = func(r store.Reader) { n++; check(r) }
	for _, cmd := range path {
		mustAccept(t, w, cmd)
		w.settle()
	}
	return n
}
