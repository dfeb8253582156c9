package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

func testConcurrency(t *testing.T, b Backend) {
	cases{
		"CountersLoseNothing": func(t *testing.T, f *fixture) {
			const writers, rounds = 16, 20
			f.create(counter(0))
			var done sync.WaitGroup
			for range writers {
				done.Go(func() {
					for range rounds {
						if err := increment(f.Store); err != nil {
							t.Error(err)
						}
					}
				})
			}
			done.Wait()
			if got := string(f.get("tenant", "counter").Spec); got != strconv.Itoa(writers*rounds) {
				t.Errorf("counted %s, want %d", got, writers*rounds)
			}
		},
		"CompareAndSwapHasOneWinner": func(t *testing.T, f *fixture) {
			read := f.create(counter(0)).Clone()
			const writers = 16
			outcomes := make(chan error, writers)
			for i := range writers {
				go func() {
					mine := read.Clone()
					mine.Spec = fmt.Append(nil, i+1)
					outcomes <- f.Update(ctx, func(tx store.Tx) error { return tx.Update(mine) })
				}()
			}
			won := 0
			for range writers {
				switch err := await(t, outcomes); {
				case err == nil:
					won++
				case !errors.Is(err, store.ErrConflict):
					t.Error(err)
				}
			}
			if won != 1 {
				t.Errorf("%d writers won", won)
			}
		},
		"EachLearnsItsOwnOutcome": func(t *testing.T, f *fixture) {
			const callers = 60
			var done sync.WaitGroup
			for i := range callers {
				done.Go(func() {
					name := fmt.Sprint(i)
					err := f.Update(ctx, func(tx store.Tx) error {
						if err := tx.Create(tenant(name)); err != nil {
							return err
						}
						switch i % 3 {
						case 1:
							return errRefused
						case 2:
							panic("a bug in one of many")
						}
						return nil
					})
					if (err == nil) != (i%3 == 0) || (i%3 == 1) != errors.Is(err, errRefused) {
						t.Errorf("caller %d: %v", i, err)
					}
				})
			}
			done.Wait()
			if got := len(f.names(store.Query{Kind: "tenant"})); got != callers/3 {
				t.Errorf("%d objects, want %d", got, callers/3)
			}
		},
		"WhatWasAnsweredIsSeen": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			var done sync.WaitGroup
			for i := range 8 {
				done.Go(func() {
					for j := range 10 {
						o := tenant(fmt.Sprintf("%d-%d", i, j))
						f.create(o)
						if got := f.list(store.Query{Kind: "tenant", Name: o.Name}); len(got.Objects) != 1 || got.Revision < o.Revision {
							t.Errorf("%s was answered and is not seen at %d", o.Name, got.Revision)
						}
					}
				})
			}
			done.Wait()
			last := int64(0)
			for range 80 {
				batch := f.next(w)
				if len(batch.Events) != 1 || batch.Revision <= last {
					t.Fatalf("batch %d after %d with %v", batch.Revision, last, seen(batch))
				}
				last = batch.Revision
			}
		},
		"WatchersAgreeWithTheStore": testWatchersAgree,
		"ManyWatchersComeAndGo": func(t *testing.T, f *fixture) {
			stop, cancel := context.WithCancel(ctx)
			var done sync.WaitGroup
			done.Go(func() {
				for i := 0; stop.Err() == nil; i++ {
					f.create(tenant(fmt.Sprint(i)))
				}
			})
			var watching sync.WaitGroup
			for range 8 {
				watching.Go(func() {
					for range 20 {
						w, err := f.Watch(ctx, 0, store.Query{Kind: "tenant"})
						if err != nil {
							t.Error(err)
							return
						}
						held := len(f.next(w).Events)
						if next := f.next(w); len(next.Events) != 1 || next.Events[0].Object.Name != fmt.Sprint(held) {
							t.Errorf("after %d objects came %v", held, seen(next))
						}
						w.Close()
					}
				})
			}
			watching.Wait()
			cancel()
			done.Wait()
		},
	}.run(t, b)
}

