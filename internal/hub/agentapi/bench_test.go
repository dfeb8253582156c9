package agentapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/agentapi"
	"freehold.dev/freehold/internal/hub/controller"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
)

// To hold on two cores: 2,000 streams a second, which is 1,000 microseconds of CPU a stream.
const (
	fleetNodes   = 1000
	fleetStreams = 10
)

// fleet is many agents in this process that do at once what they are told.
type fleet struct {
	w      *world
	agents []*agent
	acted  atomic.Int64
}

func newFleet(b *testing.B, nodes int) *fleet {
	b.Helper()
	w := newWorld(b, func(c *agentapi.Config) { c.Now = time.Now })
	w.ledger = ledger.New(ledger.Config{})
	w.config.Ledger = w.ledger
	w.restart()
	f := &fleet{w: w, agents: make([]*agent, nodes)}
	// One client's connections carry many agents: the handshakes are not what is measured.
	shared := &http.Client{Transport: w.server.Client().Transport}
	for i := range f.agents {
		a := w.newAgent(fmt.Sprintf("node-%d", i))
		client, err := protocol.New(protocol.Options{Server: w.url, HTTPClient: shared})
		if err != nil {
			b.Fatal(err)
		}
		a.client = client
		f.agents[i] = a
	}
	each(f.agents, func(a *agent) {
		a.mustEnrol(w.register(a.name))
		a.report(true)
	})
	return f
}

// each runs f of all agents, some at once.
func each(agents []*agent, f func(*agent)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	for _, a := range agents {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(a)
		})
	}
	wg.Wait()
}

// live polls and reports until ctx ends.
func (f *fleet) live(ctx context.Context, a *agent) error {
	for ctx.Err() == nil {
		out, err := a.client.Commands(ctx, 30*time.Second)
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		if len(out.Commands) == 0 {
			continue
		}
		r := a.next(false)
		for _, c := range out.Commands {
			r.Streams = append(r.Streams, protocol.StreamReport{StreamID: c.StreamID, State: c.State, Generation: c.Generation, ConfigVersion: c.ConfigVersion})
			r.Attempts = append(r.Attempts, protocol.AttemptReport{AttemptID: c.AttemptID, State: hub.Succeeded})
		}
		if _, err := a.client.Report(ctx, r); err != nil {
			return errors.Join(err, ctx.Err())
		}
		f.acted.Add(int64(len(r.Attempts)))
	}
	return nil
}

// BenchmarkConvergence measures a mass change: every stream of every node is declared anew, sent, reported and proven.
func BenchmarkConvergence(b *testing.B) {
	f := newFleet(b, fleetNodes)
	w := f.w
	plane, err := controller.New(controller.Config{Store: w.store, Ledger: w.ledger, Presence: w.presence, Logger: w.config.Logger})
	if err != nil {
		b.Fatal(err)
	}
	manager := reconcile.New(w.store, w.config.Logger, nil)
	if err := plane.Add(manager); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for _, run := range []func(context.Context) error{plane.Run, manager.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	for _, a := range f.agents {
		wg.Go(func() {
			if err := f.live(ctx, a); err != nil && ctx.Err() == nil {
				b.Error(err)
			}
		})
	}
	eventually(b, "all to poll", func() bool { return w.presence.Polls() == fleetNodes })
	version := w.publish(content(1))
	b.ResetTimer()
	for range b.N {
		before, updates := f.acted.Load(), w.store.updates.Load()
		start, cpu := time.Now(), cpuTime(b)
		each(f.agents, func(a *agent) {
			for s := range fleetStreams {
				if err := w.store.Update(ctx, func(tx store.Tx) error {
					_, err := w.ledger.Declare(tx, mutation(a.name, fmt.Sprintf("s-%d", s), hub.Running, version))
					return err
				}); err != nil {
					b.Error(err)
				}
			}
		})
		eventually(b, "all to report", func() bool { return f.acted.Load() >= before+fleetNodes*fleetStreams })
		took := time.Since(start)
		b.ReportMetric(fleetNodes*fleetStreams/took.Seconds(), "streams/s")
		b.ReportMetric((cpuTime(b)-cpu).Seconds()*1e6/(fleetNodes*fleetStreams), "cpu-us/stream")
		b.ReportMetric(float64(w.store.updates.Load()-updates)/(fleetNodes*fleetStreams), "tx/stream")
		b.ReportMetric(float64(f.acted.Load()-before)/(fleetNodes*fleetStreams), "commands/stream")
		if !w.convergedAll() {
			b.Error("an intent is open after all of them were proven")
		}
	}
}

// cpuTime is what this process has used, agents and hub together: it tells more than the clock on a machine that others use.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// convergedAll tells whether no intent is open.
func (w *world) convergedAll() bool {
	open := 0
	if err := w.store.View(context.Background(), func(r store.Reader) error {
		l, err := r.List(openQuery())
		if err == nil {
			open = l.Total
		}
		return err
	}); err != nil {
		w.t.Error(err)
	}
	return open == 0
}

// BenchmarkIdlePolls measures what a held poll costs in memory, both ends of its HTTP/2 stream included.
func BenchmarkIdlePolls(b *testing.B) {
	f := newFleet(b, fleetNodes)
	for range b.N {
		ctx, stop := context.WithCancel(b.Context())
		before := inUse()
		var wg sync.WaitGroup
		for _, a := range f.agents {
			wg.Go(func() { _, _ = a.client.Commands(ctx, 30*time.Second) })
		}
		eventually(b, "all to poll", func() bool { return f.w.presence.Polls() == fleetNodes })
		b.ReportMetric(float64(inUse()-before)/fleetNodes, "B/poll")
		stop()
		wg.Wait()
	}
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// BenchmarkHeartbeat measures a report that says nothing new.
func BenchmarkHeartbeat(b *testing.B) {
	f := newFleet(b, 1)
	a := f.agents[0]
	streams := make([]protocol.StreamReport, fleetStreams)
	for i := range streams {
		streams[i] = running(fmt.Sprintf("s-%d", i), 1, "cfg-1")
	}
	a.report(true, streams...)
	updates := f.w.store.updates.Load()
	for b.Loop() {
		a.report(false)
	}
	if u := f.w.store.updates.Load(); u != updates {
		b.Errorf("%d transactions", u-updates)
	}
}
