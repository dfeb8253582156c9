package supervise_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"freehold.dev/freehold/internal/agent/engine/supervise"
)

// The test program is also the shim, and an agent that gets killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(supervise.Main())
		case "agent", "stopping agent":
			os.Exit(agent(os.Args[2], os.Args[3], os.Args[1] != "agent"))
		}
	}
	os.Exit(m.Run())
}

const patience = 60 * time.Second

func newSupervisor() (*supervise.Supervisor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return supervise.New(supervise.Config{Command: []string{self, "supervise"}})
}

// agent starts a shell script and waits to be killed; or stops it when it has told that its detached process is up, and is
// killed then.
func agent(token, script string, stop bool) int {
	s, err := newSupervisor()
	if err != nil {
		return 1
	}
	up := make(chan struct{}, 1)
	program := shell(token, script, func(_, line string) {
		if strings.HasPrefix(line, "detached") {
			up <- struct{}{}
		}
		_, _ = os.Stdout.WriteString(line + "\n")
	})
	program.StopTimeout = time.Hour
	p, err := s.Start(context.Background(), program)
	if err != nil {
		return 1
	}
	if stop {
		<-up
		_ = p.Stop(context.Background())
	}
	<-p.Done()
	return 0
}

func shell(token, script string, output func(source, line string)) supervise.Program {
	return supervise.Program{
		Token: token, Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")},
		StopSignal: syscall.SIGTERM, StopTimeout: patience, StopGroup: true, Output: output,
	}
}

// lines collects a run's output.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(source, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, source+" "+line)
}

func (l *lines) get() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all...)
}

// await answers the rest of the first line with a prefix.
func (l *lines) await(t *testing.T, prefix string) string {
	t.Helper()
	var rest string
	eventually(t, "output "+prefix, func() bool {
		for _, line := range l.get() {
			if r, ok := strings.CutPrefix(line, prefix); ok {
				rest = strings.TrimSpace(r)
				return true
			}
		}
		return false
	})
	return rest
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited %s in vain for: %s", patience, what)
		case <-tick.C:
		}
	}
}

func start(t *testing.T, program supervise.Program) (*supervise.Supervisor, *supervise.Process) {
	t.Helper()
	s, err := newSupervisor()
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Start(t.Context(), program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		done(t, p)
	})
	return s, p
}

func done(t *testing.T, p *supervise.Process) supervise.Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatal("the run does not end")
	}
	return p.Exit()
}

func token(t *testing.T) string {
	return strings.Map(func(r rune) rune {
		if r == '/' {
			return '.'
		}
		return r
	}, t.Name()) + "-" + strconv.Itoa(os.Getpid())
}

// alive is false for zombies too.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatalf("%q is no process number", pid)
	}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return state != "" && state[0] != 'Z' && state[0] != 'X'
}

func TestOutputAndStatusOfAProgramAreSeen(t *testing.T) {
	var out lines
	_, p := start(t, shell(token(t), "echo to out; echo to err >&2; exit 7", out.add))
	if exit := done(t, p); exit.Code != 7 || exit.Signal != 0 || exit.Stopped || exit.Lost {
		t.Errorf("exit = %+v", exit)
	}
	out.await(t, "stdout to out")
	out.await(t, "stderr to err")
}

func TestInputAndStatusPipeReachTheProgram(t *testing.T) {
	var out, status lines
	program := shell(token(t), "cat; echo told >&3", out.add)
	program.Input = []byte("a secret\nanother")
	program.Status = func(line []byte) { status.add("status", string(line)) }
	_, p := start(t, program)
	done(t, p)
	out.await(t, "stdout a secret")
	out.await(t, "stdout another")
	status.await(t, "status told")
}

func TestLongLinesAreCut(t *testing.T) {
	var out lines
	_, p := start(t, shell(token(t), "head -c 20000 /dev/zero | tr '\\0' x; echo; printf 'bad \\377 byte\\n'", out.add))
	done(t, p)
	got := out.get()
	if len(got) != 4 {
		t.Fatalf("%d lines, want 4", len(got))
	}
	total := 0
	for _, l := range got[:3] {
		l = strings.TrimPrefix(l, "stdout ")
		total += len(l)
		if len(l) > supervise.MaxLine {
			t.Errorf("a line of %d bytes", len(l))
		}
	}
	if total != 20000 {
		t.Errorf("%d bytes arrived, want 20000", total)
	}
	if got[3] != "stdout bad \uFFFD byte" {
		t.Errorf("last line %q", got[3])
	}
}

