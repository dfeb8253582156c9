package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
)

func testKinds(t *testing.T, b Backend) {
	// second is version 2 of tenants: the size has a unit.
	second := store.Kind{
		Name: "tenant", Version: 2,
		Upgrades: []func(spec, status json.RawMessage) (json.RawMessage, json.RawMessage, error){
			1: func(spec, status json.RawMessage) (json.RawMessage, json.RawMessage, error) {
				return json.RawMessage(strings.Replace(string(spec), `"size"`, `"sizeGiB"`, 1)), status, nil
			},
		},
		Indexes: map[string]func(*store.Object) []string{
			"spec": func(o *store.Object) []string { return []string{string(o.Spec)} },
		},
	}
	const upgraded = `{"sizeGiB":1}`
	cases{
		"OldObjectsAreUpgradedWhenRead": func(t *testing.T, f *fixture) {
			before := f.create(tenant("a")).Clone()
			f.kinds = []store.Kind{second}
			f.reopen()
			got := f.get("tenant", "a")
			if string(got.Spec) != upgraded || got.Revision != before.Revision || got.Generation != 1 {
				t.Errorf("got spec %s, revision %d, generation %d", got.Spec, got.Revision, got.Generation)
			}
			expect(t, f.names(store.Query{Kind: "tenant", Index: "spec", Value: upgraded}), "a")
			changed := f.change("tenant", "a", func(o *store.Object) { o.Labels = map[string]string{"a": "b"} })
			if changed.Generation != 1 {
				t.Errorf("the upgrade counts as a change of the spec: generation %d", changed.Generation)
			}
			f.create(&store.Object{Kind: "tenant", Name: "b", Spec: json.RawMessage(`{"size":9}`)})
			if got := f.get("tenant", "b"); string(got.Spec) != `{"size":9}` {
				t.Errorf("what is written new was upgraded: %s", got.Spec)
			}
		},
		"OldLogEntriesToo": func(t *testing.T, f *fixture) {
			since := f.revision()
			f.create(machine("m"))
			f.create(tenant("a"))
			f.kinds = []store.Kind{second}
			f.reopen()
			batch := f.next(f.watch(since, store.Query{Kind: "tenant"}))
			expect(t, seen(batch), "ADDED a")
			if got := string(batch.Events[0].Object.Spec); got != upgraded {
				t.Errorf("spec %s, want %s", got, upgraded)
			}
		},
		"ANewIndexFindsOldObjects": func(t *testing.T, f *fixture) {
			for i := range 450 {
				f.create(&store.Object{Kind: "tenant", Name: fmt.Sprint(i), Spec: json.RawMessage(fmt.Sprint(i % 100)), Labels: map[string]string{"x": "y"}})
			}
			f.kinds = testedKinds()
			f.kinds[0].Indexes = second.Indexes
			f.reopen()
			if got := f.names(store.Query{Kind: "tenant", Index: "spec", Value: "7"}); len(got) != 5 {
				t.Errorf("found %v, want 5", got)
			}
			if got := f.names(store.Query{Kind: "tenant", Selector: selector(t, "x=y")}); len(got) != 450 {
				t.Errorf("found %d by label, want 450", len(got))
			}
		},
		"ANewerProgramsObjectsAreRefused": func(t *testing.T, f *fixture) {
			f.kinds = []store.Kind{second}
			f.reopen()
			f.create(&store.Object{Kind: "tenant", Name: "a", Spec: json.RawMessage(upgraded)})
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			s, err := b.Open(ctx, f.folder, testedKinds())
			if err == nil {
				_ = s.Close()
				t.Error("a program of version 1 opened objects of version 2")
			}
			f.open()
		},
	}.run(t, b)
}

func testLifecycle(t *testing.T, b Backend) {
	cases{
		"ASecondOpenIsRefused": func(t *testing.T, f *fixture) {
			if s, err := b.Open(ctx, f.folder, f.kinds); err == nil {
				_ = s.Close()
				t.Error("the store was opened twice")
			}
			f.create(tenant("a"))
			f.reopen()
			f.get("tenant", "a")
		},
		"AClosedStoreSaysSo": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			waiting := make(chan error)
			go func() {
				_, err := w.Next(ctx)
				waiting <- err
			}()
			if err := errors.Join(f.Close(), f.Close()); err != nil {
				t.Fatalf("close: %v", err)
			}
			if err := await(t, waiting); !errors.Is(err, store.ErrClosed) {
				t.Errorf("a waiting watcher: %v, want ErrClosed", err)
			}
			_, watched := f.Watch(ctx, 0, store.Query{Kind: "tenant"})
			if watched == nil {
				_, watched = w.Next(ctx)
			}
			for what, err := range map[string]error{
				"update":  f.Update(ctx, func(store.Tx) error { return nil }),
				"view":    f.View(ctx, func(store.Reader) error { return nil }),
				"compact": f.Compact(ctx, 0, 0),
				"watch":   watched,
			} {
				if !errors.Is(err, store.ErrClosed) {
					t.Errorf("%s: %v, want ErrClosed", what, err)
				}
			}
		},
		"CloseWaitsForWhatRuns": func(t *testing.T, f *fixture) {
			running, proceed := make(chan struct{}), make(chan struct{})
			updated, viewed, closed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
			go func() {
				viewed <- f.View(ctx, func(r store.Reader) error {
					running <- struct{}{}
					<-proceed
					return second(r.List(store.Query{Kind: "tenant"}))
				})
			}()
			go func() {
				updated <- f.Update(ctx, func(tx store.Tx) error {
					running <- struct{}{}
					<-proceed
					return tx.Create(tenant("a"))
				})
			}()
			await(t, running)
			await(t, running)
			go func() { closed <- f.Close() }()
			close(proceed)
			if err := errors.Join(await(t, updated), await(t, viewed), await(t, closed)); err != nil {
				t.Error(err)
			}
			f.open()
			f.get("tenant", "a")
		},
		"AnEndedContextDoesNotOpen": func(t *testing.T, f *fixture) {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := b.Open(ended, t.TempDir(), f.kinds); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
		},
	}.run(t, b)
}
