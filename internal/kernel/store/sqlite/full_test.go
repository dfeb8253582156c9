package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

var tenants = []store.Kind{{Name: "tenant", Version: 1}}

// smallDisk mounts a file system of a few MiB, or skips the test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mounting a small disk needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestAFullDiskIsToldAndSurvived(t *testing.T) {
	ctx := context.Background()
	dir := smallDisk(t, "8m")
	path, ballast := filepath.Join(dir, "store.db"), filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(ctx, path, sqlite.Options{Kinds: tenants})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	d := &disk{store: s, answered: map[string]bool{}}

	refused := d.fill(t)
	if refused == 0 {
		t.Fatal("the disk was not filled")
	}
	d.check(t)
	// Reading goes on, and what does not fit is refused again.
	if err := d.write("still-full"); err != nil && !errors.Is(err, store.ErrFull) {
		t.Errorf("on a full disk: %v, want ErrFull or success", err)
	}

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := d.write(fmt.Sprintf("room-again-%d", i)); err != nil {
			t.Fatalf("with room again: %v", err)
		}
	}
	d.check(t)

	if d.fill(t) == 0 {
		t.Fatal("the disk was not filled a second time")
	}
	if err := s.Close(); err != nil {
		t.Logf("close on a full disk: %v", err)
	}
	s, err = sqlite.Open(ctx, path, sqlite.Options{Kinds: tenants})
	if err != nil {
		t.Fatalf("open on a full disk: %v", err)
	}
	d.store = s
	d.check(t)
}

// disk is a store on a small disk, with the names whose creation was answered with success, or otherwise.
type disk struct {
	store    store.Store
	mu       sync.Mutex
	answered map[string]bool
}

// write creates two objects of 1 KiB in one transaction.
func (d *disk) write(name string) error {
	body := append(append([]byte{'"'}, bytes.Repeat([]byte{'x'}, 1024)...), '"')
	err := d.store.Update(context.Background(), func(tx store.Tx) error {
		return errors.Join(
			tx.Create(&store.Object{Kind: "tenant", Name: name + "/left", Spec: body}),
			tx.Create(&store.Object{Kind: "tenant", Name: name + "/right", Spec: body}),
		)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answered[name] = err == nil
	return err
}

// fill writes from many sides until each has been refused a few times. It answers how many were.
func (d *disk) fill(t *testing.T) int {
	t.Helper()
	var writing sync.WaitGroup
	var mu sync.Mutex
	total := 0
	prefix := fmt.Sprintf("fill-%d", len(d.answered))
	for i := range 8 {
		writing.Go(func() {
			refused := 0
			for j := 0; j < 2000 && refused < 5; j++ {
				err := d.write(fmt.Sprintf("%s-%d-%d", prefix, i, j))
				if err == nil {
					continue
				}
				refused++
				if !errors.Is(err, store.ErrFull) {
					t.Errorf("on a full disk: %v, want ErrFull", err)
				}
			}
			mu.Lock()
			total += refused
			mu.Unlock()
		})
	}
	writing.Wait()
	return total
}

// check compares what is stored with what was answered.
func (d *disk) check(t *testing.T) {
	t.Helper()
	stored := map[string]int{}
	if err := d.store.View(context.Background(), func(r store.Reader) error {
		l, err := r.List(store.Query{Kind: "tenant"})
		if err != nil {
			return err
		}
		for _, o := range l.Objects {
			stored[filepath.Dir(o.Name)]++
		}
		return nil
	}); err != nil {
		t.Fatalf("read on a full disk: %v", err)
	}
	for name, success := range d.answered {
		if want := map[bool]int{true: 2, false: 0}[success]; stored[name] != want {
			t.Errorf("%s was answered with success %v; %d of its objects are stored", name, success, stored[name])
		}
	}
}
