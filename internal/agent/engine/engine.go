// Package engine is what the agent asks of the things that run streams. Each engine is a sub-package.
package engine

import (
	"context"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// Engine runs streams of one kind.
type Engine interface {
	// Start begins a run and answers soon: what can be told from the content alone is told at once, as a [hub.Failure]
	// inside an [Error]; whether the run works is told by the Run. ctx bounds the start only.
	Start(ctx context.Context, s Spec) (Run, error)
	// Clean ends whatever is left of runs of this node's earlier agents (tokens are those of Spec), and waits for its end.
	Clean(ctx context.Context, tokens []string) error
}

// Checker is an engine that can tell from the content alone what Start would refuse, while another run of the stream
// goes on. One that is none is asked by Start, after the old run was drained.
type Checker interface {
	Check(ctx context.Context, s Spec) error
}

// Spec of a run.
type Spec struct {
	Stream string
	// Token is unique to the run, recorded durably before Start: every process of the run carries it.
	Token string
	// Content of the config version, with its references to secrets.
	Content string
	// Secret resolves ${secret:name}.
	Secret func(name string) (string, error)
	// Limits of the node; zero values do not limit. The content may ask for lower ones.
	Limits Limits
	// Log takes the run's output. It does not block for long and may be called at once from several goroutines.
	Log func(source, line string)
}

// Limits of one stream's processes.
type Limits struct {
	CPUMillicores int
	MemoryMiB     int
}

// Run is one run of a stream.
type Run interface {
	// Ready is closed when the engine is up: inputs and outputs connected as far as the engine can tell, or the process
	// alive for the time that its configuration asks for. It may never be, when Done is.
	Ready() <-chan struct{}
	// Done is closed when everything of the run has ended, by Stop or by itself.
	Done() <-chan struct{}
	// Err tells, after Done, why a run ended that nobody stopped; nil for one that was stopped, or that finished its
	// work and was meant to end (a benthos stream whose input ended, a process with restart "never" and status 0).
	Err() *hub.Failure
	// Stop drains the run: in-flight messages are delivered or given back, the process gets its stop signal and its
	// stop timeout. It ends the run by force when ctx ends. It answers when Done is closed.
	Stop(ctx context.Context) error
	Metrics() agentapi.Metrics
}

// Error is a failure as an error.
type Error struct{ Failure hub.Failure }

func (e *Error) Error() string { return e.Failure.Message }

// StopGrace is how long a run may drain when its content does not say.
const StopGrace = 30 * time.Second
