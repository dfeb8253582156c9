package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// ErrNotEnrolled means that the data folder has no node's identity.
var ErrNotEnrolled = errors.New("this node is not enrolled: run freehold-agent enroll, as freehold node register prints it")

// Identity is who the node is to its hub. The store's file is as secret as it.
type Identity struct {
	NodeID string `json:"node_id"`
	// Server, CAFile and Fingerprint are how to reach the hub.
	Server      string `json:"server"`
	CAFile      string `json:"ca_file,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	// Seed of the node's Ed25519 key.
	Seed              []byte `json:"seed"`
	RefreshCredential string `json:"refresh_credential"`
	// TokenHash is of the enrolment token that it was made with.
	TokenHash  string    `json:"token_hash,omitempty"`
	EnrolledAt time.Time `json:"enrolled_at"`
}

// Key is the node's key.
func (i *Identity) Key() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(i.Seed) }

var identities = store.Type[Identity, struct{}]{Kind: store.Kind{Name: "agentidentity", Version: 1}}

const (
	identityName = "node"
	// pendingName has the key of an enrolment whose answer was not kept yet.
	pendingName = "pending"
)

// loadIdentity answers who the node is, or ErrNotEnrolled.
func loadIdentity(ctx context.Context, s store.Store) (*Identity, error) {
	var out *Identity
	err := s.View(ctx, func(r store.Reader) error {
		found, err := identities.Get(r, identityName)
		if err == nil {
			out = &found.Spec
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrNotEnrolled
	}
	return out, err
}

func saveIdentity(ctx context.Context, s store.Store, name string, id Identity) error {
	return s.Update(ctx, func(tx store.Tx) error { return putIdentity(tx, name, id) })
}

func putIdentity(tx store.Tx, name string, id Identity) error {
	found, err := identities.Get(tx, name)
	if errors.Is(err, store.ErrNotFound) {
		return identities.Create(tx, &store.Resource[Identity, struct{}]{Metadata: store.Metadata{Name: name}, Spec: id})
	}
	if err != nil {
		return err
	}
	found.Spec = id
	return identities.Update(tx, found)
}
