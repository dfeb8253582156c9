package agentapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type contextKey struct{}

// sessionOf answers the claims of the session that ctx's request carries, or nil.
func sessionOf(ctx context.Context) *claims {
	c, _ := ctx.Value(contextKey{}).(*claims)
	return c
}

// authenticate checks what a session says by itself. Whether it still stands is looked up where the request is served.
func (s *service) authenticate(r *http.Request) (context.Context, error) {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return nil, unauthorized("send the session token as one header: Authorization: Bearer TOKEN")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, unauthorized("send the session token as: Authorization: Bearer TOKEN")
	}
	c, err := s.tokens.verifySession(strings.TrimSpace(token))
	if err != nil {
		return nil, err
	}
	return context.WithValue(r.Context(), contextKey{}, c), nil
}

// credentialed answers the record of the node that a credential was made for, while it is good.
func credentialed(r store.Reader, c *claims) (*hub.Node, error) {
	n, err := hub.Nodes.Get(r, c.Subject)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && n.UID != c.NodeUID:
		return nil, notEnrolled("node %q was deleted: register it anew, and enrol it with the new enrolment token", c.Subject)
	case err != nil:
		return nil, err
	case n.Status.Credential == nil || n.Status.Credential.ID != c.Credential:
		return nil, notEnrolled("node %q was enrolled again since: only the agent of its last enrolment may speak for it", c.Subject)
	}
	return n, nil
}

// standing is credentialed for a session: its boot is the newest.
func standing(r store.Reader, c *claims) (*hub.Node, error) {
	n, err := credentialed(r, c)
	if err != nil {
		return nil, err
	}
	switch newest := n.Status.Boot; {
	case newest == c.boot():
		return n, nil
	case newest.Seq > c.BootSeq:
		return nil, superseded(n.Name, newest)
	case newest.Seq == c.BootSeq:
		return nil, conflicting(n.Name, newest)
	}
	// The records are older than the session: they were restored.
	return nil, refused(http.StatusUnauthorized, protocol.CodeSessionExpired, "the hub does not know this boot: renew the session with POST "+Prefix+"/session", nil)
}

// admit looks whether the session stands before anything is remembered of its node.
func (s *service) admit(ctx context.Context) error {
	c := sessionOf(ctx)
	if s.Presence.Knows(c.Subject, c.NodeUID) {
		return nil // it is looked at again where the request is served
	}
	return s.view(ctx, func(store.Reader, *hub.Node) error { return nil })
}

// view serves a request of a node from a consistent view, if its session stands in it.
func (s *service) view(ctx context.Context, f func(store.Reader, *hub.Node) error) error {
	c := sessionOf(ctx)
	return s.Store.View(ctx, func(r store.Reader) error {
		n, err := standing(r, c)
		if err != nil {
			return err
		}
		return f(r, n)
	})
}

// update serves a request of a node in a transaction, if its session stands in it.
func (s *service) update(ctx context.Context, f func(store.Tx, *hub.Node) error) error {
	c := sessionOf(ctx)
	return s.Store.Update(ctx, func(tx store.Tx) error {
		n, err := standing(tx, c)
		if err != nil {
			return err
		}
		return f(tx, n)
	})
}

func refused(status int, code, message string, details any) *rest.Problem {
	return problem.New(status, code, message, details)
}

func unauthorized(message string) *rest.Problem {
	return refused(http.StatusUnauthorized, problem.CodeUnauthorized, message, nil)
}

func notEnrolled(format string, args ...any) *rest.Problem {
	return refused(http.StatusUnauthorized, protocol.CodeNotEnrolled, fmt.Sprintf(format, args...), nil)
}

// bootDetails say which boot is the newest.
type bootDetails struct {
	BootSeq int64 `json:"boot_seq"`
}

func superseded(name string, newest hub.Boot) *rest.Problem {
	return refused(http.StatusConflict, protocol.CodeSessionSuperseded, fmt.Sprintf(
		"a later boot (%d) of node %q speaks to the hub: if this is not the same machine restarted, two agents use one identity: enrol one of them as another node", newest.Seq, name),
		bootDetails{newest.Seq})
}

func conflicting(name string, newest hub.Boot) *rest.Problem {
	return refused(http.StatusConflict, protocol.CodeIdentityConflict, fmt.Sprintf(
		"another agent with the same boot number (%d) speaks for node %q: two agents use one identity: enrol one of them as another node", newest.Seq, name),
		bootDetails{newest.Seq})
}
