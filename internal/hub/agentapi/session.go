package agentapi

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type sessionInput struct{ Body protocol.SessionRequest }
type sessionOutput struct{ Body protocol.Session }

// challengeDetails come with [protocol.CodeChallenge].
type challengeDetails struct {
	Challenge string `json:"challenge"`
}

// renew makes a session for who holds both the refresh credential and the node's key. Its boot must be the newest, or
// becomes it.
func (s *service) renew(ctx context.Context, in *sessionInput) (*sessionOutput, error) {
	b := &in.Body
	if err := validateSession(b); err != nil {
		return nil, err
	}
	if err := s.speaks(b.ProtocolVersion); err != nil {
		return nil, err
	}
	c, refusal := s.tokens.verifyRefresh(b.RefreshCredential)
	if refusal == nil && c.Subject != b.NodeID {
		refusal = unauthorized("the refresh credential is another node's")
	}
	if refusal != nil {
		return nil, s.unproven(ctx, refusal)
	}
	if err := s.prove(ctx, c, b); err != nil {
		return nil, err
	}
	boot := hub.Boot{ID: b.BootID, Seq: b.BootSeq}
	if err := s.opened(ctx, c, b, boot); err != nil {
		return nil, err
	}
	session, err := s.tokens.newSession(c.Subject, c.NodeUID, c.Credential, boot)
	if err != nil {
		return nil, err
	}
	s.metrics.session(outcomeAccepted)
	return &sessionOutput{Body: session}, nil
}

// unproven counts a failure of the caller's address. Who proves to be a node is not held up by others behind its address who
// fail; they are told to wait when they failed too often.
func (s *service) unproven(ctx context.Context, refusal error) error {
	remote := rest.Request(ctx).RemoteAddr
	if after := s.throttle.wait(remote); after > 0 {
		s.metrics.session(outcomeLimited)
		return tooMany(after)
	}
	s.throttle.failed(remote)
	s.metrics.session(outcomeRefused)
	return refusal
}

// prove looks the node's key up and checks the signature with it.
func (s *service) prove(ctx context.Context, c *claims, b *protocol.SessionRequest) error {
	var key []byte
	err := s.Store.View(ctx, func(r store.Reader) error {
		n, err := credentialed(r, c)
		if err == nil {
			key, err = base64.StdEncoding.DecodeString(n.Status.Credential.PublicKey)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case b.Challenge == "" || !s.tokens.challenged(b.Challenge, c.NodeUID, b.BootID):
		return refused(http.StatusUnauthorized, protocol.CodeChallenge,
			"sign the challenge with the node's key and send the request again with both",
			challengeDetails{s.tokens.challenge(c.NodeUID, b.BootID)})
	}
	signature, err := base64.StdEncoding.DecodeString(b.Signature)
	if err != nil || len(key) != ed25519.PublicKeySize ||
		!ed25519.Verify(key, protocol.SessionStatement(b.NodeID, b.BootID, b.Challenge), signature) {
		s.tellRefused(ctx, "renew-agent-session", c.Subject, problem.CodeUnauthorized)
		return s.unproven(ctx, unauthorized("the signature is not the node's: the key that it enrolled with has to sign"))
	}
	return nil
}

// opened records a boot that opens its first session. A renewal by the same boot writes nothing. An older boot that still
// asks is a sign of a second agent with the node's identity: it is refused, and the node's record tells.
func (s *service) opened(ctx context.Context, c *claims, b *protocol.SessionRequest, boot hub.Boot) error {
	known := false
	err := s.Store.View(ctx, func(r store.Reader) error {
		n, err := credentialed(r, c)
		known = err == nil && n.Status.Boot == boot && sameAgent(&n.Status, b)
		return err
	})
	if err != nil || known {
		return err
	}
	err = s.Store.Update(ctx, func(tx store.Tx) error {
		if _, err := credentialed(tx, c); err != nil {
			return err
		}
		_, err := s.Ledger.NewBoot(tx, c.Subject, c.Credential, ledger.BootInfo{
			Boot: boot, AgentVersion: b.AgentVersion, ProtocolVersion: b.ProtocolVersion, Capabilities: b.Capabilities,
		})
		return err
	})
	if errors.Is(err, hub.ErrSessionSuperseded) || errors.Is(err, hub.ErrIdentityConflict) {
		if note := s.conflict(ctx, c, boot, err); note != nil {
			return note
		}
	}
	if err != nil {
		return err
	}
	// An earlier boot's poll may still be held: it has to see that its session no longer stands.
	s.Presence.Wake(c.Subject)
	return nil
}

// conflict notes that a second agent uses the node's identity, so that operators are told.
func (s *service) conflict(ctx context.Context, c *claims, boot hub.Boot, sign error) error {
	remote := rest.Request(ctx).RemoteAddr
	s.metrics.session(outcomeConflict)
	s.Logger.WarnContext(ctx, "two agents seem to use one node's identity",
		slog.String("node", c.Subject), slog.String("remote", remote), slog.Int64("boot_seq", boot.Seq), slog.Any("sign", sign))
	message := fmt.Sprintf("an agent at %s asked for a session with boot %d while another one has it, or a later one: "+
		"two agents use this node's identity (a copied disk?); enrol one of them as another node", audit.Address(remote), boot.Seq)
	return s.Store.Update(ctx, func(tx store.Tx) error {
		if _, err := credentialed(tx, c); err != nil {
			return err
		}
		came, err := s.Ledger.NoteConflict(tx, c.Subject, message)
		if err != nil || !came {
			return err
		}
		entry := s.asked(ctx, "renew-agent-session", c.Subject)
		entry.Principal, entry.UID = principal(c.Subject), c.NodeUID
		entry.Outcome, entry.Code = audit.Rejected, protocol.CodeIdentityConflict
		return audit.Append(tx, entry)
	})
}

func sameAgent(st *hub.NodeStatus, b *protocol.SessionRequest) bool {
	return st.AgentVersion == b.AgentVersion && st.ProtocolVersion == b.ProtocolVersion && slices.Equal(st.Capabilities, b.Capabilities)
}
