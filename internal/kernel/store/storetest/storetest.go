// Package storetest is the contract of a store's backend as tests. A backend passes all of it.
package storetest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/kernel/store"
)

// Backend is what the suite tests.
type Backend struct {
	// Open opens the store that lives in a folder, and makes it if there is none.
	Open func(ctx context.Context, folder string, kinds []store.Kind) (store.Store, error)
}

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// group is a part of the contract.
type group struct {
	name string
	run  func(*testing.T, Backend)
}

// Run runs the whole contract.
func Run(t *testing.T, b Backend) {
	runGroups(t, b, []group{
		{"Objects", testObjects},
		{"Deletion", testDeletion},
		{"Transactions", testTransactions},
		{"Lists", testLists},
		{"Claims", testClaims},
		{"Blobs", testBlobs},
		{"Tables", testTables},
		{"Watches", testWatches},
		{"Compaction", testCompaction},
		{"Kinds", testKinds},
		{"Lifecycle", testLifecycle},
		{"Concurrency", testConcurrency},
		{"Properties", testProperties},
		{"Crashes", testCrashes},
	})
}

// RunWatches runs the part of the contract that rests on how watchers read the log, for a backend that can read it
// in more than one way.
func RunWatches(t *testing.T, b Backend) {
	runGroups(t, b, []group{
		{"Watches", testWatches},
		{"Compaction", testCompaction},
		{"Concurrency", testConcurrency},
		{"Properties", testProperties},
	})
}

func runGroups(t *testing.T, b Backend, groups []group) {
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) { g.run(t, b) })
	}
}

// cases runs each named test on an empty store of its own.
type cases map[string]func(*testing.T, *fixture)

func (c cases) run(t *testing.T, b Backend) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		t.Run(name, func(t *testing.T) { c[name](t, newFixture(t, b)) })
	}
}

// fixture is a store under test, with shorthands that fail the test.
type fixture struct {
	t       testing.TB
	backend Backend
	folder  string
	kinds   []store.Kind
	store.Store
}

var ctx = context.Background()

// testedKinds: machines are indexed by the owners that an annotation names.
func testedKinds() []store.Kind {
	return []store.Kind{
		{Name: "tenant", Version: 1},
		{Name: "machine", Version: 1, Indexes: map[string]func(*store.Object) []string{"owner": owners}},
	}
}

func owners(o *store.Object) []string {
	return strings.Fields(o.Annotations["owners"])
}

func newFixture(t testing.TB, b Backend) *fixture {
	t.Helper()
	f := &fixture{t: t, backend: b, folder: t.TempDir(), kinds: testedKinds()}
	f.open()
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	s, err := f.backend.Open(ctx, f.folder, f.kinds)
	if err != nil {
		f.t.Fatalf("open: %v", err)
	}
	f.Store = s
}

// reopen closes the store and opens it again.
func (f *fixture) reopen() {
	f.t.Helper()
	if err := f.Close(); err != nil {
		f.t.Fatalf("close: %v", err)
	}
	f.open()
}

// update runs an update that must succeed.
func (f *fixture) update(do func(store.Tx) error) {
	f.t.Helper()
	if err := f.Update(ctx, do); err != nil {
		f.t.Fatalf("update: %v", err)
	}
}

// view runs a view that must succeed.
func (f *fixture) view(do func(store.Reader) error) {
	f.t.Helper()
	if err := f.View(ctx, do); err != nil {
		f.t.Fatalf("view: %v", err)
	}
}

// create stores an object in an update of its own and answers it.
func (f *fixture) create(o *store.Object) *store.Object {
	f.t.Helper()
	f.update(func(tx store.Tx) error { return tx.Create(o) })
	return o
}

// change reads an object, changes it and stores it.
func (f *fixture) change(kind, name string, edit func(*store.Object)) *store.Object {
	f.t.Helper()
	var changed *store.Object
	f.update(func(tx store.Tx) error {
		o, err := tx.Get(kind, name)
		if err != nil {
			return err
		}
		changed = o.Clone()
		edit(changed)
		return tx.Update(changed)
	})
	return changed
}

// remove asks for an object's deletion.
func (f *fixture) remove(kind, name string) {
	f.t.Helper()
	f.update(func(tx store.Tx) error {
		_, err := tx.Delete(kind, name, 0)
		return err
	})
}

// get reads an object that must be there.
func (f *fixture) get(kind, name string) *store.Object {
	f.t.Helper()
	var found *store.Object
	f.view(func(r store.Reader) (err error) {
		found, err = r.Get(kind, name)
		return err
	})
	return found
}

func (f *fixture) revision() (n int64) {
	f.t.Helper()
	f.view(func(r store.Reader) error {
		n = r.Revision()
		return nil
	})
	return n
}

func (f *fixture) list(q store.Query) *store.List {
	f.t.Helper()
	var l *store.List
	f.view(func(r store.Reader) (err error) {
		l, err = r.List(q)
		return err
	})
	return l
}

func (f *fixture) names(q store.Query) []string {
	f.t.Helper()
	return names(f.list(q).Objects)
}

func (f *fixture) watch(since int64, queries ...store.Query) store.Watcher {
	f.t.Helper()
	w, err := f.Watch(ctx, since, queries...)
	if err != nil {
		f.t.Fatalf("watch after %d: %v", since, err)
	}
	f.t.Cleanup(w.Close)
	return w
}

// next reads a batch that must come.
func (f *fixture) next(w store.Watcher) store.Batch {
	f.t.Helper()
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := w.Next(patient)
	if err != nil {
		f.t.Fatalf("next: %v", err)
	}
	return b
}

func names(objects []*store.Object) []string {
	all := []string{}
	for _, o := range objects {
		all = append(all, o.Name)
	}
	return all
}

func tenant(name string) *store.Object {
	return &store.Object{Kind: "tenant", Name: name, Spec: json.RawMessage(`{"size":1}`)}
}

// machine makes a machine with labels, given as key and value in turn.
func machine(name string, keysAndValues ...string) *store.Object {
	o := &store.Object{Kind: "machine", Name: name, Spec: json.RawMessage(`{}`)}
	for i := 0; i < len(keysAndValues); i += 2 {
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[keysAndValues[i]] = keysAndValues[i+1]
	}
	return o
}

func selector(t testing.TB, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatalf("selector %q: %v", text, err)
	}
	return s
}
