package storetest

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/kernel/store"
)

func testObjects(t *testing.T, b Backend) {
	cases{
		"CreateCompletesTheObject": func(t *testing.T, f *fixture) {
			before := time.Now().Add(-time.Millisecond)
			o := machine("m", "role", "worker")
			o.Annotations = map[string]string{"note": "x"}
			o.Finalizers = []string{"teardown"}
			o.Status = json.RawMessage(`{"stage":"running"}`)
			f.create(o)
			if o.UID == "" || o.Generation != 1 || o.Revision != f.revision() || o.CreatedAt.Before(before) || !o.UpdatedAt.Equal(o.CreatedAt) {
				t.Errorf("the created object is not complete: %+v", o)
			}
			if diff := cmp.Diff(o, f.get("machine", "m")); diff != "" {
				t.Errorf("stored is not what create answered (-answered +stored):\n%s", diff)
			}
			f.reopen()
			if diff := cmp.Diff(o, f.get("machine", "m")); diff != "" {
				t.Errorf("not the same after a restart (-answered +stored):\n%s", diff)
			}
		},
		"CreateKeepsAGivenUID": func(t *testing.T, f *fixture) {
			o := tenant("a")
			o.UID = "mine"
			f.create(o)
			if got := f.get("tenant", "a").UID; got != "mine" {
				t.Errorf("UID %q, want mine", got)
			}
		},
		"CreateOfATakenNameIsRefused": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			f.create(machine("a"))
			err := f.Update(ctx, func(tx store.Tx) error { return tx.Create(tenant("a")) })
			if !errors.Is(err, store.ErrExists) {
				t.Errorf("got %v, want ErrExists", err)
			}
		},
		"ARefusedObjectIsLeftAsItWas": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			o := tenant("a")
			_ = f.Update(ctx, func(tx store.Tx) error { return tx.Create(o) })
			if diff := cmp.Diff(tenant("a"), o); diff != "" {
				t.Errorf("a refused create changed its object:\n%s", diff)
			}
		},
		"WhatIsNotThereIsNotFound": func(t *testing.T, f *fixture) {
			f.view(func(r store.Reader) error {
				if _, err := r.Get("tenant", "a"); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("get: %v, want ErrNotFound", err)
				}
				return nil
			})
			for name, do := range map[string]func(store.Tx) error{
				"update": func(tx store.Tx) error { return tx.Update(tenant("a")) },
				"delete": func(tx store.Tx) error { _, err := tx.Delete("tenant", "a", 0); return err },
			} {
				if err := f.Update(ctx, do); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("%s: %v, want ErrNotFound", name, err)
				}
			}
		},
		"UndeclaredKindsAreErrors": func(t *testing.T, f *fixture) {
			if err := f.Update(ctx, func(tx store.Tx) error { return tx.Create(&store.Object{Kind: "ghost", Name: "a"}) }); err == nil {
				t.Error("an object of an undeclared kind was stored")
			}
			if _, err := f.Watch(ctx, 0, store.Query{Kind: "ghost"}); err == nil {
				t.Error("an undeclared kind can be watched")
			}
		},
		"WhatIsNotJSONIsRefused": func(t *testing.T, f *fixture) {
			for _, o := range []*store.Object{
				{Kind: "tenant", Name: "a", Spec: json.RawMessage(`{`)},
				{Kind: "tenant", Name: "a", Status: json.RawMessage(`{} x`)},
			} {
				if err := f.Update(ctx, func(tx store.Tx) error { return tx.Create(o) }); err == nil {
					t.Errorf("stored spec %q, status %q", o.Spec, o.Status)
				}
			}
		},
		"UpdateOfAStaleRevisionIsAConflict": func(t *testing.T, f *fixture) {
			stale := f.create(tenant("a")).Clone()
			f.change("tenant", "a", func(o *store.Object) { o.Spec = json.RawMessage(`{"size":2}`) })
			err := f.Update(ctx, func(tx store.Tx) error { return tx.Update(stale) })
			if !errors.Is(err, store.ErrConflict) {
				t.Errorf("got %v, want ErrConflict", err)
			}
			if err := f.Update(ctx, func(tx store.Tx) error { return tx.Update(tenant("a")) }); !errors.Is(err, store.ErrConflict) {
				t.Errorf("without a revision: got %v, want ErrConflict", err)
			}
		},
		"GenerationFollowsTheSpecAlone": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			f.change("tenant", "a", func(o *store.Object) { o.Status = json.RawMessage(`{"phase":"forming"}`) })
			o := f.change("tenant", "a", func(o *store.Object) { o.Labels = map[string]string{"a": "b"} })
			if o.Generation != 1 {
				t.Errorf("generation %d after changes beside the spec, want 1", o.Generation)
			}
			o = f.change("tenant", "a", func(o *store.Object) { o.Spec = json.RawMessage(`{"size":2}`) })
			if o.Generation != 2 {
				t.Errorf("generation %d after a change of the spec, want 2", o.Generation)
			}
		},
		"UpdateKeepsWhatIsTheStores": func(t *testing.T, f *fixture) {
			made := f.create(tenant("a")).Clone()
			got := f.change("tenant", "a", func(o *store.Object) {
				o.UID, o.Generation = "forged", 99
				o.CreatedAt = time.Now().Add(time.Hour)
				o.DeletionTimestamp = &o.CreatedAt
				o.Status = json.RawMessage(`{}`)
			})
			if got.UID != made.UID || got.Generation != 1 || !got.CreatedAt.Equal(made.CreatedAt) || got.Deleting() {
				t.Errorf("an update changed what is the store's: %+v", got)
			}
			if diff := cmp.Diff(got, f.get("tenant", "a")); diff != "" {
				t.Errorf("stored is not what update answered (-answered +stored):\n%s", diff)
			}
		},
		"AnUpdateThatChangesNothingIsNone": func(t *testing.T, f *fixture) {
			made := f.create(tenant("a")).Clone()
			got := f.change("tenant", "a", func(o *store.Object) { o.Labels = map[string]string{} })
			if got.Revision != made.Revision || f.revision() != made.Revision || !got.UpdatedAt.Equal(made.UpdatedAt) {
				t.Errorf("revision %d, store at %d, want %d", got.Revision, f.revision(), made.Revision)
			}
		},
		"CallersOwnTheirObjects": func(t *testing.T, f *fixture) {
			w := f.watch(0, store.Query{Kind: "tenant"})
			f.next(w)
			o := tenant("a")
			o.Labels = map[string]string{"a": "b"}
			f.create(o)
			o.Labels["a"] = "changed"
			copy(o.Spec, `XXXXXX`)
			got := f.next(w).Events[0].Object
			if got.Labels["a"] != "b" || string(got.Spec) != `{"size":1}` {
				t.Errorf("a caller's change reached a watcher: %v %s", got.Labels, got.Spec)
			}
		},
	}.run(t, b)
}

