package main

import (
	"testing"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/clienttest"
	"freehold.dev/freehold/internal/hub"
)

// A sandbox finds its node in whatever state the one before left it.
func TestTheLocalNodeIsRegisteredAtEachStart(t *testing.T) {
	s := clienttest.New(t)
	h := s.Client(t).Hub()
	for _, before := range []*client.HubNode{
		nil, {NodeID: localNode, State: hub.PresencePending}, {NodeID: localNode, State: hub.PresenceOffline}, {NodeID: localNode, State: hub.PresenceOffline, Deleting: true},
	} {
		s.RemoveNode(localNode)
		if before != nil {
			s.AddNode(*before)
		}
		token, err := registerLocalNode(t.Context(), h)
		if err != nil || token == "" {
			t.Fatalf("%+v: %q, %v", before, token, err)
		}
		if n, err := h.Node(t.Context(), localNode); err != nil || n.Deleting {
			t.Fatalf("%+v: then %+v, %v", before, n, err)
		}
	}
}
