// Package agentapi serves the Hub plane to the agents of nodes (/agent/v1): enrolment, sessions, reports, commands, config
// versions, and answers to what operators ask of a node. It translates; the rules are in package hub, the records in
// package ledger.
//
// Every request but those for credentials carries a session. It names one incarnation of a node, the key of its last
// enrolment, and one boot of its agent; all three are compared with the node's record in the transaction that serves the
// request, so that a deleted node, an older key or an older boot can neither read nor write.
package agentapi

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// Prefix of the paths that this API owns.
const Prefix = "/agent/v1"

// SessionKeyPurpose is what the key of [Config] is derived for.
const SessionKeyPurpose = "freehold hub agent sessions"

// Config of the API. Fields without a default are needed.
type Config struct {
	Store    store.Store
	Ledger   *ledger.Ledger
	Presence *presence.Registry
	// Key signs sessions; 32 bytes, derived for [SessionKeyPurpose].
	Key     []byte
	Version string
	Logger  *slog.Logger
	// Metrics of HTTP requests, if any.
	Metrics *rest.Metrics
	// Registry of this API's own metrics, if any.
	Registry prometheus.Registerer
	// Audit takes enrolments that were refused, if set. It does not block.
	Audit func(audit.Entry)
	// Now is the clock (default time.Now).
	Now func() time.Time
	// Limits of failed attempts to get credentials.
	Limits Limits
	// MaxWait of a poll (default 30 s).
	MaxWait time.Duration
	// Spread is how much earlier than asked a poll without work may be answered, so that many do not end at once
	// (default a quarter; negative: none).
	Spread float64
}

// maxWait is within what [rest.Serve] allows an answer to take.
const maxWait = 30 * time.Second

type service struct {
	Config
	tokens   *tokens
	throttle *throttle
	metrics  *metrics
	api      *rest.API
}

// New makes the API on a mux.
func New(mux *http.ServeMux, c Config) (*rest.API, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.MaxWait <= 0 || c.MaxWait > maxWait {
		c.MaxWait = maxWait
	}
	if c.Spread == 0 {
		c.Spread = 0.25
	}
	s := &service{Config: c, tokens: newTokens(c.Key, c.Now), throttle: newThrottle(c.Limits, c.Now)}
	var err error
	if s.metrics, err = newMetrics(c.Registry); err != nil {
		return nil, err
	}
	s.api = rest.New(mux, rest.Config{
		Title: "Freehold Hub: agents", Version: c.Version, Prefixes: []string{Prefix}, Logger: c.Logger, Metrics: c.Metrics,
		Envelope: problem.Envelope, Problem: s.problem, CorrelationHeader: problem.CorrelationHeader,
		Authenticate: s.authenticate, Authorize: authorize, Caller: caller,
	})
	s.registerCredentials()
	s.registerReports()
	s.registerCommands()
	s.registerConfigs()
	s.registerRequests()
	return s.api, nil
}

// authorize: whoever has a session may do all that a node does. What its own node may see is looked up with each request.
func authorize(ctx context.Context, _ rest.Access) error {
	if sessionOf(ctx) == nil {
		return unauthorized("this needs a session: get one with POST " + Prefix + "/session")
	}
	return nil
}

func caller(ctx context.Context) string {
	if c := sessionOf(ctx); c != nil {
		return "node:" + c.Subject
	}
	return ""
}

// spread shortens a wait by a random part.
func (s *service) spread(wait time.Duration) time.Duration {
	if s.Spread <= 0 {
		return wait
	}
	return wait - time.Duration(float64(wait)*min(s.Spread, 1)*rand.Float64())
}
