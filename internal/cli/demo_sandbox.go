package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// sandbox is a "freehold dev" of our own: a child process that does not outlive us.
type sandbox struct {
	cmd    *exec.Cmd
	folder string
	lines  chan string   // its standard output
	done   chan struct{} // closed when it has ended
	err    error         // why it ended, after done
}

const (
	readyWithin = 90 * time.Second
	stopWithin  = 30 * time.Second
)

// startSandbox starts the program's own dev command with everything that it writes in the folder.
func startSandbox(ctx context.Context, folder string, machines int, getenv func(string) string) (*sandbox, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program itself: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(folder, "plane.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	s := &sandbox{folder: folder, lines: make(chan string, 16), done: make(chan struct{})}
	// Not bound to ctx: it is to be stopped in order, not killed.
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), self, "dev",
		"--data", filepath.Join(folder, "data"), "--listen", "127.0.0.1:0", "--machines", fmt.Sprint(machines),
		"--log-level", "info")
	s.cmd.Stderr = log
	temporary := filepath.Join(folder, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		return nil, err
	}
	s.cmd.Env = append(sandboxEnv(getenv), "TMPDIR="+temporary)
	s.cmd.SysProcAttr = childAttributes()
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go s.supervise(stdout, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start freehold dev: %w", err)
	}
	return s, nil
}

// supervise starts the child and waits for its end, on one thread: the kernel ends the child when that thread ends.
func (s *sandbox) supervise(stdout io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := s.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	in := bufio.NewScanner(stdout)
	for in.Scan() {
		select {
		case s.lines <- in.Text():
		default: // nobody reads beyond the first lines
		}
	}
	s.err = s.cmd.Wait()
	close(s.done)
}

func sandboxEnv(getenv func(string) string) []string {
	var env []string
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if value := getenv(name); value != "" && name != "FREEHOLD_ADMIN_PASSWORD" {
			env = append(env, name+"="+value)
		}
	}
	return append(env, "XDG_CONFIG_HOME="+getenv("XDG_CONFIG_HOME"), "FREEHOLD_ADMIN_PASSWORD="+rand.Text())
}

// ready waits for the line that tells that the plane serves.
func (s *sandbox) ready(ctx context.Context) (string, error) {
	late := time.NewTimer(readyWithin)
	defer late.Stop()
	for {
		select {
		case line := <-s.lines:
			if strings.HasPrefix(line, "freehold ready") {
				return line, nil
			}
		case <-s.done:
			return "", s.died()
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-late.C:
			return "", fmt.Errorf("freehold dev is not ready after %s", readyWithin)
		}
	}
}

func (s *sandbox) died() error {
	if s.err == nil {
		return errors.New("freehold dev ended by itself")
	}
	return fmt.Errorf("freehold dev ended by itself: %w", s.err)
}

// stop ends the child in order, or else for good, and with it whatever still works in its folder.
func (s *sandbox) stop() error {
	select {
	case <-s.done:
		return endStragglers(s.folder)
	default:
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop freehold dev (process %d): %w", s.cmd.Process.Pid, err)
	}
	late := time.NewTimer(stopWithin)
	defer late.Stop()
	select {
	case <-s.done:
		return endStragglers(s.folder)
	case <-late.C:
	}
	err := fmt.Errorf("freehold dev (process %d) did not stop within %s, and was killed", s.cmd.Process.Pid, stopWithin)
	_ = s.cmd.Process.Kill()
	<-s.done
	return errors.Join(err, endStragglers(s.folder))
}

// endStragglers kills processes that work in the folder: runs that outlived their plane.
func endStragglers(folder string) error {
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(50 * time.Millisecond) {
		pids := processesIn(folder)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v still work in %s", pids, folder)
		}
		for _, pid := range pids {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
	}
}

// tail is the end of the child's log.
func (s *sandbox) tail(n int) []string {
	data, err := os.ReadFile(filepath.Join(s.folder, "plane.log"))
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}
