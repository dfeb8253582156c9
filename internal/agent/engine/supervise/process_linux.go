package supervise

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a started program.
type Process struct {
	supervisor *Supervisor
	program    Program
	group      *group
	shim       *exec.Cmd
	orders     *os.File

	started chan struct{} // closed when the program runs, or failed says why not
	failed  *StartError
	pid     int
	done    chan struct{}

	mu      sync.Mutex
	exit    Exit
	exited  bool
	stopped bool
	last    Usage
}

// Start runs a program and answers when it runs, with an [*StartError] when it cannot, or when ctx ends (nothing is left
// of it then).
func (s *Supervisor) Start(ctx context.Context, program Program) (*Process, error) {
	if err := program.check(); err != nil {
		return nil, &StartError{Program: "", Err: err}
	}
	p := &Process{supervisor: s, program: program, started: make(chan struct{}), done: make(chan struct{})}
	if err := p.launch(); err != nil {
		return nil, err
	}
	select {
	case <-p.started:
		if p.failed != nil {
			<-p.done
			return nil, p.failed
		}
		return p, nil
	case <-ctx.Done():
		p.Kill()
		<-p.done
		return nil, fmt.Errorf("start %s: %w", program.Argv[0], ctx.Err())
	}
}

// pipes are this process' and the shim's ends.
type pipes struct{ ours, theirs []*os.File }

// in makes a pipe that the shim reads, out one that it writes.
func (p *pipes) in() (*os.File, error)  { return p.add(false) }
func (p *pipes) out() (*os.File, error) { return p.add(true) }

func (p *pipes) add(shimWrites bool) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if shimWrites {
		p.ours, p.theirs = append(p.ours, r), append(p.theirs, w)
		return r, nil
	}
	p.ours, p.theirs = append(p.ours, w), append(p.theirs, r)
	return w, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (p *Process) launch() (err error) {
	var fds pipes
	defer func() {
		closeAll(fds.theirs)
		if err != nil {
			closeAll(fds.ours)
		}
	}()
	ends := make([]*os.File, 0, 6)
	// In the order of the shim's descriptors; only 0 and 4 are read by it.
	for _, pipe := range []func() (*os.File, error){fds.in, fds.out, fds.out, fds.out, fds.in, fds.out} {
		end, err := pipe()
		if err != nil {
			return err
		}
		ends = append(ends, end)
	}
	if p.group, err = p.supervisor.cgroups.make(p.program.Token, p.program.Limits); err != nil {
		return fmt.Errorf("make the run's cgroup: %w", err)
	}
	command := p.supervisor.config.Command
	p.shim = &exec.Cmd{
		Path: command[0], Args: command,
		Stdin: fds.theirs[0], Stdout: fds.theirs[1], Stderr: fds.theirs[2], ExtraFiles: fds.theirs[3:],
		Env:         []string{TokenVariable + "=" + p.program.Token, "GOMAXPROCS=1", "GOGC=50"},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := p.shim.Start(); err != nil {
		p.group.remove()
		return fmt.Errorf("%w: %w", ErrShim, err)
	}
	closeAll(fds.theirs)
	fds.theirs = nil
	p.orders = ends[0]
	p.order(order{Start: &startOrder{
		Argv: p.program.Argv, Env: append(p.program.Env, TokenVariable+"="+p.program.Token), Dir: p.program.Dir,
		StopSignal: int(p.program.StopSignal), StopTimeout: p.program.StopTimeout, StopGroup: p.program.StopGroup,
		Status: p.program.Status != nil, Enter: p.group.enter(), Leave: p.supervisor.cgroups.leave(),
	}})
	go p.watch(ends)
	return nil
}

// watch owns the goroutines and files of the run.
func (p *Process) watch(ends []*os.File) {
	var readers sync.WaitGroup
	readers.Go(func() { readLines(ends[1], func(l []byte) { p.program.Output("stdout", text(l)) }) })
	readers.Go(func() { readLines(ends[2], func(l []byte) { p.program.Output("stderr", text(l)) }) })
	readers.Go(func() {
		// A program that does not read its input, or not all, is none of our business.
		_, _ = ends[4].Write(p.program.Input)
		_ = ends[4].Close()
	})
	readers.Go(func() {
		readLines(ends[5], func(l []byte) {
			if p.program.Status != nil {
				p.program.Status(l)
			}
		})
	})
	gone := p.follow(ends[3])
	_ = p.shim.Wait()
	if !gone {
		p.lost()
	}
	p.drain(&readers, ends)
	p.finish(gone)
	closeAll(ends)
	close(p.done)
}

// follow takes the shim's events until it ends, and tells whether it saw the last process go.
func (p *Process) follow(status io.Reader) (gone bool) {
	decoder := json.NewDecoder(bufio.NewReader(status))
	running := false
	settle := func(failed *StartError) {
		if !running {
			running, p.failed = true, failed
			close(p.started)
		}
	}
	defer func() { settle(&StartError{Program: p.program.Argv[0], Err: ErrShim}) }()
	for {
		var e event
		if decoder.Decode(&e) != nil {
			return gone
		}
		switch {
		case e.Started != 0:
			p.pid = e.Started
			settle(nil)
		case e.Failed != "":
			var err error = syscall.Errno(e.Errno)
			if e.Errno == 0 {
				err = errors.New(e.Failed)
			}
			settle(&StartError{Program: p.program.Argv[0], Err: err})
			gone = true
		case e.Exited != nil:
			p.mu.Lock()
			p.exit, p.exited = *e.Exited, true
			p.mu.Unlock()
		case e.Gone:
			gone = true
		}
	}
}

// lost finds what is left of a run whose shim was killed.
func (p *Process) lost() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.supervisor.Clean(ctx, []string{p.program.Token}); err != nil {
		p.supervisor.config.Logger.Error("a run whose supervisor was killed did not end", "error", err)
	}
}

