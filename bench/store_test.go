package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

const (
	writers  = 64
	watchers = 1000
	bodySize = 1024
	// span is how long each throughput is measured.
	span = 4 * time.Second
)

var machines = store.Kind{Name: "machine", Version: 1}

// open opens a store in a folder of the working directory: a temporary folder may not be on a disk.
func open(tb testing.TB, path string) store.Store {
	tb.Helper()
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{Kinds: []store.Kind{machines}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func folder(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp(".", "bench-*.test")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// body is a JSON document of 1 KiB.
var body = json.RawMessage(`{"pad":"` + strings.Repeat("x", bodySize-len(`{"pad":""}`)) + `"}`)

func machine(i int64) *store.Object {
	return &store.Object{
		Kind: "machine", Name: fmt.Sprintf("machine-%07d", i), Spec: body,
		Labels: map[string]string{"tenant": fmt.Sprintf("tenant-%d", i%100)},
	}
}

func create(tb testing.TB, s store.Store, objects ...*store.Object) {
	if err := s.Update(context.Background(), func(tx store.Tx) error {
		for _, o := range objects {
			if err := tx.Create(o); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		tb.Error(err)
	}
}

func fill(tb testing.TB, s store.Store, n int64) {
	tb.Helper()
	for i := int64(0); i < n; i += 500 {
		objects := make([]*store.Object, 0, 500)
		for j := i; j < min(i+500, n); j++ {
			objects = append(objects, machine(j))
		}
		create(tb, s, objects...)
	}
}

// BenchmarkStoreCreates measures durable creates by concurrent writers. Baseline: as many writers whose bodies are
// appended to a file and flushed together, whenever some wait.
func BenchmarkStoreCreates(b *testing.B) {
	for b.Loop() {
		s := open(b, filepath.Join(folder(b), "store.db"))
		var next atomic.Int64
		got := drive(writers, func() { create(b, s, machine(next.Add(1))) })

		log := startRawLog(b)
		base := drive(writers, log.append)
		log.stop()

		got.report(b, "creates")
		b.ReportMetric(got.rate/base.rate, "x-raw-fsync")
	}
}

// BenchmarkStoreList measures one page of 500 out of 10,000 objects. Baseline: 500 reads of single objects.
func BenchmarkStoreList(b *testing.B) {
	const objects, page = 10_000, 500
	s := open(b, filepath.Join(folder(b), "store.db"))
	fill(b, s, objects)
	view := func(f func(store.Reader) error) {
		if err := s.View(context.Background(), f); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		got := drive(1, func() {
			view(func(r store.Reader) error {
				l, err := r.List(store.Query{Kind: "machine", Offset: rand.IntN(objects/page) * page, Limit: page})
				if err == nil && (len(l.Objects) != page || l.Total != objects) {
					err = fmt.Errorf("%d of %d objects", len(l.Objects), l.Total)
				}
				return err
			})
		})
		base := drive(1, func() {
			view(func(r store.Reader) error {
				first := rand.Int64N(objects - page)
				for i := first; i < first+page; i++ {
					if _, err := r.Get("machine", machine(i).Name); err != nil {
						return err
					}
				}
				return nil
			})
		})
		got.report(b, "pages")
		b.ReportMetric(got.rate/base.rate, "x-single-gets")
	}
}

// BenchmarkStoreFanOut measures how many changes a second reach 1,000 watchers of one kind, each change reaching
// each. Baseline: as many goroutines that receive from a channel each.
func BenchmarkStoreFanOut(b *testing.B) {
	for b.Loop() {
		s := open(b, filepath.Join(folder(b), "store.db"))
		var delivered atomic.Int64
		var done sync.WaitGroup
		for range watchers {
			w := watch(b, s)
			done.Go(func() { delivered.Add(readUntil(b, w, "last")) })
		}
		var next atomic.Int64
		start := time.Now()
		made := drive(writers, func() { create(b, s, machine(next.Add(1))) })
		create(b, s, &store.Object{Kind: "machine", Name: "last"})
		done.Wait()
		rate := float64(delivered.Load()) / time.Since(start).Seconds()

		b.ReportMetric(rate, "deliveries/s")
		b.ReportMetric(made.rate, "creates/s")
		b.ReportMetric(rate/channelFanOut(), "x-channels")
	}
}

// BenchmarkStoreWatcherMemory measures what one idle watcher costs. Baseline: a goroutine that waits for a channel.
func BenchmarkStoreWatcherMemory(b *testing.B) {
	s := open(b, filepath.Join(folder(b), "store.db"))
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		var waiting, done sync.WaitGroup
		before := memory()
		waiting.Add(watchers)
		for range watchers {
			w := watch(b, s)
			done.Go(func() {
				defer w.Close()
				waiting.Done()
				_, _ = w.Next(ctx)
			})
		}
		waiting.Wait()
		got := memory() - before
		cancel()
		done.Wait()

		block := make(chan struct{})
		before = memory()
		waiting.Add(watchers)
		for range watchers {
			done.Go(func() {
				waiting.Done()
				<-block
			})
		}
		waiting.Wait()
		base := memory() - before
		close(block)
		done.Wait()
		b.ReportMetric(float64(got)/watchers/1024, "KiB/watcher")
		b.ReportMetric(float64(got)/float64(max(base, 1)), "x-goroutine")
	}
}

// BenchmarkStoreMemory measures the resident memory of a process with 100,000 objects in its store, after it has
// listed them all page by page. Baseline: the same process before it opened the store.
func BenchmarkStoreMemory(b *testing.B) {
	const objects = 100_000
	path := filepath.Join(folder(b), "store.db")
	for b.Loop() {
		debug.FreeOSMemory()
		base := resident(b)
		s := open(b, path)
		fill(b, s, objects)
		for offset := 0; offset < objects; offset += 500 {
			if err := s.View(context.Background(), func(r store.Reader) error {
				_, err := r.List(store.Query{Kind: "machine", Offset: offset, Limit: 500})
				return err
			}); err != nil {
				b.Fatal(err)
			}
		}
		got := resident(b)
		debug.FreeOSMemory()
		b.ReportMetric(float64(got-base)/(1<<20), "MiB")
		b.ReportMetric(float64(resident(b)-base)/(1<<20), "MiB-after-GC")
		b.ReportMetric(float64(got)/float64(base), "x-empty-process")
	}
}

// watch starts a watcher and reads its snapshot.
func watch(tb testing.TB, s store.Store) store.Watcher {
	tb.Helper()
	w, err := s.Watch(context.Background(), 0, store.Query{Kind: "machine"})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Next(context.Background()); err != nil {
		tb.Fatal(err)
	}
	return w
}

// readUntil counts a watcher's events until an object of that name appears.
func readUntil(b *testing.B, w store.Watcher, name string) (n int64) {
	defer w.Close()
	for {
		batch, err := w.Next(context.Background())
		if err != nil {
			b.Error(err)
			return n
		}
		for _, e := range batch.Events {
			n++
			if e.Object.Name == name {
				return n
			}
		}
	}
}

// channelFanOut answers how many values a second reach one goroutine per watcher, each by a channel.
func channelFanOut() float64 {
	var delivered atomic.Int64
	var done sync.WaitGroup
	channels := make([]chan int, watchers)
	for i := range channels {
		channels[i] = make(chan int, 64)
		done.Go(func() {
			for range channels[i] {
				delivered.Add(1)
			}
		})
	}
	start := time.Now()
	for n := 0; time.Since(start) < span/2; n++ {
		for _, c := range channels {
			c <- n
		}
	}
	for _, c := range channels {
		close(c)
	}
	done.Wait()
	return float64(delivered.Load()) / time.Since(start).Seconds()
}

// memory is what the process's heap and stacks hold.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// resident is the memory of the process in bytes, as the system counts it.
func resident(tb testing.TB) int64 {
	tb.Helper()
	var pages, residentPages int64
	data, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(data), &pages, &residentPages)
	}
	if err != nil {
		tb.Skip("no /proc/self/statm on this system")
	}
	return residentPages * int64(os.Getpagesize())
}
