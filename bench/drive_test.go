package bench

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// measurement is what drive saw.
type measurement struct {
	// rate in operations a second.
	rate     float64
	p50, p99 time.Duration
}

// report adds the measurement to the benchmark's metrics.
func (m measurement) report(b *testing.B, unit string) {
	b.ReportMetric(m.rate, unit+"/s")
	b.ReportMetric(float64(m.p50.Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(m.p99.Microseconds())/1000, "p99-ms")
}

// drive calls f again and again from n goroutines for the span.
func drive(n int, f func()) measurement {
	var done sync.WaitGroup
	latencies := make([][]time.Duration, n)
	start := time.Now()
	for i := range n {
		done.Go(func() {
			for t := time.Now(); t.Sub(start) < span; {
				f()
				now := time.Now()
				latencies[i] = append(latencies[i], now.Sub(t))
				t = now
			}
		})
	}
	done.Wait()
	elapsed := time.Since(start)
	all := slices.Sorted(slices.Values(slices.Concat(latencies...)))
	return measurement{
		rate: float64(len(all)) / elapsed.Seconds(),
		p50:  all[len(all)/2], p99: all[len(all)*99/100],
	}
}

// rawLog appends bodies to a file and flushes it, all that wait at one moment together.
type rawLog struct {
	queue  chan chan struct{}
	closed chan struct{}
}

func startRawLog(b *testing.B) *rawLog {
	b.Helper()
	f, err := os.Create(filepath.Join(folder(b), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	l := &rawLog{queue: make(chan chan struct{}), closed: make(chan struct{})}
	go func() {
		defer close(l.closed)
		defer f.Close()
		for first := range l.queue {
			l.flush(b, f, first)
		}
	}()
	return l
}

func (l *rawLog) flush(b *testing.B, f *os.File, first chan struct{}) {
	waiting := []chan struct{}{first}
	data := slices.Clone([]byte(body))
	for more := true; more; {
		select {
		case next, open := <-l.queue:
			if more = open; open {
				waiting = append(waiting, next)
				data = append(data, body...)
			}
		default:
			more = false
		}
	}
	if _, err := f.Write(data); err != nil {
		b.Error(err)
	}
	if err := f.Sync(); err != nil {
		b.Error(err)
	}
	for _, w := range waiting {
		close(w)
	}
}

func (l *rawLog) append() {
	flushed := make(chan struct{})
	l.queue <- flushed
	<-flushed
}

// stop ends the log, which has no callers left.
func (l *rawLog) stop() {
	close(l.queue)
	<-l.closed
}
