package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"freehold.dev/freehold/internal/kernel/store"
)

func testWatches(t *testing.T, b Backend) {
	cases{
		"StartsWithTheState": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			f.create(machine("m"))
			f.create(tenant("b"))
			w := f.watch(0, store.Query{Kind: "tenant"})
			batch := f.next(w)
			if !batch.Initial || batch.Revision != f.revision() {
				t.Errorf("initial %v at %d, want true at %d", batch.Initial, batch.Revision, f.revision())
			}
			expect(t, seen(batch), "ADDED a", "ADDED b")
			f.create(tenant("c"))
			batch = f.next(w)
			if batch.Initial || batch.Revision != f.revision() {
				t.Errorf("then: initial %v at %d", batch.Initial, batch.Revision)
			}
			expect(t, seen(batch), "ADDED c")
		},
		"AnEmptyStateIsABatchToo": func(t *testing.T, f *fixture) {
			batch := f.next(f.watch(0, store.Query{Kind: "tenant"}))
			if !batch.Initial || len(batch.Events) != 0 || batch.Revision == 0 {
				t.Errorf("got %+v, want an empty initial batch with a revision to resume after", batch)
			}
			f.create(tenant("a"))
			expect(t, seen(f.next(f.watch(batch.Revision, store.Query{Kind: "tenant"}))), "ADDED a")
		},
		"FollowsAnObjectsLife": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			o := tenant("a")
			o.Finalizers = []string{"x"}
			f.create(o)
			f.change("tenant", "a", func(o *store.Object) { o.Status = json.RawMessage(`{"phase":"forming"}`) })
			f.remove("tenant", "a")
			f.change("tenant", "a", func(o *store.Object) { o.Finalizers = nil })
			for _, want := range []string{"ADDED a", "MODIFIED a", "MODIFIED a", "DELETED a"} {
				batch := f.next(w)
				expect(t, seen(batch), want)
				if o := batch.Events[0].Object; o.Revision != batch.Revision {
					t.Errorf("%s: object at %d in batch %d", want, o.Revision, batch.Revision)
				}
			}
		},
		"ATransactionComesWhole": func(t *testing.T, f *fixture) {
			f.create(tenant("gone"))
			w := f.watch(0, store.Query{Kind: "tenant"}, store.Query{Kind: "machine"})
			f.next(w)
			f.update(func(tx store.Tx) error {
				a := tenant("a")
				if err := errors.Join(tx.Create(a), tx.Create(machine("m")), second(tx.Delete("tenant", "gone", 0))); err != nil {
					return err
				}
				a.Status = json.RawMessage(`{}`)
				return tx.Update(a)
			})
			batch := f.next(w)
			expect(t, seen(batch), "ADDED a", "ADDED m", "DELETED gone")
			if got := string(batch.Events[0].Object.Status); got != `{}` {
				t.Errorf("the object is not as the transaction left it: status %q", got)
			}
		},
		"ATransactionIsOneChangeOfAnObject": func(t *testing.T, f *fixture) {
			for _, name := range []string{"back", "gone", "in", "removed"} {
				f.create(machine(name, "zone", map[bool]string{true: "b", false: "a"}[name == "in"]))
			}
			since := f.revision()
			w := f.watch(since, store.Query{Kind: "machine", Selector: selector(t, "zone=a")})
			f.update(func(tx store.Tx) error {
				move := func(name string, zones ...string) error {
					for _, zone := range zones {
						o, err := tx.Get("machine", name)
						if err != nil {
							return err
						}
						o = o.Clone()
						o.Labels = map[string]string{"zone": zone}
						if err := tx.Update(o); err != nil {
							return err
						}
					}
					return nil
				}
				return errors.Join(
					move("back", "b", "a"), move("gone", "c", "b"), move("in", "c", "a"),
					move("removed", "b"), second(tx.Delete("machine", "removed", 0)),
				)
			})
			want := []string{"MODIFIED back", "DELETED gone", "ADDED in", "DELETED removed"}
			expect(t, seen(f.next(w)), want...)
			f.reopen()
			expect(t, seen(f.next(f.watch(since, store.Query{Kind: "machine", Selector: selector(t, "zone=a")}))), want...)
		},
		"WhatATransactionMadeAndRemovedWasNot": func(t *testing.T, f *fixture) {
			w := f.watch(f.revision(), store.Query{Kind: "tenant"})
			f.update(func(tx store.Tx) error {
				b := tenant("b")
				if err := errors.Join(tx.Create(tenant("a")), tx.Create(b), tx.Create(tenant("c")), second(tx.Delete("tenant", "a", 0))); err != nil {
					return err
				}
				b.Status = json.RawMessage(`{}`)
				return errors.Join(tx.Update(b), second(tx.Delete("tenant", "c", 0)), tx.Create(tenant("a")))
			})
			batch := f.next(w)
			expect(t, seen(batch), "ADDED b", "ADDED a")
			if got := string(batch.Events[0].Object.Status); got != `{}` {
				t.Errorf("status %q, want that of the transaction's end", got)
			}
		},
		"ReplacedIsDeletedAndAdded": func(t *testing.T, f *fixture) {
			old := f.create(tenant("a")).UID
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			f.update(func(tx store.Tx) error {
				return errors.Join(second(tx.Delete("tenant", "a", 0)), tx.Create(tenant("a")))
			})
			batch := f.next(w)
			expect(t, seen(batch), "DELETED a", "ADDED a")
			if batch.Events[0].Object.UID != old || batch.Events[1].Object.UID == old {
				t.Error("the events do not tell the old object from the new")
			}
		},
		"AViewTellsWhatAWatcherWasTold": func(t *testing.T, f *fixture) {
			zone := store.Query{Kind: "machine", Selector: selector(t, "zone=a")}
			f.create(tenant("a"))
			since := f.revision()
			f.create(machine("m", "zone", "a"))
			f.change("tenant", "a", func(o *store.Object) { o.Status = json.RawMessage(`{}`) })
			f.change("machine", "m", func(o *store.Object) { o.Labels = map[string]string{"zone": "b"} })
			f.create(tenant("b"))
			told := func(since int64, last int, queries ...store.Query) (all []string) {
				f.view(func(r store.Reader) error {
					batches, err := r.Changes(since, last, queries...)
					for _, b := range batches {
						if b.Initial || b.Revision <= since || b.Revision > r.Revision() {
							t.Errorf("a batch at %d, initial %v, after %d in a view of %d", b.Revision, b.Initial, since, r.Revision())
						}
						all = append(all, seen(b)...)
					}
					return err
				})
				return all
			}
			both := []store.Query{{Kind: "tenant"}, zone}
			expect(t, told(0, 100, both...), "ADDED a", "ADDED m", "MODIFIED a", "DELETED m", "ADDED b")
			expect(t, told(since, 100, zone), "ADDED m", "DELETED m")
			expect(t, told(since, 2, both...), "DELETED m", "ADDED b")
			expect(t, told(f.revision(), 100, both...))
			f.view(func(r store.Reader) error {
				if _, err := r.Changes(r.Revision()+1, 100, zone); !errors.Is(err, store.ErrCompacted) {
					t.Errorf("after what is still to come: %v, want ErrCompacted", err)
				}
				return nil
			})
		},
		"NothingThatStaysOutsideIsReported": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "machine", Selector: selector(t, "zone=a")})
			f.next(w)
			f.create(machine("other", "zone", "b"))
			f.change("machine", "other", func(o *store.Object) { o.Labels["zone"] = "c" })
			f.remove("machine", "other")
			f.create(machine("m", "zone", "a"))
			expect(t, seen(f.next(w)), "ADDED m")
		},
		"LabelsMoveObjectsInAndOut": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "machine", Selector: selector(t, "zone=a")})
			f.next(w)
			f.create(machine("m", "zone", "b"))
			since := f.revision()
			f.change("machine", "m", func(o *store.Object) { o.Labels = map[string]string{"zone": "a"} })
			f.change("machine", "m", func(o *store.Object) { o.Labels["rack"] = "7" })
			f.change("machine", "m", func(o *store.Object) { o.Labels = map[string]string{"zone": "c"} })
			f.change("machine", "m", func(o *store.Object) { o.Labels = map[string]string{"zone": "a"} })
			f.remove("machine", "m")
			want := []string{"ADDED m", "MODIFIED m", "DELETED m", "ADDED m", "DELETED m"}
			for _, event := range want {
				expect(t, seen(f.next(w)), event)
			}
			f.reopen()
			w = f.watch(since, store.Query{Kind: "machine", Selector: selector(t, "zone=a")})
			for _, event := range want {
				expect(t, seen(f.next(w)), event)
			}
		},
		"IndexesMoveObjectsInAndOut": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "machine", Index: "owner", Value: "x"})
			f.next(w)
			f.create(machine("m"))
			since := f.revision()
			own := func(owners string) {
				f.change("machine", "m", func(o *store.Object) { o.Annotations = map[string]string{"owners": owners} })
			}
			own("x y")
			own("x")
			own("y")
			want := []string{"ADDED m", "MODIFIED m", "DELETED m"}
			for _, event := range want {
				expect(t, seen(f.next(w)), event)
			}
			f.reopen()
			w = f.watch(since, store.Query{Kind: "machine", Index: "owner", Value: "x"})
			for _, event := range want {
				expect(t, seen(f.next(w)), event)
			}
		},
		"SeveralQueriesReportAnObjectOnce": func(t *testing.T, f *fixture) {
			f.create(machine("a", "zone", "a", "role", "worker"))
			w := f.watch(0, store.Query{Kind: "machine", Selector: selector(t, "zone=a")},
				store.Query{Kind: "machine", Selector: selector(t, "role=worker")}, store.Query{Kind: "tenant", Name: "t"})
			expect(t, seen(f.next(w)), "ADDED a")
			f.change("machine", "a", func(o *store.Object) { o.Labels = map[string]string{"role": "worker"} })
			expect(t, seen(f.next(w)), "MODIFIED a")
			f.create(tenant("u"))
			f.create(tenant("t"))
			expect(t, seen(f.next(w)), "ADDED t")
		},
		"PagingDoesNotNarrowAWatch": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			f.create(tenant("b"))
			w := f.watch(0, store.Query{Kind: "tenant", Offset: 1, Limit: 1})
			expect(t, seen(f.next(w)), "ADDED a", "ADDED b")
		},
		"ResumesAfterARevision": func(t *testing.T, f *fixture) {
			var revisions []int64
			for i := range 20 {
				revisions = append(revisions, f.create(tenant(fmt.Sprintf("t-%02d", i))).Revision)
			}
			for restarted := range 2 {
				for from := range revisions {
					w := f.watch(revisions[from], store.Query{Kind: "tenant"})
					for i := from + 1; i < len(revisions); i++ {
						batch := f.next(w)
						expect(t, seen(batch), fmt.Sprintf("ADDED t-%02d", i))
						if batch.Initial || batch.Revision != revisions[i] {
							t.Fatalf("initial %v, revision %d, want %d", batch.Initial, batch.Revision, revisions[i])
						}
					}
				}
				if restarted == 0 {
					f.reopen()
				}
			}
		},
		"ARevisionFromTheFutureIsGone": func(t *testing.T, f *fixture) {
			if _, err := f.Watch(ctx, f.revision()+1, store.Query{Kind: "tenant"}); !errors.Is(err, store.ErrCompacted) {
				t.Errorf("got %v, want ErrCompacted", err)
			}
		},
		"AWaitCanBeGivenUpAndRepeated": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			brief, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if _, err := w.Next(brief); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want DeadlineExceeded", err)
			}
			f.create(tenant("a"))
			if _, err := w.Next(brief); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with an ended context: got %v, want DeadlineExceeded", err)
			}
			expect(t, seen(f.next(w)), "ADDED a")
		},
		"AClosedWatcherAnswersAtOnce": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			ended := make(chan error)
			go func() {
				_, err := w.Next(ctx)
				ended <- err
			}()
			w.Close()
			w.Close()
			if err := await(t, ended); !errors.Is(err, store.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		},
	}.run(t, b)
}

