// Package hub measures the Hub plane with a fleet: a thousand simulated agents, each on a connection of its own, against
// the server as it is shipped, all on one machine.
package hub

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/test/fleet"
)

// nodes is how large the fleet is; fewer are for a first look.
var nodes = flag.Int("nodes", 1000, "the number of simulated nodes")

const (
	streams = 10
	// writers are the operators' requests at one time.
	writers = 64
	// rounds of the measurement of one stream's latency.
	rounds = 100
	// patience bounds each wait: nothing is expected to take this long.
	patience = 10 * time.Minute
	// heartbeat is shorter than the real agent's, to see several.
	heartbeat = 4 * time.Second
)

// binary is the server's: of $FREEHOLD_BIN, or built here.
var binary string

func TestMain(m *testing.M) {
	code, err := setUpAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUpAndRun(m *testing.M) (int, error) {
	if os.Getenv("FREEHOLD_TOFU") == "" { // the server does not start without
		out, err := exec.Command("../../tools/need.sh", "tofu").Output()
		if err != nil {
			return 1, fmt.Errorf("find tofu: %w", err)
		}
		if err := os.Setenv("FREEHOLD_TOFU", strings.TrimSpace(string(out))); err != nil {
			return 1, err
		}
	}
	if bin := os.Getenv("FREEHOLD_BIN"); bin != "" {
		binary = filepath.Join(bin, "freehold")
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "freehold-bin-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "freehold")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/freehold").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build freehold: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// world is a server with a fleet, and those who write to it.
type world struct {
	b         *testing.B
	ctx       context.Context
	server    *fleet.Server
	operators []client.Hub
	fleet     *fleet.Fleet
	configs   []string
}

func newWorld(b *testing.B, o fleet.Options) *world {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.Cleanup(cancel)
	w := &world{b: b, ctx: ctx, server: fleet.StartServer(b, binary)}
	// The allowance of changes is each user's own.
	w.operators = w.server.Operators(ctx, 4)
	b.ReportMetric(w.server.ResidentMiB(), "idle-MiB")
	w.fleet = fleet.New(b, w.server, w.operators, o)
	for i := range 2 {
		content := client.ConfigContent{Engine: hub.EngineProcess, Content: fmt.Sprintf("command: sleep\nargs: [\"%d\"]\n", 1000+i)}
		published, err := w.operators[0].PublishConfig(ctx, content, client.MutationOptions{})
		if err != nil {
			b.Fatal(err)
		}
		w.configs = append(w.configs, published.ConfigVersion)
	}
	return w
}

func streamName(i int) string { return fmt.Sprintf("stream-%d", i) }

// put declares one stream to run a config version.
func (w *world) put(node, stream int, config string) error {
	got, err := w.operators[node%len(w.operators)].SetDesiredState(w.ctx, fleet.Name(node), streamName(stream),
		client.DesiredState{State: hub.Running, ConfigVersion: config}, client.MutationOptions{})
	if err == nil {
		w.fleet.Want(node, streamName(stream), got.Generation)
	}
	return err
}

// putAll declares every stream: the first of each node, then the second.
func (w *world) putAll(config string) {
	w.b.Helper()
	if err := fleet.Each(*nodes*streams, writers, func(i int) error { return w.put(i%*nodes, i / *nodes, config) }); err != nil {
		w.b.Fatal(err)
	}
}

func (w *world) converge() {
	w.b.Helper()
	if err := w.fleet.Await(w.ctx, 0); err != nil {
		w.b.Fatal(err, w.fleet.Faults())
	}
}

// verify asks the server whether all streams are in sync.
func (w *world) verify() {
	w.b.Helper()
	if faults := w.fleet.Faults(); len(faults) > 0 {
		w.b.Error(faults)
	}
	var inSync atomic.Int64
	err := fleet.Each(*nodes, writers, func(i int) error {
		all, err := w.operators[0].Streams(w.ctx, fleet.Name(i))
		for _, s := range all {
			if s.Convergence == hub.InSync {
				inSync.Add(1)
			}
		}
		return err
	})
	if err != nil || int(inSync.Load()) != *nodes*streams {
		w.b.Errorf("%d streams are in sync, want %d: %v", inSync.Load(), *nodes*streams, err)
	}
}

// phase is what a part of the work took: time, and processor time of the server, for each stream.
type phase struct {
	wall   time.Duration
	server time.Duration
}

// measure does something to every stream.
func (w *world) measure(do func()) phase {
	cpu, began := w.server.CPU(), time.Now()
	do()
	return phase{wall: time.Since(began), server: w.server.CPU() - cpu}
}

func (p phase) report(b *testing.B, name string) {
	b.ReportMetric(float64(*nodes*streams)/p.wall.Seconds(), name+"/s")
	b.ReportMetric(float64(p.server.Microseconds())/float64(*nodes*streams), name+"-server-cpu-µs")
}

// BenchmarkFleet measures a mass change of 10,000 streams on 1,000 connected nodes. converged: from the first write until the
// last is in sync. dispatched: from when nodes that took no commands take them again, all writes being done; acknowledged: the
// same with engines that need 20 ms to start, so that acknowledgements and results travel apart. Baseline: the writes
// alone.
func BenchmarkFleet(b *testing.B) {
	for b.Loop() {
		w := newWorld(b, fleet.Options{Nodes: *nodes, Heartbeat: heartbeat})
		w.putAll(w.configs[0])
		w.converge()
		w.verify()
		w.idle()
		b.ReportMetric(w.server.ResidentMiB(), "fleet-MiB")

		converged := w.measure(func() {
			w.putAll(w.configs[1])
			w.converge()
		})
		w.fleet.Hold()
		writes := w.measure(func() { w.putAll(w.configs[0]) })
		dispatched := w.measure(w.release)
		w.fleet.SetStart(20 * time.Millisecond)
		w.fleet.Hold()
		w.putAll(w.configs[1])
		acknowledged := w.measure(w.release)
		w.verify()

		writes.report(b, "writes")
		converged.report(b, "converged")
		dispatched.report(b, "dispatched")
		acknowledged.report(b, "acknowledged")
		b.ReportMetric(float64(writes.wall)/float64(converged.wall), "x-writes")
		b.ReportMetric(w.server.ResidentMiB(), "loaded-MiB")
		b.ReportMetric(0, "ns/op")
		w.end()
	}
}

func (w *world) release() {
	w.fleet.Release()
	w.converge()
}

// end stops the world, so that the next has the machine for itself.
func (w *world) end() {
	w.fleet.Stop()
	w.server.Kill()
}

// idle lets every node beat three times and reports what that wrote: it should be nothing.
func (w *world) idle() {
	w.fleet.Traffic.Reset()
	files, written := w.server.Footprint(), w.server.WrittenKiB()
	over := time.NewTimer(3*heartbeat + heartbeat/2)
	defer over.Stop()
	<-over.C
	w.b.ReportMetric(w.server.WrittenKiB()-written, "idle-written-KiB")
	changed := 0.0
	if w.server.Footprint() != files {
		changed = 1
	}
	w.b.ReportMetric(changed, "idle-store-changed")
	w.b.ReportMetric(float64(w.fleet.Traffic.Total("reports"))/float64(*nodes), "idle-heartbeats/node")
}

// BenchmarkRestart kills the server when half of 10,000 changes are accepted, every second of them a restart of a stream, and
// starts it again: how long until all is in sync, and what the fleet that comes back asks of it. Baseline: the same
// changes with nothing killed.
func BenchmarkRestart(b *testing.B) {
	for b.Loop() {
		w := newWorld(b, fleet.Options{Nodes: *nodes, Start: 20 * time.Millisecond})
		w.putAll(w.configs[0])
		w.converge()
		began := time.Now()
		w.changeAll("undisturbed", nil)
		w.converge()
		base := time.Since(began)

		var accepted atomic.Int64
		half, asked := make(chan struct{}), make(chan struct{})
		began = time.Now()
		go func() {
			defer close(asked)
			w.changeAll("disturbed", func() {
				if accepted.Add(1) == int64(*nodes*streams/2) {
					close(half)
				}
			})
		}()
		<-half
		w.server.Kill()
		w.fleet.Traffic.Reset()
		killed := time.Now()
		w.server.Start()
		ready := time.Since(killed)
		<-asked
		w.converge()
		b.ReportMetric(ready.Seconds(), "ready-s")
		b.ReportMetric(time.Since(killed).Seconds(), "in_sync-s")
		b.ReportMetric(time.Since(began).Seconds()/base.Seconds(), "x-undisturbed")
		b.ReportMetric(float64(w.fleet.Traffic.Peak()), "peak-requests/s")
		b.ReportMetric(float64(w.fleet.Traffic.Total(""))/float64(*nodes), "requests/node")
		b.ReportMetric(w.server.ResidentMiB(), "returned-MiB")
		w.verify()
		b.ReportMetric(0, "ns/op")
		w.end()
	}
}

// changeAll restarts every second stream and applies another version to the others. While the server is away it asks
// again.
func (w *world) changeAll(round string, accepted func()) {
	err := fleet.Each(*nodes*streams, writers, func(n int) error {
		i, name := n%*nodes, streamName(n / *nodes)
		h, o := w.operators[i%len(w.operators)], client.MutationOptions{IdempotencyKey: fmt.Sprint(round, n)}
		for {
			var got *client.StreamAccepted
			var err error
			if n%2 == 0 {
				got, err = h.RestartStream(w.ctx, fleet.Name(i), name, "", o)
			} else {
				got, err = h.SetDesiredState(w.ctx, fleet.Name(i), name, client.DesiredState{State: hub.Running, ConfigVersion: w.configs[1]}, o)
			}
			if err == nil {
				w.fleet.Want(i, name, got.Generation)
				if accepted != nil {
					accepted()
				}
				return nil
			}
			if !client.IsConnect(err) {
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-w.ctx.Done():
				return err
			}
		}
	})
	if err != nil {
		w.b.Error(err)
	}
}

// BenchmarkLatency measures the time from a write to the event that says in_sync, for a connected node whose engine needs
// no time. Baseline: the write alone.
func BenchmarkLatency(b *testing.B) {
	for b.Loop() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		w := &world{b: b, ctx: ctx, server: fleet.StartServer(b, binary)}
		w.operators = w.server.Operators(ctx, 1)
		w.fleet = fleet.New(b, w.server, w.operators, fleet.Options{Nodes: 1})
		published, err := w.operators[0].PublishConfig(ctx, client.ConfigContent{Engine: hub.EngineProcess, Content: "command: sleep\nargs: [\"1000\"]\n"}, client.MutationOptions{})
		if err != nil {
			b.Fatal(err)
		}
		w.configs = []string{published.ConfigVersion}
		events := w.watch(fleet.Name(0))
		var puts, syncs []time.Duration
		for range rounds {
			put, sync := w.round(events)
			puts, syncs = append(puts, put), append(syncs, sync)
		}
		put, sync := median(puts), median(syncs)
		b.ReportMetric(ms(put), "write-ms")
		b.ReportMetric(ms(sync), "in_sync-p50-ms")
		b.ReportMetric(ms(syncs[len(syncs)*99/100]), "in_sync-p99-ms")
		b.ReportMetric(float64(sync)/float64(put), "x-write")
		b.ReportMetric(0, "ns/op")
		w.end()
		cancel()
	}
}

// watch follows the streams of a node.
func (w *world) watch(node string) <-chan client.Stream {
	out := make(chan client.Stream, 1000)
	go func() {
		defer close(out)
		for e, err := range w.operators[0].Watch(w.ctx, client.StreamWatch{Node: node}) {
			if err != nil {
				return
			}
			if e.Type != client.Bookmark {
				out <- e.Object
			}
		}
	}()
	return out
}

// round writes once and waits until the stream is in sync.
func (w *world) round(events <-chan client.Stream) (put, sync time.Duration) {
	began := time.Now()
	got, err := w.operators[0].SetDesiredState(w.ctx, fleet.Name(0), streamName(0),
		client.DesiredState{State: hub.Running, ConfigVersion: w.configs[0]}, client.MutationOptions{})
	if err != nil {
		w.b.Fatal(err)
	}
	put = time.Since(began)
	for s := range events {
		if s.Desired != nil && s.Desired.Generation == got.Generation && s.Convergence == hub.InSync {
			return put, time.Since(began)
		}
	}
	w.b.Fatal("the watch has ended")
	return 0, 0
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
