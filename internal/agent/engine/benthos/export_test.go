package benthos

import "freehold.dev/freehold/internal/agent/engine"

// Pid is the process of a run's host.
func Pid(r engine.Run) int { return r.(*run).process.Pid() }
