package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"syscall"
	"time"
)

// Config of a supervisor.
type Config struct {
	// Command is the argv prefix of the subcommand that calls [Main].
	Command []string
	// Cgroup is where the runs' cgroups are made; "": below the agent's own.
	Cgroup string
	Logger *slog.Logger
}

// Supervisor starts programs.
type Supervisor struct {
	config  Config
	cgroups *cgroups
}

// New finds out what the machine can do.
func New(c Config) (*Supervisor, error) {
	if len(c.Command) == 0 {
		return nil, errors.New("the supervisor's command is not configured")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Supervisor{config: c, cgroups: findCgroups(c.Cgroup)}
	if err := s.LimitsError(); err != nil {
		c.Logger.Info("limits of streams are not enforced", "reason", err)
	}
	return s, nil
}

// LimitsError tells why limits cannot be enforced on this machine; nil: they are.
func (s *Supervisor) LimitsError() error { return s.cgroups.limitsError() }

// Program is what to run.
type Program struct {
	// Token is unique to the run.
	Token string
	// Argv names the program by its path, and its arguments.
	Argv []string
	Env  []string
	Dir  string
	// Input is what the program reads as its standard input; it is held in memory and pipes only.
	Input []byte
	// StopSignal is sent to the program, or with StopGroup to its process group; after StopTimeout all is killed.
	StopSignal  syscall.Signal
	StopTimeout time.Duration
	StopGroup   bool
	Limits      Limits
	// Output takes the lines of "stdout" and "stderr".
	Output func(source, line string)
	// Status, if not nil, takes the lines that the program writes to its descriptor 3.
	Status func(line []byte)
}

var tokenForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

func (p *Program) check() error {
	switch {
	case !tokenForm.MatchString(p.Token) || p.Token[0] == '.':
		return fmt.Errorf("the run's token %q is malformed", p.Token)
	case len(p.Argv) == 0:
		return errors.New("there is no program to run")
	case p.StopSignal <= 0 || p.StopTimeout <= 0:
		return errors.New("stop signal and stop timeout are required")
	}
	return nil
}

// Clean kills the processes of earlier runs and waits for their end. It must not be called with a token in use.
func (s *Supervisor) Clean(ctx context.Context, tokens []string) error {
	if len(tokens) == 0 {
		return nil
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	// Twice nothing: a process may start another while the list is read.
	for quiet := 0; quiet < 2; {
		found := s.survivors(tokens)
		quiet++
		for _, pid := range found {
			quiet = 0
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if len(found) == 0 {
				continue
			}
			return fmt.Errorf("processes %v of an earlier run do not end: %w", found, ctx.Err())
		}
	}
	for _, token := range tokens {
		s.cgroups.group(token).remove()
	}
	return nil
}

func (s *Supervisor) survivors(tokens []string) []int {
	found := marked(tokens)
	for _, pid := range found {
		found = append(found, descendants(pid)...)
	}
	for _, token := range tokens {
		for _, pid := range s.cgroups.group(token).pids() {
			if _, alive := parentOf(pid); alive && pid != os.Getpid() {
				found = append(found, pid)
			}
		}
	}
	return found
}
