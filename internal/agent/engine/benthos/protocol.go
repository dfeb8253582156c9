package benthos

import (
	"time"

	"freehold.dev/freehold/internal/hub"
)

// job is what the agent writes to a host's standard input.
type job struct {
	Stream string `json:"stream"`
	// Config is the content with its secrets.
	Config    string        `json:"config"`
	Grace     time.Duration `json:"grace"`
	MemoryMiB int           `json:"memory_mib,omitempty"`
}

// notice is a line that the host writes to its descriptor 3.
type notice struct {
	Ready    bool         `json:"ready,omitempty"`
	Finished bool         `json:"finished,omitempty"`
	Failed   *hub.Failure `json:"failed,omitempty"`
	Log      string       `json:"log,omitempty"`
	Metrics  *counters    `json:"metrics,omitempty"`
}

type counters struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
	Errors int64 `json:"errors"`
	Lag    int64 `json:"lag"`
}