// drain waits for the rest of the output. All writers are dead; one that escaped may hold up nothing.
func (p *Process) drain(readers *sync.WaitGroup, ends []*os.File) {
	all := make(chan struct{})
	go func() {
		readers.Wait()
		close(all)
	}()
	deadline := time.AfterFunc(5*time.Second, func() { closeAll(ends) })
	defer deadline.Stop()
	<-all
}

func (p *Process) finish(gone bool) {
	usage := p.group.usage()
	oom := p.group.outOfMemory()
	p.group.remove()
	p.mu.Lock()
	defer p.mu.Unlock()
	if usage.CPUSeconds > p.last.CPUSeconds {
		p.last.CPUSeconds = usage.CPUSeconds
	}
	p.last.MemoryBytes = 0
	if !p.exited {
		p.exit = Exit{Code: -1, Lost: !gone}
	}
	p.exit.OutOfMemory = oom
	p.exit.Stopped = p.stopped
	p.exited = true
}

func (p *Process) order(o order) {
	line, err := json.Marshal(o)
	if err != nil {
		return
	}
	// A shim that does not listen has ended, or was stopped.
	_, _ = p.orders.Write(append(line, '\n'))
	_ = p.shim.Process.Signal(syscall.SIGCONT)
}

// Done is closed when no process of the run is left.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit tells, after Done, how the program ended.
func (p *Process) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// Stop asks the program to end. It answers when Done is closed, at once by force when ctx ends.
func (p *Process) Stop(ctx context.Context) error {
	p.mu.Lock()
	p.stopped = p.stopped || !p.exited
	p.mu.Unlock()
	p.order(order{Stop: true})
	// The shim keeps the grace. It is not waited for without end: the program may have stopped it.
	grace := time.NewTimer(p.program.StopTimeout + shimGrace)
	defer grace.Stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	case <-grace.C:
	}
	p.Kill()
	// The kernel ends what is killed, but for what hangs in a system call.
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("processes of run %s do not end", p.program.Token)
	}
}

// shimGrace is how long a shim may take to do what it was told to.
const shimGrace = 5 * time.Second

// Kill ends the run by force and does not wait. A shim that does not do it is killed itself, and then what it leaves.
func (p *Process) Kill() {
	p.order(order{Kill: true})
	late := time.AfterFunc(shimGrace, func() { _ = p.shim.Process.Kill() })
	go func() {
		<-p.done
		late.Stop()
	}()
}

// Usage of all processes of the run, the last known when it ended.
func (p *Process) Usage() Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited {
		return p.last
	}
	if u := p.group.usage(); u != (Usage{}) {
		p.last = u
	} else {
		p.last = treeUsage(p.shim.Process.Pid)
	}
	return p.last
}

// Pid of the program's first process.
func (p *Process) Pid() int { return p.pid }

// MaxLine is the longest line of output, in bytes; longer ones are cut into several.
const MaxLine = 8 << 10

func readLines(from io.Reader, to func([]byte)) {
	r := bufio.NewReaderSize(from, MaxLine)
	for {
		line, _, err := r.ReadLine()
		if err != nil {
			return
		}
		to(line)
	}
}

func text(line []byte) string { return string(bytes.ToValidUTF8(line, []byte("\uFFFD"))) }
