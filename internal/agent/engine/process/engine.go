package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/secret"
	"freehold.dev/freehold/internal/agent/engine/supervise"
	"freehold.dev/freehold/internal/hub"
)

// Config of the engine.
type Config struct {
	Supervisor *supervise.Supervisor
	// Env is the environment that every program gets beside its own; see [BaseEnv].
	Env []string
}

// Engine runs programs.
type Engine struct{ config Config }

var (
	_ engine.Engine  = (*Engine)(nil)
	_ engine.Checker = (*Engine)(nil)
)

// New makes an engine.
func New(c Config) *Engine { return &Engine{config: c} }

// BaseEnv is what streams may see of the agent's environment: where things are, no secrets.
func BaseEnv(environ []string) []string {
	var env []string
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "LC_") || slices.Contains(baseVariables, name) {
			env = append(env, variable)
		}
	}
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=") }) {
		env = append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	return env
}

var baseVariables = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// Check tells what Start would refuse.
func (e *Engine) Check(_ context.Context, s engine.Spec) error {
	_, err := e.program(s)
	return err
}

// Clean ends what is left of earlier runs.
func (e *Engine) Clean(ctx context.Context, tokens []string) error {
	return e.config.Supervisor.Clean(ctx, tokens)
}

// Start runs the program.
func (e *Engine) Start(ctx context.Context, s engine.Spec) (engine.Run, error) {
	content, err := parse(s)
	if err != nil {
		return nil, err
	}
	program, err := e.program(s)
	if err != nil {
		return nil, err
	}
	if err := e.config.Supervisor.LimitsError(); err != nil && program.Limits != (supervise.Limits{}) {
		s.Log("engine", "the limits of this stream are not enforced: "+err.Error())
	}
	started := time.Now()
	p, err := e.config.Supervisor.Start(ctx, program)
	if err != nil {
		return nil, startFailure(content, err)
	}
	r := &run{process: p, content: content, started: started, ready: make(chan struct{})}
	go r.await()
	return r, nil
}

func rejected(format string, args ...any) *engine.Error {
	return failure(hub.ConfigRejected, "invalid_config", format, args...)
}

func failure(class hub.Class, code, format string, args ...any) *engine.Error {
	return &engine.Error{Failure: hub.Failure{Class: class, Code: code, Message: fmt.Sprintf(format, args...)}}
}

func parse(s engine.Spec) (Content, error) {
	content, lints := Parse(s.Content)
	if len(lints) > 0 {
		return Content{}, rejected("line %d, column %d: %s", lints[0].Line, lints[0].Column, lints[0].Message)
	}
	return content, nil
}

// program is what to run on this node.
func (e *Engine) program(s engine.Spec) (supervise.Program, error) {
	c, err := parse(s)
	if err != nil {
		return supervise.Program{}, err
	}
	env := slices.Clone(e.config.Env)
	for name, value := range c.Env {
		if value, err = secret.Expand(value, s.Secret); err != nil {
			return supervise.Program{}, err
		}
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
		env = append(env, name+"="+value)
	}
	command, err := find(c, env)
	if err != nil {
		return supervise.Program{}, err
	}
	return supervise.Program{
		Token: s.Token, Argv: append([]string{command}, c.Args...), Env: env, Dir: c.Workdir,
		StopSignal: syscall.Signal(c.StopSignal), StopTimeout: c.StopTimeout, StopGroup: true,
		Limits: supervise.Limits{
			CPUMillicores: lower(int(c.Limits.CPU), s.Limits.CPUMillicores),
			MemoryMiB:     lower(int(c.Limits.Memory), s.Limits.MemoryMiB),
		},
		Output: s.Log,
	}, nil
}

// lower of two limits, of which 0 is none.
func lower(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// find looks a name without a slash up on the program's own PATH.
func find(c Content, env []string) (string, error) {
	if strings.Contains(c.Command, "/") {
		return c.Command, nil
	}
	for _, variable := range env {
		path, ok := strings.CutPrefix(variable, "PATH=")
		if !ok {
			continue
		}
		for folder := range strings.SplitSeq(path, ":") {
			if !filepath.IsAbs(folder) {
				continue
			}
			file := filepath.Join(folder, c.Command)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", failure(hub.Permanent, "command_not_found", "there is no program %q on this node's PATH%s", c.Command, hint(c))
}

func hint(c Content) string {
	if len(c.Args) == 0 && strings.ContainsAny(c.Command, " \t") {
		return "; arguments go into args"
	}
	return ""
}

func startFailure(c Content, err error) error {
	var failed *supervise.StartError
	switch {
	case errors.Is(err, supervise.ErrShim), !errors.As(err, &failed):
		return failure(hub.Transient, "start_failed", "%v", err)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EMFILE):
		return failure(hub.Capacity, "start_failed", "%v", err)
	case errors.Is(err, syscall.ENOENT) && c.Workdir != "" && !folder(c.Workdir):
		return failure(hub.Permanent, "start_failed", "there is no workdir %s on this node", c.Workdir)
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, syscall.ENOENT):
		return failure(hub.Permanent, "command_not_found", "there is no program %q on this node%s", c.Command, hint(c))
	default:
		return failure(hub.Permanent, "start_failed", "%v", err)
	}
}

func folder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

type run struct {
	process *supervise.Process
	content Content
	started time.Time
	ready   chan struct{}
}

// await closes ready when the program has run for long enough.
func (r *run) await() {
	timer := time.NewTimer(r.content.ReadyAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
		close(r.ready)
	case <-r.process.Done():
	}
}

func (r *run) Ready() <-chan struct{} { return r.ready }

func (r *run) Done() <-chan struct{} { return r.process.Done() }

func (r *run) Stop(ctx context.Context) error { return r.process.Stop(ctx) }

func (r *run) Err() *hub.Failure {
	exit := r.process.Exit()
	if exit.Stopped {
		return nil
	}
	return verdict(exit, r.content)
}

// verdict on a program that ended by itself.
func verdict(exit supervise.Exit, c Content) *hub.Failure {
	f := &hub.Failure{Class: hub.Transient, Code: "exit_status", Message: fmt.Sprintf("%s ended with status %d", c.Command, exit.Code)}
	switch {
	case exit.OutOfMemory:
		f.Class, f.Code = hub.Capacity, "out_of_memory"
		f.Message = fmt.Sprintf("%s was killed: it used more memory than its limit", c.Command)
	case exit.Lost:
		f.Code, f.Message = "supervisor_lost", "the supervisor of "+c.Command+" was killed"
	case exit.Signal != 0:
		f.Code, f.Message = "signal", fmt.Sprintf("%s was ended by signal %d (%s)", c.Command, exit.Signal, syscall.Signal(exit.Signal))
	case exit.Code == 0 && c.Restart != RestartAlways:
		return nil
	}
	if c.Restart == RestartNever {
		f.Class = hub.Permanent
	}
	return f
}

func (r *run) Metrics() agentapi.Metrics {
	usage := r.process.Usage()
	return agentapi.Metrics{
		LagMessages: -1, UptimeSeconds: time.Since(r.started).Seconds(),
		CPUSeconds: usage.CPUSeconds, MemoryBytes: usage.MemoryBytes,
	}
}
