package benthos

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/supervise"
	"freehold.dev/freehold/internal/hub"
)

// Config of the engine.
type Config struct {
	Supervisor *supervise.Supervisor
	// Command is the argv prefix of the subcommand that calls [Host].
	Command []string
	// Env of the streams' processes.
	Env []string
}

// Engine runs pipelines.
type Engine struct{ config Config }

var (
	_ engine.Engine  = (*Engine)(nil)
	_ engine.Checker = (*Engine)(nil)
)

// New makes an engine.
func New(c Config) *Engine { return &Engine{config: c} }

// forceAfter is how long a host may go on after its time to drain is over.
const forceAfter = 5 * time.Second

// Check tells what Start would refuse.
func (e *Engine) Check(_ context.Context, s engine.Spec) error {
	_, err := prepare(s)
	return err
}

// Clean ends what is left of earlier runs.
func (e *Engine) Clean(ctx context.Context, tokens []string) error {
	return e.config.Supervisor.Clean(ctx, tokens)
}

func prepare(s engine.Spec) (job, error) {
	if lints := Lint(s.Content); len(lints) > 0 {
		l := lints[0]
		return job{}, rejected("line %d, column %d: %s", l.Line, l.Column, l.Message)
	}
	config, err := resolve(s.Content, s.Secret)
	if err != nil {
		return job{}, err
	}
	return job{Stream: s.Stream, Config: config, Grace: grace(s.Content), MemoryMiB: s.Limits.MemoryMiB}, nil
}

// grace is the content's shutdown_timeout.
func grace(content string) time.Duration {
	var c struct {
		Timeout string `yaml:"shutdown_timeout"`
	}
	if yaml.Unmarshal([]byte(content), &c) == nil {
		if d, err := time.ParseDuration(c.Timeout); err == nil && d > 0 {
			return d
		}
	}
	return engine.StopGrace
}

// Start runs the pipeline in a process of its own.
func (e *Engine) Start(ctx context.Context, s engine.Spec) (engine.Run, error) {
	j, err := prepare(s)
	if err != nil {
		return nil, err
	}
	input, err := json.Marshal(j)
	if err != nil {
		return nil, rejected("%v", err)
	}
	r := &run{spec: s, started: time.Now(), ready: make(chan struct{}), counters: counters{Lag: -1}}
	r.process, err = e.config.Supervisor.Start(ctx, supervise.Program{
		Token: s.Token, Argv: e.config.Command, Env: append(slices.Clone(e.config.Env), "FREEHOLD_STREAM="+s.Stream),
		Input: input, StopSignal: syscall.SIGTERM, StopTimeout: j.Grace + forceAfter,
		Limits: supervise.Limits(s.Limits), Output: r.output, Status: r.notice,
	})
	if err != nil {
		return nil, &engine.Error{Failure: hub.Failure{Class: hub.Transient, Code: "start_failed", Message: err.Error()}}
	}
	return r, nil
}

type run struct {
	spec    engine.Spec
	process *supervise.Process
	started time.Time
	ready   chan struct{}

	mu       sync.Mutex
	isReady  bool
	finished bool
	failed   *hub.Failure
	panicked string
	counters counters
}

// output is what the pipeline prints, and the trace of a panic.
func (r *run) output(source, line string) {
	if source == "stderr" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
		r.mu.Lock()
		r.panicked = line
		r.mu.Unlock()
	}
	r.spec.Log(source, line)
}

func (r *run) notice(line []byte) {
	var n notice
	if json.Unmarshal(line, &n) != nil {
		return
	}
	if n.Log != "" {
		r.spec.Log("engine", n.Log)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.Ready && !r.isReady {
		r.isReady = true
		close(r.ready)
	}
	r.finished = r.finished || n.Finished
	if n.Failed != nil {
		r.failed = n.Failed
	}
	if n.Metrics != nil {
		r.counters = *n.Metrics
	}
}

func (r *run) Ready() <-chan struct{} { return r.ready }

func (r *run) Done() <-chan struct{} { return r.process.Done() }

func (r *run) Stop(ctx context.Context) error { return r.process.Stop(ctx) }

func (r *run) Err() *hub.Failure {
	exit := r.process.Exit()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case exit.Stopped, r.finished && exit.Code == 0:
		return nil
	case exit.OutOfMemory:
		return &hub.Failure{Class: hub.Capacity, Code: "out_of_memory", Message: "the stream was killed: it used more memory than its limit"}
	case r.failed != nil:
		return r.failed
	case r.panicked != "":
		return &hub.Failure{Class: hub.Transient, Code: "crashed", Message: "the stream crashed: " + r.panicked}
	case exit.Lost:
		return &hub.Failure{Class: hub.Transient, Code: "supervisor_lost", Message: "the stream's supervisor was killed"}
	default:
		return &hub.Failure{Class: hub.Transient, Code: "crashed", Message: fmt.Sprintf("the stream's process ended with status %d", exit.Code)}
	}
}

func (r *run) Metrics() agentapi.Metrics {
	usage := r.process.Usage()
	r.mu.Lock()
	defer r.mu.Unlock()
	return agentapi.Metrics{
		InputMessages: r.counters.Input, OutputMessages: r.counters.Output, Errors: r.counters.Errors,
		LagMessages: r.counters.Lag, UptimeSeconds: time.Since(r.started).Seconds(),
		CPUSeconds: usage.CPUSeconds, MemoryBytes: usage.MemoryBytes,
	}
}