func testDeletion(t *testing.T, b Backend) {
	cases{
		"WithoutFinalizersTheObjectGoes": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			var last *store.Object
			f.update(func(tx store.Tx) (err error) {
				last, err = tx.Delete("tenant", "a", 0)
				return err
			})
			if !last.Deleting() || last.Revision != f.revision() {
				t.Errorf("delete answered %+v at %d", last, f.revision())
			}
			if got := f.names(store.Query{Kind: "tenant"}); len(got) != 0 {
				t.Errorf("still there: %v", got)
			}
		},
		"FinalizersHoldTheObject": func(t *testing.T, f *fixture) {
			o := tenant("a")
			o.Finalizers = []string{"x", "y"}
			f.create(o)
			f.remove("tenant", "a")
			held := f.get("tenant", "a")
			if !held.Deleting() || held.Generation != 1 {
				t.Fatalf("want it deleting in generation 1: %+v", held)
			}
			f.remove("tenant", "a")
			if again := f.get("tenant", "a"); again.Revision != held.Revision {
				t.Errorf("deleting twice made a change: revision %d, was %d", again.Revision, held.Revision)
			}
			f.change("tenant", "a", func(o *store.Object) { o.Finalizers = []string{"y"} })
			f.change("tenant", "a", func(o *store.Object) { o.Finalizers = nil })
			if got := f.names(store.Query{Kind: "tenant"}); len(got) != 0 {
				t.Errorf("still there: %v", got)
			}
		},
		"RemovingFinalizersDeletesOnlyWhatIsDeleting": func(t *testing.T, f *fixture) {
			o := tenant("a")
			o.Finalizers = []string{"x"}
			f.create(o)
			f.change("tenant", "a", func(o *store.Object) { o.Finalizers = nil })
			f.get("tenant", "a")
		},
		"AStaleRevisionIsAConflict": func(t *testing.T, f *fixture) {
			made := f.create(tenant("a")).Revision
			now := f.change("tenant", "a", func(o *store.Object) { o.Status = json.RawMessage(`{}`) }).Revision
			err := f.Update(ctx, func(tx store.Tx) error { _, err := tx.Delete("tenant", "a", made); return err })
			if !errors.Is(err, store.ErrConflict) {
				t.Errorf("got %v, want ErrConflict", err)
			}
			f.update(func(tx store.Tx) error { _, err := tx.Delete("tenant", "a", now); return err })
		},
		"ANameCanBeUsedAgain": func(t *testing.T, f *fixture) {
			first := f.create(tenant("a")).UID
			f.remove("tenant", "a")
			again := f.create(tenant("a"))
			if again.UID == first || again.Generation != 1 {
				t.Errorf("the new object has UID %s (the old: %s) and generation %d", again.UID, first, again.Generation)
			}
		},
		"ItsLabelsGoToo": func(t *testing.T, f *fixture) {
			f.create(machine("m", "role", "worker"))
			f.remove("machine", "m")
			f.create(machine("m"))
			if got := f.names(store.Query{Kind: "machine", Selector: selector(t, "role=worker")}); len(got) != 0 {
				t.Errorf("found by a label of its predecessor: %v", got)
			}
		},
	}.run(t, b)
}