func testCompaction(t *testing.T, b Backend) {
	fill := func(f *fixture, n int) (revisions []int64) {
		for i := range n {
			revisions = append(revisions, f.create(tenant(fmt.Sprintf("t-%02d", i))).Revision)
		}
		return revisions
	}
	compact := func(f *fixture, keep time.Duration, min int) {
		f.t.Helper()
		if err := f.Compact(ctx, keep, min); err != nil {
			f.t.Fatalf("compact: %v", err)
		}
	}
	// old is a time to keep that makes every entry too old, also those of this microsecond.
	const old = -time.Hour
	cases{
		"KeepsTheLastEntries": func(t *testing.T, f *fixture) {
			revisions := fill(f, 20)
			compact(f, old, 5)
			for range 2 {
				for i, revision := range revisions {
					_, err := f.Watch(ctx, revision, store.Query{Kind: "tenant"})
					if gone := errors.Is(err, store.ErrCompacted); gone != (i < 14) {
						t.Errorf("watch after entry %d of 20, 5 kept: %v", i, err)
					}
					f.view(func(r store.Reader) error {
						batches, err := r.Changes(revision, 100, store.Query{Kind: "tenant"})
						if gone := errors.Is(err, store.ErrCompacted); gone != (i < 14) || !gone && len(batches) != 19-i {
							t.Errorf("changes after entry %d of 20, 5 kept: %d, %v", i, len(batches), err)
						}
						all, err := r.Changes(0, 100, store.Query{Kind: "tenant"})
						if err == nil && len(all) != 5 {
							t.Errorf("%d changes are kept, want 5", len(all))
						}
						return err
					})
				}
				f.reopen()
			}
			w := f.watch(revisions[14], store.Query{Kind: "tenant"})
			for i := 15; i < 20; i++ {
				expect(t, seen(f.next(w)), fmt.Sprintf("ADDED t-%02d", i))
			}
			if got := len(f.names(store.Query{Kind: "tenant"})); got != 20 {
				t.Errorf("compaction left %d objects of 20", got)
			}
		},
		"KeepsWhatIsYoung": func(t *testing.T, f *fixture) {
			revisions := fill(f, 5)
			compact(f, time.Hour, 0)
			expect(t, seen(f.next(f.watch(revisions[0], store.Query{Kind: "tenant"}))), "ADDED t-01")
		},
		"RevisionsAreNotUsedAgain": func(t *testing.T, f *fixture) {
			revisions := fill(f, 3)
			compact(f, old, 0)
			f.reopen()
			if got := f.create(tenant("next")).Revision; got != revisions[2]+1 {
				t.Errorf("revision %d after %d", got, revisions[2])
			}
		},
		"ALaggingWatcherLearnsIt": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			fill(f, 3)
			since := f.revision()
			f.reopen()
			w = f.watch(since, store.Query{Kind: "tenant"})
			f.change("tenant", "t-00", func(o *store.Object) { o.Labels = map[string]string{"a": "b"} })
			f.change("tenant", "t-00", func(o *store.Object) { o.Labels = map[string]string{"a": "c"} })
			compact(f, old, 0)
			patient, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			// What is still in memory may be delivered; nothing may be left out.
			batch, err := w.Next(patient)
			if err == nil && batch.Revision == since+1 {
				batch, err = w.Next(patient)
				if err == nil && batch.Revision != since+2 {
					t.Errorf("skipped to %d", batch.Revision)
				}
				return
			}
			if !errors.Is(err, store.ErrCompacted) {
				t.Errorf("got %+v, %v; want the next change or ErrCompacted", batch, err)
			}
		},
		"MoreThanOneChunk": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			for i := range 1300 {
				f.change("tenant", "a", func(o *store.Object) { o.Status = fmt.Append(nil, i) })
			}
			compact(f, old, 7)
			last := f.revision()
			if _, err := f.Watch(ctx, last-8, store.Query{Kind: "tenant"}); !errors.Is(err, store.ErrCompacted) {
				t.Errorf("watch after what was compacted: %v, want ErrCompacted", err)
			}
			f.watch(last-7, store.Query{Kind: "tenant"})
		},
	}.run(t, b)
}

// seen puts a batch in words.
func seen(b store.Batch) []string {
	events := []string{}
	for _, e := range b.Events {
		events = append(events, fmt.Sprintf("%s %s", e.Type, e.Object.Name))
	}
	return events
}

func await[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func diff(want, got any) string { return cmp.Diff(want, got, cmpopts.EquateEmpty()) }
