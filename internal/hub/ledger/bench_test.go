package ledger

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// BenchmarkConverge measures streams that go from a declaration to in_sync: each of 100 nodes with 10 streams gets ten
// declarations (a transaction each), one poll and one report.
func BenchmarkConverge(b *testing.B) {
	w := newWorld(b)
	const nodes, streams = 100, 10
	w.ledger = New(Config{})
	agents := make([]*agent, nodes)
	for i := range agents {
		agents[i] = w.online(fmt.Sprintf("node-%d", i))
	}
	configs := []string{w.publish(hub.EngineProcess, "command: a"), w.publish(hub.EngineProcess, "command: b")}
	round := 0
	converge := func(a *agent) {
		for s := range streams {
			m := Mutation{
				Node: a.id, Resource: fmt.Sprintf("stream-%d", s), State: hub.Running, ConfigVersion: configs[round%2],
				Principal: "ann", CorrelationID: fmt.Sprintf("c-%d-%d", round, s),
			}
			if _, err := w.tryDeclare(m); err != nil {
				b.Error(err)
			}
		}
		commands, _ := a.poll()
		a.seq++
		r := &agentapi.Report{BootID: a.boot.ID, BootSeq: a.boot.Seq, ReportSeq: a.seq}
		for _, c := range commands {
			r.Streams = append(r.Streams, agentapi.StreamReport{StreamID: c.StreamID, State: c.State, Generation: c.Generation, ConfigVersion: c.ConfigVersion})
			r.Attempts = append(r.Attempts, agentapi.AttemptReport{AttemptID: c.AttemptID, State: hub.Succeeded})
		}
		if _, err := a.send(r); err != nil {
			b.Error(err)
		}
	}
	each := func(do func(*agent)) {
		var all sync.WaitGroup
		for _, a := range agents {
			all.Go(func() { do(a) })
		}
		all.Wait()
	}
	each(converge)
	b.ResetTimer()
	done, cpu := 0, cpuTime(b)
	for b.Loop() {
		round++
		each(converge)
		done += nodes * streams
	}
	b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "streams/s")
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(done), "cpu-µs/stream")
	b.StopTimer()
	if s := w.stream("node-7", "stream-3"); s.Status.Convergence.State != hub.InSync || s.Spec.Generation() != int64(round+1) {
		b.Fatalf("stream %+v %+v", s.Spec, s.Status)
	}
}

// cpuTime is what the process has used: unlike the elapsed time, it hardly depends on what else the machine does.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHeartbeat measures what a full report costs that says nothing new.
func BenchmarkHeartbeat(b *testing.B) {
	w := newWorld(b)
	a := w.online("n")
	for s := range 10 {
		w.declare("n", fmt.Sprintf("stream-%d", s), hub.Running)
	}
	a.work()
	r := a.report(true)
	for b.Loop() {
		w.view(func(reader store.Reader) error {
			changes, _, err := w.ledger.ReportChanges(reader, "n", r)
			if changes {
				b.Fatal("it says something new")
			}
			return err
		})
	}
}
