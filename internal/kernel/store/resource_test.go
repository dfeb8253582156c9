package store_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

type (
	diskSpec   struct{ SizeGiB int }
	diskStatus struct{ Phase string }
	disk       = store.Resource[diskSpec, diskStatus]
)

var disks = store.Type[diskSpec, diskStatus]{Kind: store.Kind{Name: "disk", Version: 1}}

func openDisks(t *testing.T) store.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: []store.Kind{disks.Kind}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestResourcesComeBackAsTheyWereWritten(t *testing.T) {
	ctx := context.Background()
	s := openDisks(t)
	d := &disk{Spec: diskSpec{SizeGiB: 3}}
	d.Name, d.Labels = "a", map[string]string{"tier": "fast"}
	if err := s.Update(ctx, func(tx store.Tx) error { return disks.Create(tx, d) }); err != nil {
		t.Fatal(err)
	}
	d.Status.Phase = "ready"
	if err := s.Update(ctx, func(tx store.Tx) error { return disks.Update(tx, d) }); err != nil {
		t.Fatal(err)
	}
	if err := s.View(ctx, func(r store.Reader) error {
		got, err := disks.Get(r, "a")
		if err != nil {
			return err
		}
		if diff := cmp.Diff(d, got); diff != "" {
			t.Errorf("(-written +read):\n%s", diff)
		}
		all, total, err := disks.List(r, store.Query{})
		if err == nil && (total != 1 || len(all) != 1 || all[0].UID != d.UID) {
			t.Errorf("listed %d of %d", len(all), total)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestADecodedResourceIsTheCallersOwn(t *testing.T) {
	o := &store.Object{
		Kind: "disk", Name: "a", Finalizers: []string{"x"},
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, Spec: []byte(`{"SizeGiB":1}`),
	}
	before := o.Clone()
	d, err := disks.Decode(o)
	if err != nil {
		t.Fatal(err)
	}
	d.Finalizers[0], d.Labels["a"], d.Annotations["c"] = "changed", "changed", "changed"
	if diff := cmp.Diff(before, o); diff != "" {
		t.Errorf("a change of the resource reached the object:\n%s", diff)
	}
}

func TestAResourceThatIsNotItsTypeIsAnError(t *testing.T) {
	for _, o := range []*store.Object{
		{Kind: "disk", Name: "a", Spec: []byte(`{"SizeGiB":"three"}`)},
		{Kind: "disk", Name: "a", Status: []byte(`[]`)},
	} {
		if _, err := disks.Decode(o); err == nil {
			t.Errorf("decoded %s %s", o.Spec, o.Status)
		}
	}
}

func TestARefusedWriteKeepsTheResource(t *testing.T) {
	ctx := context.Background()
	s := openDisks(t)
	d := &disk{Metadata: store.Metadata{Name: "a"}}
	err := s.Update(ctx, func(tx store.Tx) error { return disks.Update(tx, d) })
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if diff := cmp.Diff(&disk{Metadata: store.Metadata{Name: "a"}}, d); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}