func TestProgramThatCannotStartSaysWhy(t *testing.T) {
	s, err := newSupervisor()
	if err != nil {
		t.Fatal(err)
	}
	program := shell(token(t), "", func(string, string) {})
	program.Argv = []string{"/no/such/program"}
	_, err = s.Start(t.Context(), program)
	var failed *supervise.StartError
	if !errors.As(err, &failed) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("error = %v", err)
	}
	program.Argv = []string{"/etc/passwd"}
	if _, err = s.Start(t.Context(), program); !errors.Is(err, syscall.EACCES) {
		t.Errorf("error = %v", err)
	}
}

func TestSupervisorThatDoesNotStartIsSaid(t *testing.T) {
	for _, command := range []string{"/no/such/supervisor", "/bin/true"} {
		s, err := supervise.New(supervise.Config{Command: []string{command}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Start(t.Context(), shell(token(t), "true", func(string, string) {})); !errors.Is(err, supervise.ErrShim) {
			t.Errorf("%s: error = %v", command, err)
		}
	}
}

func TestStopLetsTheProgramFinish(t *testing.T) {
	var out lines
	_, p := start(t, shell(token(t), `trap 'echo drained; exit 0' TERM; echo up; while :; do sleep 0.05; done`, out.add))
	out.await(t, "stdout up")
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	out.await(t, "stdout drained")
	if exit := p.Exit(); exit.Code != 0 || !exit.Stopped {
		t.Errorf("exit = %+v", exit)
	}
}

func TestStopKillsAfterTheTimeout(t *testing.T) {
	var out lines
	program := shell(token(t), `trap '' TERM; echo up; while :; do sleep 0.05; done`, out.add)
	program.StopTimeout = 100 * time.Millisecond
	_, p := start(t, program)
	out.await(t, "stdout up")
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := p.Exit(); exit.Signal != int(syscall.SIGKILL) {
		t.Errorf("exit = %+v", exit)
	}
}

func TestStopByForceWhenItsContextEnds(t *testing.T) {
	var out lines
	_, p := start(t, shell(token(t), `trap '' TERM; echo up; while :; do sleep 0.05; done`, out.add))
	out.await(t, "stdout up")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if exit := p.Exit(); exit.Signal != int(syscall.SIGKILL) {
		t.Errorf("exit = %+v", exit)
	}
}

// A process in a session of its own, whose parent has ended, that does not care for signals.
const detach = `(setsid sh -c 'trap "" TERM; echo detached $$; while :; do sleep 0.05; done' &)`

func TestDetachedProcessesEndWithTheProgram(t *testing.T) {
	var out lines
	program := shell(token(t), detach+"; while :; do sleep 0.05; done", out.add)
	program.StopTimeout = 100 * time.Millisecond
	_, p := start(t, program)
	pid := out.await(t, "stdout detached")
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(t, pid) {
		t.Error("the detached process outlived Stop")
	}
}

func TestDetachedProcessesEndWhenTheProgramEndsByItself(t *testing.T) {
	var out lines
	goOn := filepath.Join(t.TempDir(), "go on")
	program := shell(token(t), detach+`; while [ ! -e "$0" ]; do sleep 0.05; done; exit 3`, out.add)
	program.Argv = append(program.Argv, goOn)
	program.StopTimeout = 500 * time.Millisecond
	_, p := start(t, program)
	pid := out.await(t, "stdout detached")
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if exit := done(t, p); exit.Code != 3 {
		t.Errorf("exit = %+v", exit)
	}
	if alive(t, pid) {
		t.Error("the detached process outlived the program")
	}
}

func TestNothingOutlivesAKilledAgent(t *testing.T) {
	killedAgent(t, "agent", detach+`; echo main $$; while :; do sleep 0.05; done`)
}

// An agent that waits for a stop, for as long as the program may take, is killed meanwhile.
func TestNothingOutlivesAnAgentThatIsKilledWhileItStops(t *testing.T) {
	killedAgent(t, "stopping agent", `trap 'echo main $$' TERM; `+detach+`; while :; do sleep 0.05; done`)
}

// killedAgent kills an agent whose script has told the numbers of its two processes.
func killedAgent(t *testing.T, kind, script string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(self, kind, token(t), script)
	s, err := newSupervisor()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// As the next agent does; only the run's cgroup is left, if the test passed.
		if err := s.Clean(context.Background(), []string{token(t)}); err != nil {
			t.Error(err)
		}
	})
	output, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	pids := map[string]string{}
	for scanner := bufio.NewScanner(output); len(pids) < 2 && scanner.Scan(); {
		if name, pid, ok := strings.Cut(scanner.Text(), " "); ok {
			pids[name] = pid
		}
	}
	if len(pids) != 2 {
		t.Fatalf("processes: %v", pids)
	}
	_ = agent.Process.Kill()
	_ = agent.Wait()
	eventually(t, "the main process' end", func() bool { return !alive(t, pids["main"]) })
	eventually(t, "the detached process' end", func() bool { return !alive(t, pids["detached"]) })
}

