package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
)

var errRefused = errors.New("refused by the caller")

func testTransactions(t *testing.T, b Backend) {
	cases{
		"AllOrNothing": func(t *testing.T, f *fixture) {
			f.create(tenant("old"))
			before := f.revision()
			err := f.Update(ctx, func(tx store.Tx) error {
				return errors.Join(
					tx.Create(tenant("a")),
					tx.Create(machine("m", "role", "worker")),
					second(tx.Delete("tenant", "old", 0)),
					tx.Claim("address", "10.0.0.1", "a"),
					tx.PutBlob("blob", []byte("x")),
					second(tx.Append("audit", "k", []byte("x"))),
					errRefused,
				)
			})
			if !errors.Is(err, errRefused) {
				t.Fatalf("got %v, want the caller's own error", err)
			}
			f.reopen()
			f.view(func(r store.Reader) error {
				if r.Revision() != before {
					t.Errorf("revision %d, want %d", r.Revision(), before)
				}
				if got := f.names(store.Query{Kind: "tenant"}); len(got) != 1 || got[0] != "old" {
					t.Errorf("tenants %v, want old", got)
				}
				if got := f.names(store.Query{Kind: "machine", Selector: selector(t, "role=worker")}); len(got) != 0 {
					t.Errorf("machines %v, want none", got)
				}
				if owner, err := r.Claimed("address", "10.0.0.1"); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("claimed by %q: %v", owner, err)
				}
				if _, err := r.Blob("blob"); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("blob: %v, want ErrNotFound", err)
				}
				if rows, err := r.Scan("audit", store.Scan{}); len(rows) != 0 || err != nil {
					t.Errorf("rows %v: %v", rows, err)
				}
				return nil
			})
		},
		"OneRevisionForAll": func(t *testing.T, f *fixture) {
			a, m := tenant("a"), machine("m")
			before := f.revision()
			f.update(func(tx store.Tx) error { return errors.Join(tx.Create(a), tx.Create(m)) })
			if a.Revision != before+1 || m.Revision != before+1 {
				t.Errorf("revisions %d and %d, want %d", a.Revision, m.Revision, before+1)
			}
		},
		"NoObjectNoRevision": func(t *testing.T, f *fixture) {
			before := f.revision()
			f.update(func(tx store.Tx) error {
				return errors.Join(tx.PutBlob("b", []byte("x")), tx.Claim("i", "v", "o"), second(tx.Append("t", "k", nil)))
			})
			f.update(func(tx store.Tx) error {
				return errors.Join(tx.Create(tenant("brief")), second(tx.Delete("tenant", "brief", 0)))
			})
			if got := f.revision(); got != before {
				t.Errorf("revision %d, want %d", got, before)
			}
		},
		"ReadsItsOwnWrites": func(t *testing.T, f *fixture) {
			f.update(func(tx store.Tx) error {
				for i := range 3 {
					if err := tx.Create(machine(fmt.Sprint(i), "role", "worker")); err != nil {
						return err
					}
				}
				o, err := tx.Get("machine", "1")
				if err != nil {
					return err
				}
				o = o.Clone()
				o.Spec = json.RawMessage(`{"changed":true}`)
				if err := errors.Join(tx.Update(o), second(tx.Delete("machine", "2", 0))); err != nil {
					return err
				}
				l, err := tx.List(store.Query{Kind: "machine", Selector: selector(t, "role=worker")})
				if err != nil {
					return err
				}
				if len(l.Objects) != 2 || string(l.Objects[1].Spec) != `{"changed":true}` {
					t.Errorf("the update sees %v", names(l.Objects))
				}
				return nil
			})
		},
		"APanicIsItsCallersError": func(t *testing.T, f *fixture) {
			err := f.Update(ctx, func(tx store.Tx) error {
				if err := tx.Create(tenant("a")); err != nil {
					return err
				}
				panic("a bug in the caller")
			})
			if err == nil || !strings.Contains(err.Error(), "a bug in the caller") {
				t.Errorf("got %v, want the panic", err)
			}
			f.create(tenant("a"))
		},
		"AnExitIsItsCallersError": func(t *testing.T, f *fixture) {
			err := f.Update(ctx, func(tx store.Tx) error {
				_ = tx.Create(tenant("a"))
				runtime.Goexit()
				return nil
			})
			if err == nil {
				t.Error("an update whose function ended its goroutine succeeded")
			}
			f.create(tenant("a"))
		},
		"ARefusedWriteDoesNotSpoilTheRest": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			f.update(func(tx store.Tx) error {
				if err := tx.Create(tenant("a")); !errors.Is(err, store.ErrExists) {
					t.Errorf("got %v, want ErrExists", err)
				}
				return tx.Create(tenant("b"))
			})
			f.get("tenant", "b")
		},
		"AnEndedContextIsNotRun": func(t *testing.T, f *fixture) {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			err := f.Update(ended, func(tx store.Tx) error {
				t.Error("the function ran")
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
		},
		"AContextThatEndsMeanwhileChangesNothing": func(t *testing.T, f *fixture) {
			ending, cancel := context.WithCancel(ctx)
			defer cancel()
			if err := f.Update(ending, func(tx store.Tx) error {
				cancel()
				return tx.Create(tenant("a"))
			}); err != nil {
				t.Errorf("got %v, want the update's own outcome", err)
			}
			f.get("tenant", "a")
		},
		"AnEndedViewOrUpdateAnswersErrors": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			var kept store.Tx
			f.update(func(tx store.Tx) error { kept = tx; return nil })
			if _, err := kept.Get("tenant", "a"); err == nil {
				t.Error("an update can be read from after its end")
			}
			if err := kept.PutBlob("b", nil); err == nil {
				t.Error("an update can be written to after its end")
			}
			var view store.Reader
			f.view(func(r store.Reader) error { view = r; return nil })
			if _, err := view.Get("tenant", "a"); err == nil {
				t.Error("a view can be read from after its end")
			}
		},
		"AViewDoesNotMove": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			f.view(func(r store.Reader) error {
				before := r.Revision()
				f.create(tenant("b"))
				l, err := r.List(store.Query{Kind: "tenant"})
				if err != nil {
					return err
				}
				if r.Revision() != before || l.Revision != before || len(l.Objects) != 1 {
					t.Errorf("the view moved: revision %d, list of %d at %d; want 1 at %d", r.Revision(), len(l.Objects), l.Revision, before)
				}
				return nil
			})
		},
	}.run(t, b)
}

// second is the error of a call that answers something else too.
func second[T any](_ T, err error) error { return err }