// testWatchersAgree has writers change labels at random while watchers keep copies, through resumptions and
// compactions, and compares the copies with the store in the end.
func testWatchersAgree(t *testing.T, f *fixture) {
	const writers, rounds = 8, 60
	queries := []store.Query{
		{Kind: "machine"},
		{Kind: "machine", Selector: selector(t, "zone=a")},
		{Kind: "machine", Selector: selector(t, "zone!=a")},
		{Kind: "machine", Prefix: "1/"},
		{Kind: "machine", Index: "owner", Value: "x"},
	}
	var watching, writing sync.WaitGroup
	for _, q := range queries {
		watching.Go(func() {
			got := replica{f: f, query: q}
			got.follow()
			if diff := got.compare(); diff != "" {
				t.Errorf("watching %+v (-store +watcher):\n%s", q, diff)
			}
		})
	}
	for i := range writers {
		writing.Go(func() {
			for j := range rounds {
				name := fmt.Sprintf("%d/%d", i%4, j%5)
				err := f.Update(ctx, func(tx store.Tx) error { return scramble(tx, name, i+j) })
				if err != nil {
					t.Error(err)
				}
				if j%20 == 19 {
					if err := f.Compact(ctx, -time.Hour, 10); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	writing.Wait()
	f.create(tenant("last"))
	watching.Wait()
}

// scramble makes, changes or deletes a machine.
func scramble(tx store.Tx, name string, choice int) error {
	zone := []string{"a", "b", "c"}[choice%3]
	o, err := tx.Get("machine", name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return tx.Create(machine(name, "zone", zone))
	case err != nil:
		return err
	case choice%7 == 0:
		return second(tx.Delete("machine", name, 0))
	}
	o = o.Clone()
	o.Labels = map[string]string{"zone": zone}
	o.Annotations = map[string]string{"owners": []string{"x", "y", ""}[choice%3]}
	return tx.Update(o)
}

// replica is a copy of what a query selects, kept by a watch.
type replica struct {
	f       *fixture
	query   store.Query
	objects map[string]*store.Object
	// since is the revision that the copy is of.
	since int64
}

// follow keeps the replica until the tenant "last" appears. It starts anew when it fell behind, and resumes now
// and then.
func (r *replica) follow() {
	for ended := false; !ended; {
		w, err := r.f.Watch(ctx, r.since, r.query, store.Query{Kind: "tenant", Name: "last"})
		switch {
		case errors.Is(err, store.ErrCompacted):
			r.since = 0
		case err != nil:
			r.f.t.Error(err)
			return
		default:
			ended = r.read(w)
			w.Close()
		}
	}
}

func (r *replica) read(w store.Watcher) (ended bool) {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for range 25 {
		batch, err := w.Next(patient)
		switch {
		case errors.Is(err, store.ErrCompacted):
			r.since = 0
			return false
		case err != nil:
			r.f.t.Error(err)
			return true
		}
		if batch.Initial {
			r.objects = map[string]*store.Object{}
		}
		r.since = batch.Revision
		if r.apply(batch) {
			return true
		}
	}
	return false
}

// apply checks that each event fits what the replica holds. It tells whether the end has come.
func (r *replica) apply(b store.Batch) (ended bool) {
	for _, e := range b.Events {
		if e.Object.Kind == "tenant" {
			return true
		}
		_, held := r.objects[e.Object.Name]
		if held == (e.Type == store.Added) {
			r.f.t.Errorf("%s %s at %d, held before: %v", e.Type, e.Object.Name, b.Revision, held)
		}
		if e.Type == store.Deleted {
			delete(r.objects, e.Object.Name)
		} else {
			r.objects[e.Object.Name] = e.Object
		}
	}
	return false
}

func (r *replica) compare() string {
	want := map[string]*store.Object{}
	for _, o := range r.f.list(r.query).Objects {
		want[o.Name] = o
	}
	return diff(want, r.objects)
}

func counter(n int) *store.Object {
	return &store.Object{Kind: "tenant", Name: "counter", Spec: fmt.Append(nil, n)}
}

func increment(s store.Store) error {
	return s.Update(ctx, func(tx store.Tx) error {
		o, err := tx.Get("tenant", "counter")
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(o.Spec))
		if err != nil {
			return err
		}
		o = o.Clone()
		o.Spec = fmt.Append(nil, n+1)
		return tx.Update(o)
	})
}