func parent(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	ppid, err := strconv.Atoi(strings.Fields(rest)[1])
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

func TestNothingOutlivesAKilledSupervisor(t *testing.T) {
	var out lines
	_, p := start(t, shell(token(t), detach+"; while :; do sleep 0.05; done", out.add))
	pid := out.await(t, "stdout detached")
	if err := syscall.Kill(parent(t, p.Pid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit := done(t, p); !exit.Lost {
		t.Errorf("exit = %+v", exit)
	}
	if alive(t, pid) || alive(t, strconv.Itoa(p.Pid())) {
		t.Error("a process outlived its run")
	}
}

func TestProgramThatStopsItsSupervisorCanBeStopped(t *testing.T) {
	var out lines
	started := filepath.Join(t.TempDir(), "started")
	program := shell(token(t), `trap '' TERM; echo $PPID >&2; echo $$
		until [ -e `+started+` ]; do sleep 0.05; done
		while :; do kill -STOP $PPID; done`, out.add)
	program.StopTimeout = 10 * time.Millisecond
	_, p := start(t, program)
	pid := out.await(t, "stdout ")
	if err := os.WriteFile(started, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	shim := out.await(t, "stderr ")
	eventually(t, "the supervisor is stopped", func() bool {
		stat, err := os.ReadFile("/proc/" + shim + "/stat")
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Stop(ctx); err != nil || ctx.Err() != nil {
		t.Fatal(err, ctx.Err())
	}
	if exit := p.Exit(); !exit.Stopped || alive(t, pid) || alive(t, shim) {
		t.Fatalf("%+v, and the program or its supervisor is alive", exit)
	}
}

func TestSurvivorsOfEarlierAgentsAreCleaned(t *testing.T) {
	mine, other := token(t), token(t)+"-other"
	survivor := func(token string) *exec.Cmd {
		c := exec.Command("sleep", "600")
		c.Env = []string{supervise.TokenVariable + "=" + token}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	killed, spared := survivor(mine), survivor(other)
	defer func() {
		_ = spared.Process.Kill()
		_ = spared.Wait()
	}()
	s, err := newSupervisor()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Clean(t.Context(), []string{mine}); err != nil {
		t.Fatal(err)
	}
	if err := killed.Wait(); err == nil || killed.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the survivor ended with %v", err)
	}
	if !alive(t, strconv.Itoa(spared.Process.Pid)) {
		t.Error("another run's process was killed")
	}
}

func TestUsageIsMeasured(t *testing.T) {
	var out lines
	_, p := start(t, shell(token(t), "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo worked; while :; do sleep 0.05; done", out.add))
	out.await(t, "stdout worked")
	if u := p.Usage(); u.CPUSeconds <= 0 || u.MemoryBytes <= 0 {
		t.Errorf("usage = %+v", u)
	}
}

func TestMemoryLimitEndsTheRun(t *testing.T) {
	var out lines
	s, err := newSupervisor()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.LimitsError(); err != nil {
		t.Skip("no limits on this machine: ", err)
	}
	program := shell(token(t), `x=$(head -c 300000000 /dev/zero | tr '\0' x); echo survived`, out.add)
	program.Limits.MemoryMiB = 32
	p, err := s.Start(t.Context(), program)
	if err != nil {
		t.Fatal(err)
	}
	if exit := done(t, p); !exit.OutOfMemory {
		t.Errorf("exit = %+v, output %v", exit, out.get())
	}
}
