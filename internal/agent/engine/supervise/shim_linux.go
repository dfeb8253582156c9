package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The shim's descriptors: 0 orders, 1 and 2 the program's output, then these.
const (
	statusFD       = 3
	programStdinFD = 4
	programPipeFD  = 5
)

// Main is the shim: the whole of a hidden subcommand of the agent, which answers the status to exit with.
func Main() int {
	// PR_SET_PDEATHSIG of the program fires when the thread that forked it ends.
	runtime.LockOSThread()
	for _, fd := range []int{statusFD, programStdinFD, programPipeFD} {
		syscall.CloseOnExec(fd)
	}
	// Not ignored, as that would be inherited: the agent decides when the program is stopped.
	signal.Notify(make(chan os.Signal, 8), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1
	}
	s := &shim{events: json.NewEncoder(os.NewFile(statusFD, "status"))}
	orders := json.NewDecoder(bufio.NewReader(os.Stdin))
	var first order
	if orders.Decode(&first) != nil || first.Start == nil {
		return 1
	}
	s.order = *first.Start
	if err := s.start(); err != nil {
		e := event{Failed: err.Error()}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			e.Errno = int(errno)
		}
		s.tell(e)
		return 1
	}
	s.tell(event{Started: s.pid})
	go s.obey(orders)
	s.reap()
	s.tell(event{Gone: true})
	return 0
}

type shim struct {
	order  startOrder
	pid    int
	events *json.Encoder

	mu      sync.Mutex
	reaped  bool // the first process is gone: its number may be another's
	stopped bool
	killing bool
}

// tell does not care for errors: an agent that does not listen any more is noticed by its orders' end.
func (s *shim) tell(e event) { _ = s.events.Encode(e) }

func (s *shim) start() error {
	for _, file := range s.order.Enter {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return err
		}
	}
	files := []uintptr{programStdinFD, 1, 2}
	if s.order.Status {
		files = append(files, programPipeFD)
	}
	pid, err := syscall.ForkExec(s.order.Argv[0], s.order.Argv, &syscall.ProcAttr{
		Dir: s.order.Dir, Env: s.order.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	for _, file := range s.order.Leave {
		// Staying costs the run the shim's own memory, no more.
		_ = os.WriteFile(file, []byte("0"), 0)
	}
	if err != nil {
		return err
	}
	s.pid = pid
	// The last writer of a pipe is the program, so that its end is seen. Descriptor 2 stays, for a panic of the shim.
	for _, fd := range []int{1, programStdinFD, programPipeFD} {
		_ = syscall.Close(fd)
	}
	return nil
}

func (s *shim) obey(orders *json.Decoder) {
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			grace := s.order.StopTimeout
			if errors.Is(err, io.EOF) {
				grace = min(grace, orphanGrace)
			}
			s.stop(grace)
			return
		}
		switch {
		case o.Kill:
			s.kill()
		case o.Stop:
			s.stop(s.order.StopTimeout)
		}
	}
}

func (s *shim) stop(grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reaped {
		return
	}
	time.AfterFunc(grace, s.kill) // the shortest counts: an agent that dies while it waits leaves less time
	if s.stopped {
		return
	}
	s.stopped = true
	target := s.pid
	if s.order.StopGroup {
		target = -s.pid
	}
	_ = syscall.Kill(target, syscall.Signal(s.order.StopSignal))
}

// kill ends every descendant, and those that they start meanwhile.
func (s *shim) kill() {
	s.mu.Lock()
	again := s.killing
	s.killing = true
	s.mu.Unlock()
	if again {
		return
	}
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ; ; <-tick.C {
			for _, pid := range descendants(os.Getpid()) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}()
}

// reap waits until no child is left. A descendant whose parent ended is a child.
func (s *shim) reap() {
	for {
		// Only a wait that leaves the child as it is: its number must not be free before the lock is held.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return
		}
		s.collect()
	}
}

func (s *shim) collect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if pid != s.pid {
			continue
		}
		s.reaped = true
		exit := &Exit{Code: status.ExitStatus()}
		if status.Signaled() {
			exit = &Exit{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
		}
		s.tell(event{Exited: exit})
		s.dismissLeftovers()
	}
}

// dismissLeftovers stops what the program left behind: without its first process there is no program.
func (s *shim) dismissLeftovers() {
	for _, pid := range descendants(os.Getpid()) {
		_ = syscall.Kill(pid, syscall.Signal(s.order.StopSignal))
	}
	time.AfterFunc(min(s.order.StopTimeout, leftoverGrace), s.kill)
}
