package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/clienttest"
	"freehold.dev/freehold/internal/hub"
)

func hubServer(t *testing.T) (*clienttest.Server, client.Hub) {
	s := clienttest.New(t)
	s.AddNode(client.HubNode{NodeID: "edge", State: hub.PresenceOnline})
	return s, s.Client(t).Hub()
}

func run(t *testing.T, h client.Hub, stream string, o client.MutationOptions) *client.StreamAccepted {
	t.Helper()
	a, err := h.SetDesiredState(t.Context(), "edge", stream, client.DesiredState{State: hub.Running, ConfigVersion: "cfg-1"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// An answer that is lost, and a server that cannot serve for a moment, make a mutation neither fail nor happen twice.
func TestAMutationIsRepeatedUnderItsKey(t *testing.T) {
	s, h := hubServer(t)
	var keys []string
	lost := false
	s.Before(func(r *http.Request) {
		if r.Method == http.MethodPut {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			if !lost {
				lost = true
				s.FailNext(0)
			}
		}
	})
	s.FailNext(503)
	if a := run(t, h, "orders", client.MutationOptions{}); a.Generation != 1 {
		t.Fatalf("generation %d", a.Generation)
	}
	if len(keys) < 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Fatalf("keys of the tries: %q", keys)
	}
	run(t, h, "orders", client.MutationOptions{})
	if keys[len(keys)-1] == keys[0] {
		t.Fatal("another call has the same key")
	}
	a := run(t, h, "orders", client.MutationOptions{IdempotencyKey: "mine"})
	if again := run(t, h, "orders", client.MutationOptions{IdempotencyKey: "mine"}); again.IntentID != a.IntentID {
		t.Fatalf("the key's second use made %s, the first %s", again.IntentID, a.IntentID)
	}
}

func TestAMutationIsForTheGenerationThatItNames(t *testing.T) {
	_, h := hubServer(t)
	zero, one := int64(0), int64(1)
	run(t, h, "orders", client.MutationOptions{IfGeneration: &zero})
	run(t, h, "orders", client.MutationOptions{IfGeneration: &one})
	_, err := h.SetDesiredState(t.Context(), "edge", "orders", client.DesiredState{State: hub.Stopped}, client.MutationOptions{IfGeneration: &one})
	var e *client.Error
	if !client.IsGenerationConflict(err) || !errors.As(err, &e) || e.Code != http.StatusPreconditionFailed ||
		e.CorrelationID != "corr-1" || string(e.Details) != `{"current_generation":2}` {
		t.Fatalf("%v: %+v", err, e)
	}
}

func TestListsSpanPages(t *testing.T) {
	s, h := hubServer(t)
	for i := range 230 {
		s.AddNode(client.HubNode{NodeID: fmt.Sprintf("n-%03d", i), State: hub.PresenceOnline})
	}
	nodes, err := h.Nodes(t.Context())
	if err != nil || len(nodes) != 231 || nodes[230].NodeID != "n-229" {
		t.Fatalf("%d nodes: %v", len(nodes), err)
	}
	for range 5 {
		run(t, h, "orders", client.MutationOptions{})
	}
	ops, err := h.Operations(t.Context(), client.OperationFilter{Node: "edge", State: string(hub.Accepted)}, 3)
	if err != nil || len(ops) != 1 || ops[0].Generation != 5 {
		t.Fatalf("%+v: %v", ops, err)
	}
	if ops, err = h.Operations(t.Context(), client.OperationFilter{Resource: "orders"}, 3); err != nil || len(ops) != 3 || ops[0].Generation != 5 {
		t.Fatalf("%+v: %v", ops, err)
	}
}

// A node that comes and goes between two pages makes the list be read again: none of the others is missing.
func TestAListThatMovesIsReadAgain(t *testing.T) {
	s, h := hubServer(t)
	for i := range 150 {
		s.AddNode(client.HubNode{NodeID: fmt.Sprintf("n-%03d", i)})
	}
	moved := false
	s.Before(func(r *http.Request) {
		if r.URL.Query().Get("page") == "2" && !moved {
			moved = true
			s.RemoveNode("n-000")
		}
	})
	nodes, err := h.Nodes(t.Context())
	if err != nil || len(nodes) != 150 {
		t.Fatalf("%d nodes: %v", len(nodes), err)
	}
}

func TestFaultsOfAConfigurationHaveTheirPlace(t *testing.T) {
	s, h := hubServer(t)
	faults := []hub.Lint{{Line: 3, Column: 5, Message: "field inptu not recognised"}}
	s.LintWith(func(c client.ConfigContent) []hub.Lint {
		if c.Content == "bad" {
			return faults
		}
		return nil
	})
	_, err := h.PublishConfig(t.Context(), client.ConfigContent{Engine: hub.EngineBenthos, Content: "bad"}, client.MutationOptions{})
	if diff := cmp.Diff(faults, client.Lints(err)); diff != "" {
		t.Error(diff)
	}
	v, err := h.ValidateConfig(t.Context(), client.ConfigContent{Engine: hub.EngineBenthos, Content: "bad"})
	if err != nil || v.Valid || len(v.Lints) != 1 {
		t.Fatalf("%+v: %v", v, err)
	}
	first, err := h.PublishConfig(t.Context(), client.ConfigContent{Engine: hub.EngineBenthos, Content: "good"}, client.MutationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := h.PublishConfig(t.Context(), client.ConfigContent{Engine: hub.EngineBenthos, Content: "good"}, client.MutationOptions{}); err != nil || again.ConfigVersion != first.ConfigVersion {
		t.Fatalf("%+v: %v", again, err)
	}
	if got, err := h.Config(t.Context(), first.ConfigVersion); err != nil || got.Content != "good" {
		t.Fatalf("%+v: %v", got, err)
	}
}

// seen follows a watch in the background.
func seen(ctx context.Context, h client.Hub, o client.StreamWatch) <-chan string {
	out := make(chan string, 100)
	go func() {
		defer close(out)
		for e, err := range h.Watch(ctx, o) {
			switch {
			case err != nil:
				out <- "error"
			case e.Type == client.Bookmark:
				out <- e.Type
			default:
				out <- e.Type + " " + e.Object.StreamID + " " + string(e.Object.Convergence)
			}
		}
	}()
	return out
}

func expect(t *testing.T, events <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-events:
			if got != w {
				t.Fatalf("%q, expected %q", got, w)
			}
		case <-time.After(60 * time.Second):
			t.Fatalf("waited in vain for %q", w)
		}
	}
}

func TestStreamWatchSurvivesTheConnection(t *testing.T) {
	s, h := hubServer(t)
	run(t, h, "orders", client.MutationOptions{})
	events := seen(t.Context(), h, client.StreamWatch{Node: "edge"})
	expect(t, events, "ADDED orders pending", "BOOKMARK")
	s.Converge("edge", "orders")
	expect(t, events, "MODIFIED orders in_sync")
	s.DropStreams()
	run(t, h, "other", client.MutationOptions{})
	expect(t, events, "ADDED other pending")
	s.Before(func(*http.Request) { // while nobody watches
		s.Before(nil)
		s.Converge("edge", "other")
		s.Compact()
	})
	s.DropStreams()
	expect(t, events, "MODIFIED orders in_sync", "MODIFIED other in_sync", "BOOKMARK")
}

func TestStreamWatchForgetsWhatLeavesIt(t *testing.T) {
	s, h := hubServer(t)
	run(t, h, "orders", client.MutationOptions{})
	run(t, h, "other", client.MutationOptions{})
	events := seen(t.Context(), h, client.StreamWatch{Convergence: hub.Pending})
	expect(t, events, "ADDED orders pending", "ADDED other pending", "BOOKMARK")
	s.Converge("edge", "orders")
	expect(t, events, "DELETED orders in_sync")
	s.Before(func(*http.Request) { // while nobody watches
		s.Before(nil)
		s.Converge("edge", "other")
		s.Compact()
	})
	s.DropStreams()
	expect(t, events, "DELETED other pending", "BOOKMARK")
}
