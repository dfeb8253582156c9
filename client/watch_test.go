package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/clienttest"
	"freehold.dev/freehold/internal/cloud"
)

func machine(s *clienttest.Server, name, tenant string, stage cloud.Stage) {
	labels := map[string]string{}
	if tenant != "" {
		labels[cloud.LabelTenant] = tenant
	}
	s.Put(client.KindMachine, "", client.Metadata{Name: name, Labels: labels}, client.MachineSpec{}, cloud.MachineStatus{Stage: stage})
}

// follow runs a watch and tells its events as text: "ADDED m1 ready".
type follower struct {
	events chan string
	err    chan error
}

func follow(t *testing.T, r client.Collection[client.MachineSpec, cloud.MachineStatus], o client.WatchOptions) follower {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	f := follower{make(chan string, 1000), make(chan error, 1)}
	go func() {
		defer close(f.events)
		for e, err := range r.Watch(ctx, o) {
			if err != nil {
				f.err <- err
				return
			}
			if e.Type == client.Bookmark {
				f.events <- client.Bookmark
				continue
			}
			f.events <- fmt.Sprintf("%s %s %s", e.Type, e.Object.Metadata.Name, e.Object.Status.Stage)
		}
		f.err <- nil
	}()
	return f
}

func (f follower) expect(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	deadline := time.After(60 * time.Second)
	for len(got) < len(want) {
		select {
		case e, ok := <-f.events:
			if !ok {
				t.Fatalf("the watch ended: %v; after %q", <-f.err, got)
			}
			got = append(got, e)
		case <-deadline:
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func (f follower) ends(t *testing.T) error {
	t.Helper()
	select {
	case err := <-f.err:
		return err
	case <-time.After(60 * time.Second):
		t.Fatal("the watch did not end")
		return nil
	}
}

func await(t *testing.T, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !met(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func TestWatchReportsWhatIsThereAndWhatChanges(t *testing.T) {
	s := clienttest.New(t)
	machine(s, "m1", "", cloud.StageInitializing)
	f := follow(t, client.Machines(s.Client(t)), client.WatchOptions{})
	f.expect(t, "ADDED m1 initializing", "BOOKMARK")
	machine(s, "m2", "", cloud.StageReady)
	machine(s, "m1", "", cloud.StageReady)
	s.Remove(client.KindMachine, "", "m2")
	f.expect(t, "ADDED m2 ready", "MODIFIED m1 ready", "DELETED m2 ready")
}

func TestWatchResumesWhereItsConnectionEnded(t *testing.T) {
	s := clienttest.New(t)
	machine(s, "m1", "", cloud.StageInitializing)
	f := follow(t, client.Machines(s.Client(t)), client.WatchOptions{})
	f.expect(t, "ADDED m1 initializing", "BOOKMARK")
	s.FailNext(503, 0, 0)
	s.DropStreams()
	machine(s, "m1", "", cloud.StageInstalling)
	machine(s, "m1", "", cloud.StageReady)
	f.expect(t, "MODIFIED m1 installing", "MODIFIED m1 ready")
}

func TestWatchReadsAgainWhatWasCompacted(t *testing.T) {
	s := clienttest.New(t)
	machine(s, "m1", "", cloud.StageInitializing)
	machine(s, "m2", "", cloud.StageInitializing)
	f := follow(t, client.Machines(s.Client(t)), client.WatchOptions{})
	f.expect(t, "ADDED m1 initializing", "ADDED m2 initializing", "BOOKMARK")
	s.FailNext(503)
	s.DropStreams()
	machine(s, "m2", "", cloud.StageReady)
	machine(s, "m3", "", cloud.StageReady)
	s.Remove(client.KindMachine, "", "m1")
	s.Compact()
	f.expect(t, "MODIFIED m2 ready", "ADDED m3 ready", "DELETED m1 initializing", "BOOKMARK")
	machine(s, "m3", "", cloud.StageOff)
	f.expect(t, "MODIFIED m3 off")
}

func TestWatchOfATenantsMachinesSeesThemComeAndLeave(t *testing.T) {
	s := clienttest.New(t)
	machine(s, "m1", "prod", cloud.StageReady)
	machine(s, "m2", "", cloud.StageReady)
	f := follow(t, client.TenantMachines(s.Client(t), "prod"), client.WatchOptions{})
	f.expect(t, "ADDED m1 ready", "BOOKMARK")
	machine(s, "m2", "prod", cloud.StageReady)
	machine(s, "m1", "", cloud.StageReady)
	f.expect(t, "ADDED m2 ready", "DELETED m1 ready")
}

func TestWatchOfOneEndsWithIt(t *testing.T) {
	s := clienttest.New(t)
	machine(s, "m1", "", cloud.StageReady)
	machine(s, "m2", "", cloud.StageReady)
	f := follow(t, client.Machines(s.Client(t)), client.WatchOptions{Name: "m1"})
	f.expect(t, "ADDED m1 ready", "BOOKMARK")
	machine(s, "m2", "", cloud.StageOff)
	s.Remove(client.KindMachine, "", "m1")
	f.expect(t, "DELETED m1 ready")
	if err := f.ends(t); err != nil {
		t.Fatal(err)
	}
	f = follow(t, client.Machines(s.Client(t)), client.WatchOptions{Name: "m1"})
	if err := f.ends(t); !client.IsNotFound(err) {
		t.Fatalf("a missing one: %v, want NotFound", err)
	}
}

func TestWatchOfOneSurvivesCompaction(t *testing.T) {
	s := clienttest.New(t)
	machine(s, "m1", "", cloud.StageReady)
	s.Compact()
	f := follow(t, client.Machines(s.Client(t)), client.WatchOptions{Name: "m1"})
	f.expect(t, "ADDED m1 ready", "BOOKMARK")
	await(t, func() bool { return s.Streams() == 1 })
	s.FailNext(503)
	s.DropStreams()
	machine(s, "m1", "", cloud.StageOff)
	s.Compact()
	f.expect(t, "MODIFIED m1 off", "BOOKMARK")
	s.Remove(client.KindMachine, "", "m1")
	f.expect(t, "DELETED m1 off")
}

func TestWatchWithoutEventsReadsAgain(t *testing.T) {
	s := clienttest.New(t)
	s.Events = false
	c := s.Client(t)
	s.Put(client.KindTenant, "", client.Metadata{Name: "a"}, cloud.TenantSpec{}, cloud.TenantStatus{})
	seen := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for e, err := range client.Tenants(c).Watch(ctx, client.WatchOptions{Poll: time.Millisecond}) {
			if err == nil && e.Type != client.Bookmark {
				seen <- e.Type + " " + e.Object.Metadata.Name
			}
		}
	}()
	if got := <-seen; got != "ADDED a" {
		t.Fatal(got)
	}
	s.Put(client.KindTenant, "", client.Metadata{Name: "a"}, cloud.TenantSpec{TalosVersion: "1.12.6"}, cloud.TenantStatus{})
	if got := <-seen; got != "MODIFIED a" {
		t.Fatal(got)
	}
	s.Remove(client.KindTenant, "", "a")
	if got := <-seen; got != "DELETED a" {
		t.Fatal(got)
	}
}

func TestWatchWithASelectorSeesWhatEntersAndLeavesIt(t *testing.T) {
	s := clienttest.New(t)
	s.Put(client.KindTenant, "", client.Metadata{Name: "prod"}, cloud.TenantSpec{}, cloud.TenantStatus{})
	seen := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := s.Client(t)
	go func() {
		for e, err := range client.NodeGroups(c, "prod").Watch(ctx, client.WatchOptions{Selector: "a=b"}) {
			if err != nil {
				seen <- err.Error()
				return
			}
			seen <- e.Type + " " + e.Object.Metadata.Name
		}
	}()
	if got := <-seen; got != "BOOKMARK " {
		t.Fatal(got)
	}
	machine(s, "m1", "prod", cloud.StageReady)
	group := func(labels map[string]string) {
		s.Put(client.KindNodeGroup, "prod", client.Metadata{Name: "workers", Labels: labels}, cloud.NodeGroupSpec{}, cloud.NodeGroupStatus{})
	}
	group(map[string]string{"a": "c"})
	group(map[string]string{"a": "b"})
	if got := <-seen; got != "ADDED workers" {
		t.Fatal(got)
	}
	group(map[string]string{})
	if got := <-seen; got != "DELETED workers" {
		t.Fatal(got)
	}
}

func TestWatchEndsWithItsContextOrRefusal(t *testing.T) {
	s := clienttest.New(t)
	machine(s, "m1", "", cloud.StageReady)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("enough")
	for _, err := range client.Machines(s.Client(t)).Watch(ctx, client.WatchOptions{}) {
		if err != nil {
			if !errors.Is(err, why) {
				t.Fatal(err)
			}
			break
		}
		cancel(why)
	}
	f := follow(t, client.Machines(s.Client(t)), client.WatchOptions{})
	f.expect(t, "ADDED m1 ready", "BOOKMARK")
	s.FailNext(401)
	s.DropStreams()
	if err := f.ends(t); !client.IsUnauthorized(err) {
		t.Fatal(err)
	}
}
