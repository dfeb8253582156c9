package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// Enrolment is how a node becomes known to a hub.
type Enrolment struct {
	Server, NodeID, Token string
	// CAFile or Fingerprint say which certificate to trust; neither: the system's authorities do.
	CAFile, Fingerprint string
	Labels              map[string]string
}

// OtherNodeError means that the data folder is another node's.
type OtherNodeError struct{ Folder, Node string }

func (e *OtherNodeError) Error() string {
	return fmt.Sprintf("the folder %s is the data of node %s: use another one, or delete it", e.Folder, e.Node)
}

// openStore opens the database of a data folder. One that another process has open is an error that names it.
func (c *Config) openStore(ctx context.Context) (store.Store, error) {
	return sqlite.Open(ctx, c.database(), sqlite.Options{
		Kinds: Kinds(), Logger: c.Logger, Readers: 2, RecentBytes: 64 << 10,
		// Nobody watches this store: its log of changes is kept no longer than it has to.
		Keep: time.Minute, KeepEntries: 100,
	})
}

// Enrol makes the node known to its hub, and keeps who it is in the data folder. A lost answer loses nothing: the
// same token may be used again from the same folder.
func Enrol(ctx context.Context, c Config, e Enrolment) (*Identity, error) {
	if err := c.prepare(); err != nil {
		return nil, err
	}
	if _, err := c.engines(e.NodeID); err != nil {
		return nil, err
	}
	s, err := c.openStore(ctx)
	if err != nil {
		return nil, err
	}
	id, err := enrol(ctx, s, c, e)
	return id, errors.Join(err, s.Close())
}

func enrol(ctx context.Context, s store.Store, c Config, e Enrolment) (*Identity, error) {
	client, err := agentapi.New(agentapi.Options{Server: e.Server, CAFile: e.CAFile, Fingerprint: e.Fingerprint, UserAgent: userAgent(c.Version)})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	pending, boot, err := prepareEnrolment(ctx, s, c.Data, e)
	if err != nil {
		return nil, err
	}
	answer, err := client.Enrol(ctx, agentapi.EnrolRequest{
		NodeID: e.NodeID, EnrolmentToken: e.Token, ProtocolVersion: agentapi.ProtocolVersion, AgentVersion: c.Version,
		PublicKey: base64.StdEncoding.EncodeToString(pending.Key().Public().(ed25519.PublicKey)),
		Labels:    e.Labels, Capabilities: c.Capabilities, BootID: boot.ID, BootSeq: boot.Seq,
	})
	if err != nil {
		return nil, fmt.Errorf("enrol node %s at %s: %w", e.NodeID, e.Server, err)
	}
	pending.RefreshCredential, pending.EnrolledAt = answer.RefreshCredential, time.Now().UTC()
	if err := saveIdentity(ctx, s, identityName, *pending); err != nil {
		return nil, fmt.Errorf("keep the node's identity: %w", err)
	}
	return pending, nil
}

func userAgent(version string) string { return "freehold-agent/" + version }

// prepareEnrolment keeps the node's new key before the hub hears of it. The same token finds the same key again.
func prepareEnrolment(ctx context.Context, s store.Store, folder string, e Enrolment) (*Identity, hub.Boot, error) {
	boot := hub.Boot{ID: newID()}
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // does not fail
	next := Identity{
		NodeID: e.NodeID, Server: e.Server, CAFile: e.CAFile, Fingerprint: e.Fingerprint,
		Seed: seed, TokenHash: tokenHash(e.Token),
	}
	err := s.Update(ctx, func(tx store.Tx) error {
		var err error
		if boot.Seq, err = nextBoot(tx); err != nil {
			return err
		}
		if known, err := identities.Get(tx, identityName); err == nil && known.Spec.NodeID != e.NodeID {
			return &OtherNodeError{folder, known.Spec.NodeID}
		}
		if before, err := identities.Get(tx, pendingName); err == nil && before.Spec.TokenHash == next.TokenHash {
			next.Seed = before.Spec.Seed
		}
		return putIdentity(tx, pendingName, next)
	})
	return &next, boot, err
}

func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
