package agentapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type enrolInput struct{ Body protocol.EnrolRequest }
type enrolOutput struct{ Body protocol.EnrolAnswer }

// maxCredentialBody is more than any request for credentials needs.
const maxCredentialBody = 64 << 10

func (s *service) registerCredentials() {
	rest.Register(s.api, rest.Operation{
		Method: http.MethodPost, Path: Prefix + "/enroll", ID: "enrol-agent", Access: rest.Public, MaxBody: maxCredentialBody,
		Summary: "Make a node known with its key", Tags: []string{"Credentials"},
	}, s.enrol)
	rest.Register(s.api, rest.Operation{
		Method: http.MethodPost, Path: Prefix + "/session", ID: "renew-agent-session", Access: rest.Public, MaxBody: maxCredentialBody,
		Summary: "Renew a session", Tags: []string{"Credentials"}, Routine: true,
	}, s.renew)
}

// speaks refuses versions of the protocol that this hub does not know.
func (s *service) speaks(version int) error {
	if version >= protocol.MinProtocolVersion && version <= protocol.ProtocolVersion {
		return nil
	}
	return refused(http.StatusUnprocessableEntity, protocol.CodeProtocolUnsupported, fmt.Sprintf(
		"the agent speaks version %d of the protocol, this hub versions %d to %d: install freehold-agent %s",
		version, protocol.MinProtocolVersion, protocol.ProtocolVersion, s.Version),
		map[string]int{"min": protocol.MinProtocolVersion, "max": protocol.ProtocolVersion})
}

// enrol exchanges the enrolment token for credentials that are bound to the node's key.
func (s *service) enrol(ctx context.Context, in *enrolInput) (*enrolOutput, error) {
	b := &in.Body
	// The version comes first: an agent of another one may well send what else is refused.
	if err := s.speaks(b.ProtocolVersion); err != nil {
		return nil, err
	}
	if err := validateEnrolment(b); err != nil {
		return nil, err
	}
	remote := rest.Request(ctx).RemoteAddr
	if after := s.throttle.wait(remote); after > 0 {
		s.metrics.enrolment(outcomeLimited)
		return nil, tooMany(after)
	}
	var n *hub.Node
	err := s.Store.Update(ctx, func(tx store.Tx) (err error) {
		if n, err = s.Ledger.Enrol(tx, b); err != nil {
			return err
		}
		entry := s.asked(ctx, "enrol-agent", b.NodeID)
		entry.Principal, entry.UID = principal(n.Name), n.UID
		return audit.Append(tx, entry)
	})
	if errors.Is(err, hub.ErrNodeDeleting) {
		s.metrics.enrolment(outcomeRefused)
		s.tellRefused(ctx, "enrol-agent", b.NodeID, problem.CodeNodeDeleting)
	}
	if errors.Is(err, hub.ErrEnrolment) {
		s.throttle.failed(remote)
		s.metrics.enrolment(outcomeRefused)
		s.tellRefused(ctx, "enrol-agent", b.NodeID, protocol.CodeEnrolmentRefused)
		s.Logger.WarnContext(ctx, "an enrolment was refused", slog.String("node", b.NodeID), slog.String("remote", remote))
	}
	if err != nil {
		return nil, err
	}
	s.metrics.enrolment(outcomeAccepted)
	s.Logger.InfoContext(ctx, "enrolled a node", slog.String("node", n.Name), slog.String("agent_version", b.AgentVersion))
	// Whoever spoke for the node until now does so no more.
	s.Presence.Forget(n.Name, n.UID)
	return s.credentials(n)
}

// principal of what a node did, in the audit.
func principal(node string) string { return "node:" + node }

// asked begins the audit entry of a request for a node's credentials. Its principal is nobody, until the caller is known to
// speak for the node.
func (s *service) asked(ctx context.Context, action, node string) audit.Entry {
	e := audit.Of(ctx, "")
	e.Time, e.Action, e.Kind, e.Name = s.Now().UTC(), action, "node", node
	return e
}

// tellRefused audits that nobody knows who asked for a node's credentials and did not get them.
func (s *service) tellRefused(ctx context.Context, action, node, code string) {
	if s.Audit == nil {
		return
	}
	e := s.asked(ctx, action, node)
	e.Outcome, e.Code = audit.Rejected, code
	s.Audit(e)
}

func (s *service) credentials(n *hub.Node) (*enrolOutput, error) {
	session, err := s.tokens.newSession(n.Name, n.UID, n.Status.Credential.ID, n.Status.Boot)
	if err != nil {
		return nil, err
	}
	refresh, err := s.tokens.newRefresh(n.Name, n.UID, n.Status.Credential.ID)
	if err != nil {
		return nil, err
	}
	return &enrolOutput{Body: protocol.EnrolAnswer{Session: session, RefreshCredential: refresh}}, nil
}
