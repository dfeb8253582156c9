package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/agent/hubtest"
	"freehold.dev/freehold/internal/hub"
)

// The test's binary is the agent too, and the program that its streams run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch {
		case os.Args[1] == "program":
			program(os.Args[2])
			return
		case rootHas(os.Args[1]):
			main()
			return
		}
	}
	os.Exit(m.Run())
}

func rootHas(name string) bool {
	for _, c := range rootCommand().Commands() {
		if c.Name() == name {
			return true
		}
	}
	return false
}

// program is a stream that must not run twice: it holds a lock, and notes each start and each clash.
func program(folder string) {
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		os.Exit(2)
	}
	name := "starts"
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		name = "clashes"
	}
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		os.Exit(2)
	}
	_, _ = fmt.Fprintln(f, os.Getpid())
	_, _ = fmt.Fprintln(os.Stdout, "the program runs")
	select {}
}

// free tells whether no program of the folder is alive.
func free(t *testing.T, folder string) bool {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func starts(folder string) int {
	raw, _ := os.ReadFile(filepath.Join(folder, "starts"))
	return bytes.Count(raw, []byte("\n"))
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	over := time.After(time.Minute)
	for !f() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func executable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// run runs a command of the agent to its end.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, executable(t), args...).CombinedOutput()
	return string(out), err
}

// agentProcess is an agent that runs.
type agentProcess struct {
	*exec.Cmd
	log *bytes.Buffer
}

func startAgent(t *testing.T, data string) *agentProcess {
	t.Helper()
	p := &agentProcess{exec.Command(executable(t), "run", "--data", data, "--log-level", "debug"), &bytes.Buffer{}}
	p.Stderr = p.log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
		if t.Failed() {
			t.Logf("agent %d:\n%s", p.Process.Pid, p.log)
		}
	})
	return p
}

func (p *agentProcess) end(t *testing.T, signal os.Signal) error {
	t.Helper()
	if err := p.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatal("the agent does not end")
		return nil
	}
}

func enrolled(t *testing.T) (h *hubtest.Hub, data string) {
	t.Helper()
	h, data = hubtest.New(t), t.TempDir()
	if out, err := run(t, "enroll", "--data", data, "--server", h.URL, "--node", "node-a", "--token", hubtest.Token, "--label", "site=berlin"); err != nil || !strings.Contains(out, "node node-a is enrolled") {
		t.Fatalf("%v: %s", err, out)
	}
	return h, data
}

