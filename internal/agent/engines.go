package agent

import (
	"maps"
	"slices"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/supervise"
	"freehold.dev/freehold/internal/hub"
)

// engines makes the engines of this program, and completes what the agent can. Streams see the node's id as FREEHOLD_NODE.
func (c *Config) engines(node string) (map[hub.Engine]engine.Engine, error) {
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
	env := append(slices.Clone(c.BaseEnvironment), "FREEHOLD_NODE="+node)
	engines := map[hub.Engine]engine.Engine{
		hub.EngineProcess: process.New(process.Config{Supervisor: s, Env: env}),
		hub.EngineBenthos: benthos.New(benthos.Config{Supervisor: s, Command: c.HostCommand, Env: env}),
	}
	c.Capabilities = capabilities(engines, more...)
	return engines, nil
}
