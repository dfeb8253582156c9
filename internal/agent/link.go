package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// link is the connection to the hub: its session, and how long to leave the hub alone after a failure.
type link struct {
	client  *agentapi.Client
	key     ed25519.PrivateKey
	request agentapi.SessionRequest
	network Network
	logger  *slog.Logger
	rand    func() float64

	mu        sync.Mutex
	expiresAt time.Time
	failures  int
	// notBefore is when the hub may be asked again.
	notBefore time.Time
	state     LinkState
	// renewing is held while a session is asked for: one request serves all that wait.
	renewing chan struct{}
}

// LinkState tells how the connection to the hub is.
type LinkState struct {
	Server    string `json:"server"`
	Connected bool   `json:"connected"`
	// Since is when it became so.
	Since time.Time `json:"since"`
	// LastAnswerAt is when the hub answered last.
	LastAnswerAt *time.Time `json:"last_answer_at,omitempty"`
	// Code and Error say what is wrong.
	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}

// sessionMargin is how long before its end a session is renewed.
const sessionMargin = 5 * time.Minute

func newLink(client *agentapi.Client, id *Identity, boot hub.Boot, c *Config) *link {
	return &link{
		client: client, key: id.Key(), network: c.Network, logger: c.Logger, rand: mathrand.Float64,
		request: agentapi.SessionRequest{
			NodeID: id.NodeID, RefreshCredential: id.RefreshCredential, BootID: boot.ID, BootSeq: boot.Seq,
			ProtocolVersion: agentapi.ProtocolVersion, AgentVersion: c.Version, Capabilities: c.Capabilities,
		},
		state:    LinkState{Server: client.Server(), Since: time.Now().UTC()},
		renewing: make(chan struct{}, 1),
	}
}

// do asks the hub something, with a session, when the hub may be asked.
func (l *link) do(ctx context.Context, ask func(context.Context) error) error {
	if err := l.pause(ctx); err != nil {
		return err
	}
	return l.now(ctx, ask)
}

// now asks without regard to earlier failures.
func (l *link) now(ctx context.Context, ask func(context.Context) error) error {
	err := l.session(ctx)
	if err == nil {
		err = ask(ctx)
	}
	if agentapi.HasCode(err, agentapi.CodeSessionExpired, agentapi.CodeUnauthorized) {
		l.endSession()
		if err = l.session(ctx); err == nil {
			err = ask(ctx)
		}
	}
	if ctx.Err() == nil {
		l.note(ctx, err)
	}
	return err
}

// pause waits until the hub may be asked.
func (l *link) pause(ctx context.Context) error {
	for {
		l.mu.Lock()
		left := time.Until(l.notBefore)
		l.mu.Unlock()
		if left <= 0 {
			return ctx.Err()
		}
		if wait(ctx, left); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (l *link) endSession() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiresAt = time.Time{}
}

func (l *link) fresh() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.expiresAt)
}

// session makes sure that there is one.
func (l *link) session(ctx context.Context) error {
	if l.fresh() {
		return nil
	}
	select {
	case l.renewing <- struct{}{}:
		defer func() { <-l.renewing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.fresh() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, l.network.Request)
	defer cancel()
	s, err := l.client.Session(limited, l.request, l.key)
	if err != nil {
		return err
	}
	// The node's own clock measures it: the hub's may be another.
	life := time.Duration(s.ExpiresIn) * time.Second
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiresAt = time.Now().Add(max(life-sessionMargin, life/2))
	return nil
}

// final are the refusals that only an operator can end.
var final = map[string]string{
	agentapi.CodeSessionSuperseded:   "a newer boot of this node speaks to the hub: its data was copied to another machine, or put back from a backup. Delete the copy, or enrol this one again",
	agentapi.CodeIdentityConflict:    "another agent uses this node's identity: its data was copied to another machine. Delete the copy, or enrol this one as a node of its own",
	agentapi.CodeNotEnrolled:         "the hub does not know this node any more: it was deleted, or enrolled anew elsewhere. Enrol it again",
	agentapi.CodeProtocolUnsupported: "this agent and the hub do not understand each other: install the version that the hub asks for",
}

// note keeps what a request told of the connection.
func (l *link) note(ctx context.Context, err error) {
	var refused *agentapi.Error
	isRefusal := errors.As(err, &refused)
	if isRefusal && refused.Status < 500 && final[refused.Code] == "" && refused.RetryAfter == 0 && !agentapi.HasCode(err, agentapi.CodeUnauthorized) {
		l.answered() // it is about the request, not about the connection
		return
	}
	if err == nil {
		l.answered()
		return
	}
	l.mu.Lock()
	code, least := "unreachable", l.network.RetryMin
	delay := time.Duration(l.rand() * float64(backoffLimit(l.failures, least, l.network.RetryMax)))
	if isRefusal {
		code = refused.Code
		delay += refused.RetryAfter
		l.keepAnswer()
	}
	if final[code] != "" {
		l.expiresAt = time.Time{}
		delay = l.network.RefusedRetry/2 + time.Duration(l.rand()*float64(l.network.RefusedRetry))
	}
	l.failures++
	l.notBefore = time.Now().Add(delay)
	news := l.state.Connected || l.state.Code != code
	if l.state.Connected {
		l.state.Since = time.Now().UTC()
	}
	l.state.Connected, l.state.Code, l.state.Error = false, code, err.Error()
	l.mu.Unlock()
	l.complain(ctx, code, err, news)
}

// complain says it loudly where only a person can help, and once where it passes by itself.
func (l *link) complain(ctx context.Context, code string, err error, news bool) {
	switch {
	case final[code] != "":
		l.logger.ErrorContext(ctx, "the hub refuses this node: "+final[code], "code", code, "error", err)
	case news:
		l.logger.WarnContext(ctx, "the hub cannot be asked; streams go on without it", "code", code, "error", err)
	default:
		l.logger.DebugContext(ctx, "the hub cannot be asked", "code", code, "error", err)
	}
}

func backoffLimit(failures int, least, most time.Duration) time.Duration {
	for range failures {
		if least *= 2; least >= most {
			return most
		}
	}
	return least
}

func (l *link) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keepAnswer()
	l.failures, l.notBefore = 0, time.Time{}
	if !l.state.Connected {
		l.state.Connected, l.state.Since = true, time.Now().UTC()
		l.logger.Info("the hub answers", "server", l.state.Server)
	}
	l.state.Code, l.state.Error = "", ""
}

func (l *link) keepAnswer() {
	at := time.Now().UTC()
	l.state.LastAnswerAt = &at
}

// State answers how the connection is.
func (l *link) State() LinkState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// content fetches a config version for the core.
func (l *link) content(ctx context.Context, version string) (*agentapi.ConfigContent, *hub.Failure) {
	var out *agentapi.ConfigContent
	err := l.now(ctx, func(ctx context.Context) (err error) {
		out, err = l.client.Config(ctx, version)
		return err
	})
	switch {
	case err == nil:
		return out, nil
	case agentapi.HasCode(err, agentapi.CodeNotFound, agentapi.CodeForbidden):
		return nil, failure(hub.Permanent, "config_missing", fmt.Sprintf("the hub does not give the content of %s to this node: %v", version, err))
	}
	return nil, failure(hub.Transient, "config_unavailable", fmt.Sprintf("the content of %s is not here yet: %v", version, err))
}
