package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/nodeconfig"
	"freehold.dev/freehold/internal/agent/secrets"
	"freehold.dev/freehold/internal/hub"
)

// nodeEngine applies the node-wide configuration. A run of it is the configuration being in force.
type nodeEngine struct {
	current  atomic.Pointer[nodeconfig.Config]
	config   *Config
	logLevel slog.Level
}

func newNodeEngine(c *Config) *nodeEngine {
	n := &nodeEngine{config: c}
	if c.LogLevel != nil {
		n.logLevel = c.LogLevel.Level()
	}
	n.current.Store(&nodeconfig.Config{})
	return n
}

var _ engine.Checker = (*nodeEngine)(nil)

func (n *nodeEngine) Check(_ context.Context, s engine.Spec) error {
	_, err := parseNode(s.Content)
	return err
}

func parseNode(content string) (*nodeconfig.Config, error) {
	c, lints := nodeconfig.Parse(content)
	if len(lints) == 0 {
		return &c, nil
	}
	var texts []string
	for _, l := range lints {
		texts = append(texts, l.Message)
	}
	return nil, &engine.Error{Failure: hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config", Message: strings.Join(texts, "; ")}}
}

func (n *nodeEngine) Start(_ context.Context, s engine.Spec) (engine.Run, error) {
	c, err := parseNode(s.Content)
	if err != nil {
		return nil, err
	}
	n.apply(c)
	return newNodeRun(), nil
}

func (n *nodeEngine) apply(c *nodeconfig.Config) {
	n.current.Store(c)
	if n.config.LogLevel != nil {
		level, given := c.LogLevel.Level()
		if !given {
			level = n.logLevel
		}
		n.config.LogLevel.Set(level)
	}
}

// reset goes back to what holds without a configuration.
func (n *nodeEngine) reset() { n.apply(&nodeconfig.Config{}) }

func (n *nodeEngine) Clean(context.Context, []string) error { return nil }

// secret looks a secret up where the configuration says.
func (n *nodeEngine) secret(name string) (string, error) {
	c := n.current.Load()
	s := secrets.Store{Folder: c.Secrets.Folder}
	if s.Folder == "" {
		s.Folder = n.config.secrets()
	}
	if c.Secrets.Environment == nil || *c.Secrets.Environment {
		s.Environment = n.config.Environment
	}
	return s.Get(name)
}

type nodeRun struct {
	ready, done chan struct{}
	once        sync.Once
}

func newNodeRun() *nodeRun {
	r := &nodeRun{ready: make(chan struct{}), done: make(chan struct{})}
	close(r.ready)
	return r
}

func (r *nodeRun) Ready() <-chan struct{}    { return r.ready }
func (r *nodeRun) Done() <-chan struct{}     { return r.done }
func (r *nodeRun) Err() *hub.Failure         { return nil }
func (r *nodeRun) Metrics() agentapi.Metrics { return agentapi.Metrics{LagMessages: -1} }
func (r *nodeRun) Stop(context.Context) error {
	r.once.Do(func() { close(r.done) })
	return nil
}

// failureOf is what an engine's error tells the hub.
func failureOf(err error) *hub.Failure {
	if err == nil {
		return nil
	}
	var known *engine.Error
	if errors.As(err, &known) {
		return cloneFailure(&known.Failure)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return failure(hub.Timeout, "start_failed", "the engine did not answer in time: "+err.Error())
	}
	return failure(hub.Transient, "start_failed", err.Error())
}
