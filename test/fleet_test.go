package test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/test/fleet"
)

// fleetPatience bounds a whole test with a fleet.
const fleetPatience = 8 * time.Minute

// crowd is a server with a fleet, and what was asked of it.
type crowd struct {
	t         *testing.T
	ctx       context.Context
	nodes     int
	streams   int
	server    *fleet.Server
	operators []client.Hub
	*fleet.Fleet

	mu       sync.Mutex
	accepted []client.StreamAccepted
}

// startCrowd starts 60 nodes in a short run, 1,000 otherwise, with ten streams each. Their engines take a moment to start.
func startCrowd(t *testing.T) *crowd {
	t.Helper()
	if tofu := builtTofu(); tofu != "" {
		t.Setenv("FREEHOLD_TOFU", tofu)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fleetPatience)
	t.Cleanup(cancel)
	c := &crowd{t: t, ctx: ctx, nodes: 1000, streams: 10}
	if testing.Short() {
		c.nodes = 60
	}
	c.server = fleet.StartServer(t, filepath.Join(bin, "freehold"))
	c.operators = c.server.Operators(ctx, 4)
	c.Fleet = fleet.New(t, c.server, c.operators, fleet.Options{Nodes: c.nodes, Start: 50 * time.Millisecond, Heartbeat: 3 * time.Second})
	return c
}