func content(t *testing.T, folder string) string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"command": executable(t), "args": []string{"program", folder}, "ready_after": "10ms"})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestANodeRunsAProcessAndTellsItsStatus(t *testing.T) {
	h, data := enrolled(t)
	folder := t.TempDir()
	h.Publish("cfg-1", hub.EngineProcess, content(t, folder))
	p := startAgent(t, data)
	if a := h.AwaitAttempt(h.Send("orders", 1, hub.Running, "cfg-1", "")); a.State != hub.Succeeded {
		t.Fatalf("%+v", a)
	}
	h.Logs("orders", "the program runs")
	out, err := run(t, "status", "--data", data)
	if err != nil || !strings.Contains(out, "connected since") || !strings.Contains(out, "orders  running") {
		t.Errorf("%v:\n%s", err, out)
	}
	if err := p.end(t, unix.SIGTERM); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if !free(t, folder) {
		t.Error("the program outlived its agent")
	}
	var s agent.Status
	out, err = run(t, "status", "--data", data, "-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &s) != nil || s.Running || s.NodeID != "node-a" || len(s.Streams) != 1 {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestAnAgentThatIsKilledLeavesNoOrphanAndStartsNothingTwice(t *testing.T) {
	h, data := enrolled(t)
	folder := t.TempDir()
	h.Publish("cfg-1", hub.EngineProcess, content(t, folder))
	generation := int64(1)
	kills := 12
	if testing.Short() {
		kills = 4
	}
	for i := range kills {
		before, boot := starts(folder), h.Boot()
		p := startAgent(t, data)
		if i == 0 {
			h.Send("orders", generation, hub.Running, "cfg-1", "")
		}
		// It dies while it begins, when its stream runs, or while it restarts it.
		switch rand.IntN(4) {
		case 0:
			eventually(t, "the agent has opened its data", func() bool { return holder(data) == p.Process.Pid })
		case 1:
			eventually(t, "the program is started", func() bool { return starts(folder) > before })
		case 2:
			h.AwaitState("orders", hub.Running, generation)
		case 3:
			h.AwaitBoot(boot + 1)
			generation++
			h.Send("orders", generation, hub.Running, "cfg-1", fmt.Sprintf("act-%d", generation))
		}
		_ = p.end(t, unix.SIGKILL)
		if rand.IntN(2) == 0 {
			eventually(t, "the program has gone with its agent", func() bool { return free(t, folder) })
		}
	}
	p := startAgent(t, data)
	generation++
	if a := h.AwaitAttempt(h.Send("orders", generation, hub.Running, "cfg-1", "")); a.State != hub.Succeeded {
		t.Errorf("%+v", a)
	}
	eventually(t, "the program holds its lock", func() bool { return !free(t, folder) })
	if clashes, err := os.ReadFile(filepath.Join(folder, "clashes")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("two programs of the stream met: %s %v", clashes, err)
	}
	h.Send("orders", generation+1, hub.Stopped, "cfg-1", "")
	h.AwaitState("orders", hub.Stopped, generation+1)
	if !free(t, folder) {
		t.Error("a program runs that nobody wants")
	}
	if err := p.end(t, unix.SIGTERM); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if starts(folder) == 0 {
		t.Error("nothing was started")
	}
}

// holder is the process that has the data open, or had it last.
func holder(data string) int {
	raw, _ := os.ReadFile(filepath.Join(data, "agent.db.lock"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
	return pid
}

func TestAPipelineRunsAndIsLogged(t *testing.T) {
	h, data := enrolled(t)
	in, out := filepath.Join(t.TempDir(), "in.txt"), filepath.Join(t.TempDir(), "out.txt")
	if err := os.WriteFile(in, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Publish("cfg-1", hub.EngineBenthos, fmt.Sprintf("input:\n  file: {paths: [%s], scanner: {lines: {}}}\noutput:\n  file: {path: %s, codec: lines}\n", in, out))
	h.Publish("cfg-2", hub.EngineBenthos, "input:\n  nothing_like_it: {}\n")
	p := startAgent(t, data)
	h.Send("copy", 1, hub.Running, "cfg-1", "")
	h.AwaitStream("copy", "to finish", func(s agentapi.StreamReport) bool { return s.Error != nil && s.Error.Code == "finished" })
	if got, err := os.ReadFile(out); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("%q %v", got, err)
	}
	if a := h.AwaitAttempt(h.Send("copy", 2, hub.Running, "cfg-2", "")); a.State != hub.AttemptFail || a.Failure.Class != hub.ConfigRejected {
		t.Errorf("%+v", a)
	}
	if err := p.end(t, unix.SIGTERM); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

func TestTheTokenIsTakenFromWhereNobodySeesIt(t *testing.T) {
	if got, err := readToken("-", strings.NewReader("token\n")); err != nil || got != "token" {
		t.Errorf("%q %v", got, err)
	}
	t.Setenv(tokenVariable, "variable")
	if got, err := readToken("", nil); err != nil || got != "variable" {
		t.Errorf("%q %v", got, err)
	}
	t.Setenv(tokenVariable, "")
	if _, err := readToken("", nil); err == nil {
		t.Error("there is no token")
	}
}

func TestSettingsComeFromTheEnvironment(t *testing.T) {
	t.Setenv("FREEHOLD_AGENT_DATA", t.TempDir())
	cmd := rootCommand()
	cmd.SetArgs([]string{"status"})
	cmd.SetOut(io.Discard)
	if err := cmd.Execute(); !errors.Is(err, agent.ErrNotEnrolled) || !strings.Contains(err.Error(), os.Getenv("FREEHOLD_AGENT_DATA")) {
		t.Errorf("%v", err)
	}
	names := []string{}
	for _, c := range rootCommand().Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	slices.Sort(names)
	if strings.Join(names, " ") != "enroll run status version" {
		t.Errorf("%v", names)
	}
}
