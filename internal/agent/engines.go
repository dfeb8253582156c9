package agent

import (
	"maps"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/supervise"
	"freehold.dev/freehold/internal/hub"
)

// engines makes the engines of this program, and completes what the agent can.
func (c *Config) engines() (map[hub.Engine]engine.Engine, error) {
	if c.Engines != nil {
		engines := maps.Clone(c.Engines)
		c.Capabilities = capabilities(engines, c.Capabilities...)
		return engines, nil
	}
	s, err := supervise.New(supervise.Config{Command: c.SuperviseCommand, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	more := c.Capabilities
	if err := s.LimitsError(); err != nil {
		c.Logger.Warn("limits of streams cannot be enforced here", "error", err)
	} else {
		more = append(more, "cgroup")
	}
	engines := map[hub.Engine]engine.Engine{
		hub.EngineProcess: process.New(process.Config{Supervisor: s, Env: c.BaseEnvironment}),
		hub.EngineBenthos: benthos.New(benthos.Config{Supervisor: s, Command: c.HostCommand, Env: c.BaseEnvironment}),
	}
	c.Capabilities = capabilities(engines, more...)
	return engines, nil
}