func (c *crowd) publish(name string) string {
	c.t.Helper()
	published, err := c.operators[0].PublishConfig(c.ctx, client.ConfigContent{
		Engine: hub.EngineProcess, Content: "command: sleep\nargs: [\"" + name + "\"]\n",
	}, client.MutationOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return published.ConfigVersion
}

// ask makes one change to every stream, and asks again under the same key while the server is away.
func (c *crowd) ask(round string, change func(h client.Hub, node, stream string, i int, o client.MutationOptions) (*client.StreamAccepted, error)) error {
	return fleet.Each(c.nodes*c.streams, 32, func(n int) error {
		i, name := n%c.nodes, fmt.Sprint("stream-", n/c.nodes)
		o := client.MutationOptions{IdempotencyKey: fmt.Sprint(round, "-", n)}
		for {
			got, err := change(c.operators[i%len(c.operators)], fleet.Name(i), name, n, o)
			if err == nil {
				c.note(i, got)
				return nil
			}
			if !client.IsConnect(err) {
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-c.ctx.Done():
				return err
			}
		}
	})
}

func (c *crowd) note(i int, a *client.StreamAccepted) {
	c.Want(i, a.StreamID, a.Generation)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted = append(c.accepted, *a)
}

func (c *crowd) run(config string) func(client.Hub, string, string, int, client.MutationOptions) (*client.StreamAccepted, error) {
	return func(h client.Hub, node, stream string, _ int, o client.MutationOptions) (*client.StreamAccepted, error) {
		return h.SetDesiredState(c.ctx, node, stream, client.DesiredState{State: hub.Running, ConfigVersion: config}, o)
	}
}

// runAll runs a config version on every stream, and waits until the hub knows that it runs.
func (c *crowd) runAll(round, config string) {
	c.t.Helper()
	if err := c.ask(round, c.run(config)); err != nil {
		c.t.Fatal(err)
	}
	c.converge()
}

func (c *crowd) converge() {
	c.t.Helper()
	if err := c.Await(c.ctx, 0); err != nil {
		c.t.Fatal(err, c.Faults())
	}
}

// verify asks the server for every stream and every operation: nothing is lost, and nothing is under way.
func (c *crowd) verify() {
	c.t.Helper()
	for _, f := range c.Faults() {
		c.t.Error(f)
	}
	err := fleet.Each(c.nodes, 16, func(i int) error {
		all, err := c.operators[0].Streams(c.ctx, fleet.Name(i))
		if err == nil && len(all) != c.streams {
			err = fmt.Errorf("%s has %d streams", fleet.Name(i), len(all))
		}
		for _, s := range all {
			if s.Convergence != hub.InSync {
				c.t.Errorf("%s/%s is %s: %s", s.NodeID, s.StreamID, s.Convergence, s.ConvergenceReason)
			}
		}
		return err
	})
	if err != nil {
		c.t.Error(err)
	}
	newest := map[string]int64{}
	for _, a := range c.accepted {
		key := a.NodeID + "/" + a.StreamID
		newest[key] = max(newest[key], a.Generation)
	}
	err = fleet.Each(len(c.accepted), 16, func(n int) error {
		a := c.accepted[n]
		op, err := c.operators[n%len(c.operators)].Operation(c.ctx, a.IntentID)
		switch {
		case err != nil:
			return fmt.Errorf("%s of %s/%s is lost: %w", a.IntentID, a.NodeID, a.StreamID, err)
		case op.State == hub.Converged:
		case op.State == hub.Superseded && a.Generation < newest[a.NodeID+"/"+a.StreamID]:
		default:
			c.t.Errorf("%s of %s/%s is %s", a.IntentID, a.NodeID, a.StreamID, op.State)
		}
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
}

// Every stream of a fleet converges after a mass change, and a fleet at rest writes nothing.
func TestAFleetConvergesAndThenIsQuiet(t *testing.T) {
	c := startCrowd(t)
	c.runAll("first", c.publish("1000"))
	c.runAll("second", c.publish("1001"))
	c.verify()

	c.Traffic.Reset()
	quiet := func() bool {
		before, beats := c.server.Footprint(), c.Traffic.Total("reports")
		eventually(t, "two heartbeats of every node", func() string {
			if got := c.Traffic.Total("reports") - beats; got < 3*c.nodes {
				return fmt.Sprint(got, " reports")
			}
			return ""
		})
		return c.server.Footprint() == before
	}
	// What came before may still have been on its way into the files.
	if quiet() {
		return
	}
	if !quiet() {
		t.Errorf("%d nodes that only beat make the server write", c.nodes)
	}
}

// A server that is killed amid a mass change, with restarts of streams under way, comes back to a fleet that comes back
// to it: every accepted change is there and converges, no stream was restarted twice, and no node asks more than it has to.
func TestAFleetOutlivesAKilledServer(t *testing.T) {
	c := startCrowd(t)
	first, second := c.publish("1000"), c.publish("1001")
	c.runAll("first", first)

	asked := make(chan error, 1)
	go func() {
		apply := c.run(second)
		asked <- c.ask("second", func(h client.Hub, node, stream string, n int, o client.MutationOptions) (*client.StreamAccepted, error) {
			if n%2 == 0 {
				return h.RestartStream(c.ctx, node, stream, "", o)
			}
			return apply(h, node, stream, n, o)
		})
	}()
	total := c.nodes * c.streams
	eventually(t, "half of the changes accepted", func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if done := len(c.accepted) - total; done < total/2 {
			return fmt.Sprint(done)
		}
		return ""
	})
	c.server.Kill()
	c.Traffic.Reset()
	c.server.Start()
	back := time.Now()
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	c.converge()
	c.returnedInOrder(time.Since(back))
	c.verify()
	c.restartsRanOnce()
}

// returnedInOrder bounds what the fleet asked since the server is back: a poll, an acknowledgement and a result for each
// change, a few of each for a node, and what comes with time.
func (c *crowd) returnedInOrder(since time.Duration) {
	c.t.Helper()
	total := c.nodes * c.streams
	polls, reports, sessions := c.Traffic.Total("commands"), c.Traffic.Total("reports"), c.Traffic.Total("session")
	c.t.Logf("%d nodes are in sync %v after the restart: %d polls, %d reports, %d sessions, %d requests in the busiest second",
		c.nodes, since, polls, reports, sessions, c.Traffic.Peak())
	if most := total + c.nodes*(10+int(since/(20*time.Second))); polls > most {
		c.t.Errorf("%d nodes polled %d times after the restart, want at most %d", c.nodes, polls, most)
	}
	if most := 2*total + c.nodes*(10+int(since/(2*time.Second))); reports > most {
		c.t.Errorf("%d nodes reported %d times after the restart, want at most %d", c.nodes, reports, most)
	}
	if sessions > c.nodes {
		c.t.Errorf("%d nodes asked for %d sessions: theirs are good", c.nodes, sessions)
	}
}

func (c *crowd) restartsRanOnce() {
	c.t.Helper()
	index := map[string]int{}
	for i := range c.nodes {
		index[fleet.Name(i)] = i
	}
	restarts, again := 0, 0
	for _, a := range c.accepted {
		if a.ActionID == "" {
			continue
		}
		restarts++
		runs, repeats := c.Runs(index[a.NodeID], a.StreamID, a.ActionID)
		again += repeats
		if runs != 1 {
			c.t.Errorf("restart %s of %s/%s ran %d times", a.ActionID, a.NodeID, a.StreamID, runs)
		}
	}
	if restarts < c.nodes*c.streams/2 {
		c.t.Errorf("only %d restarts were asked for", restarts)
	}
	c.t.Logf("%d restarts, %d asked for again", restarts, again)
}
