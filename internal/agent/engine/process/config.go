// Package process is the engine that runs any program: in its own process group, below a supervisor, with limits where
// the machine can enforce them, its output in the stream's log.
package process

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/secret"
	"freehold.dev/freehold/internal/agent/engine/strict"
	"freehold.dev/freehold/internal/hub"
)

// Restart is when a program that ended is to run again.
type Restart string

// The restart policies.
const (
	RestartAlways    Restart = "always"
	RestartOnFailure Restart = "on-failure"
	RestartNever     Restart = "never"
)

// Content is a config version of this engine, YAML or JSON.
type Content struct {
	// Command is a path, or a name to be found on the PATH.
	Command string   `yaml:"command"`
	Args    []string `yaml:"args"`
	// Env is set beside the agent's basic environment; its values may hold ${secret:name}.
	Env     map[string]string `yaml:"env"`
	Workdir string            `yaml:"workdir"`
	// StopSignal is a name such as SIGINT. It is sent to the process group.
	StopSignal Signal `yaml:"stop_signal"`
	// StopTimeout is how long the program may take to stop before it is killed.
	StopTimeout time.Duration `yaml:"stop_timeout"`
	Restart     Restart       `yaml:"restart"`
	// ReadyAfter is how long the program has to run before it counts as running.
	ReadyAfter time.Duration `yaml:"ready_after"`
	Limits     Limits        `yaml:"limits"`
}

// Limits that the content asks for; the node's own are upper bounds.
type Limits struct {
	CPU    CPU    `yaml:"cpu"`
	Memory Memory `yaml:"memory"`
}

// CPU in thousandths of a processor, written "500m" or "1.5".
type CPU int

// UnmarshalText reads "500m" or "1.5".
func (c *CPU) UnmarshalText(text []byte) error {
	s, scale := string(text), 1000.0
	if milli, ok := strings.CutSuffix(s, "m"); ok {
		s, scale = milli, 1
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n*scale < 10 || n*scale > 1e6 {
		return fmt.Errorf("%q is no number of processors: write 500m, 1 or 1.5 (10m to 1000)", text)
	}
	*c = CPU(math.Ceil(n * scale))
	return nil
}

// Memory in MiB, written "256Mi" or "2Gi".
type Memory int

// UnmarshalText reads "256Mi" or "2Gi".
func (m *Memory) UnmarshalText(text []byte) error {
	s, scale := string(text), 0
	for unit, mib := range map[string]int{"Mi": 1, "MiB": 1, "Gi": 1024, "GiB": 1024} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			s, scale = n, mib
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || scale == 0 || n < 1 || n*scale < 4 || n > 1<<24/scale {
		return fmt.Errorf("%q is no amount of memory: write 256Mi or 2Gi (4Mi to 16384Gi)", text)
	}
	*m = Memory(n * scale)
	return nil
}

// Signal that stops a program.
type Signal syscall.Signal

var signals = map[string]syscall.Signal{
	"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGQUIT": syscall.SIGQUIT, "SIGHUP": syscall.SIGHUP,
	"SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2, "SIGKILL": syscall.SIGKILL,
}

// UnmarshalText reads a name, with or without SIG.
func (s *Signal) UnmarshalText(text []byte) error {
	name := strings.ToUpper(string(text))
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	value, known := signals[name]
	if !known {
		names := make([]string, 0, len(signals))
		for n := range signals {
			names = append(names, n)
		}
		slices.Sort(names)
		return fmt.Errorf("%q is none of %s", text, strings.Join(names, ", "))
	}
	*s = Signal(value)
	return nil
}

const (
	maxStopTimeout = time.Hour
	maxReadyAfter  = time.Hour
	defaultReady   = time.Second
)

// Parse reads a content and fills in the defaults. It looks at nothing but the content.
func Parse(content string) (Content, []hub.Lint) {
	c := Content{
		StopSignal: Signal(syscall.SIGTERM), StopTimeout: engine.StopGrace,
		Restart: RestartAlways, ReadyAfter: defaultReady,
	}
	doc, lints := strict.Decode(content, &c)
	if len(lints) > 0 {
		return c, lints
	}
	fault := func(message string, path ...string) { lints = append(lints, doc.Fault(message, path...)) }
	if c.Command == "" {
		fault("command is missing: the program to run", "command")
	}
	if c.Workdir != "" && !path.IsAbs(c.Workdir) {
		fault("workdir must be an absolute path", "workdir")
	}
	if !slices.Contains([]Restart{RestartAlways, RestartOnFailure, RestartNever}, c.Restart) {
		fault(fmt.Sprintf("restart must be always, on-failure or never, not %q", c.Restart), "restart")
	}
	if c.StopTimeout <= 0 || c.StopTimeout > maxStopTimeout {
		fault("stop_timeout must be more than 0 and at most 1h", "stop_timeout")
	}
	if c.ReadyAfter < 0 || c.ReadyAfter > maxReadyAfter {
		fault("ready_after must be between 0 and 1h", "ready_after")
	}
	return c, append(lints, c.textFaults(doc)...)
}

// textFaults are about what the kernel hands to programs, and who can see it.
func (c *Content) textFaults(doc *strict.Document) []hub.Lint {
	var lints []hub.Lint
	visible := func(text string, at ...string) {
		switch {
		case strings.ContainsRune(text, 0):
			lints = append(lints, doc.Fault("a NUL byte cannot be handed to a program", at...))
		case secret.In(text):
			lints = append(lints, doc.Fault("every user of the machine can see this: put the secret into env", at...))
		}
	}
	visible(c.Command, "command")
	visible(c.Workdir, "workdir")
	for i, arg := range c.Args {
		visible(arg, "args", strconv.Itoa(i))
	}
	names := make([]string, 0, len(c.Env))
	for name := range c.Env {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		value := c.Env[name]
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			lints = append(lints, doc.Fault(fmt.Sprintf("%q is no name of a variable", name), "env", name))
		case strings.HasPrefix(name, "FREEHOLD_"):
			lints = append(lints, doc.Fault("variables named FREEHOLD_… are the agent's", "env", name))
		case strings.ContainsRune(value, 0):
			lints = append(lints, doc.Fault("a NUL byte cannot be handed to a program", "env", name))
		default:
			if err := secret.Check(value); err != nil {
				lints = append(lints, doc.Fault(err.Error(), "env", name))
			}
		}
	}
	return lints
}

// Lint tells the faults of a content.
func Lint(content string) []hub.Lint {
	_, lints := Parse(content)
	return lints
}
