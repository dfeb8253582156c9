//go:build !linux

package supervise

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"
)

// MaxLine is the longest line of output, in bytes.
const MaxLine = 8 << 10

var errLinux = errors.New("streams run on Linux only")

// Main is the shim.
func Main() int { return 1 }

// Config of a supervisor.
type Config struct {
	Command []string
	Cgroup  string
	Logger  *slog.Logger
}

// Supervisor starts programs, on Linux.
type Supervisor struct{}

// New answers an error.
func New(Config) (*Supervisor, error) { return nil, errLinux }

// LimitsError tells why limits cannot be enforced.
func (s *Supervisor) LimitsError() error { return errLinux }

// Clean answers an error.
func (s *Supervisor) Clean(context.Context, []string) error { return errLinux }

// Start answers an error.
func (s *Supervisor) Start(context.Context, Program) (*Process, error) { return nil, errLinux }

// Program is what to run.
type Program struct {
	Token       string
	Argv        []string
	Env         []string
	Dir         string
	Input       []byte
	StopSignal  syscall.Signal
	StopTimeout time.Duration
	StopGroup   bool
	Limits      Limits
	Output      func(source, line string)
	Status      func(line []byte)
}

// Process is a started program; there is none.
type Process struct{}

// Done is nil.
func (p *Process) Done() <-chan struct{} { return nil }

// Exit is zero.
func (p *Process) Exit() Exit { return Exit{} }

// Stop does nothing.
func (p *Process) Stop(context.Context) error { return errLinux }

// Kill does nothing.
func (p *Process) Kill() {}

// Usage is zero.
func (p *Process) Usage() Usage { return Usage{} }

// Pid is 0.
func (p *Process) Pid() int { return 0 }
