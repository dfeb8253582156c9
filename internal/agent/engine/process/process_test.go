package process_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/supervise"
	"freehold.dev/freehold/internal/hub"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main())
	}
	os.Exit(m.Run())
}

const patience = 60 * time.Second

type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(source, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, source+" "+line)
}

func (l *log) has(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, got := range l.lines {
		if got == line {
			return true
		}
	}
	return false
}

func newEngine(t *testing.T) *process.Engine {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := supervise.New(supervise.Config{Command: []string{self, "supervise"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FREEHOLD_SECRET_OTHER", "not for streams")
	return process.New(process.Config{Supervisor: s, Env: process.BaseEnv(os.Environ())})
}

func spec(t *testing.T, content string, out *log) engine.Spec {
	return engine.Spec{
		Stream: "s", Token: strings.ReplaceAll(t.Name(), "/", ".") + strconv.Itoa(os.Getpid()), Content: content, Log: out.add,
		Secret: func(name string) (string, error) {
			if name == "password" {
				return "hunter2 \"$x\"\nline", nil
			}
			return "", errors.New("no such file")
		},
	}
}

func start(t *testing.T, content string, out *log) engine.Run {
	t.Helper()
	r, err := newEngine(t).Start(t.Context(), spec(t, content, out))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Stop(ctx)
	})
	return r
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("waited in vain for ", what)
	}
}

func TestProgramRunsUntilItIsStopped(t *testing.T) {
	var out log
	r := start(t, `{"command": "sh", "args": ["-c", "trap 'echo drained; exit 0' INT; while :; do sleep 0.05; done"], "stop_signal": "INT", "ready_after": "100ms"}`, &out)
	wait(t, r.Ready(), "ready")
	if m := r.Metrics(); m.UptimeSeconds <= 0 || m.LagMessages != -1 || m.MemoryBytes <= 0 {
		t.Errorf("metrics = %+v", m)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, r.Done(), "the end")
	if f := r.Err(); f != nil {
		t.Errorf("a stopped run failed: %+v", f)
	}
	if !out.has("stdout drained") {
		t.Errorf("output: %v", out.lines)
	}
}

func TestSecretsReachTheEnvironmentAndTheAgentsOwnDoNot(t *testing.T) {
	var out log
	folder := t.TempDir()
	r := start(t, `
command: /bin/sh
args: ["-c", 'printf %s "$PASSWORD" > password; env | grep -c ^FREEHOLD_SECRET; echo in $(pwd) $PORT']
env: {PASSWORD: "${secret:password}", PORT: 8080}
workdir: `+folder+`
restart: never
`, &out)
	wait(t, r.Done(), "the end")
	if got, err := os.ReadFile(filepath.Join(folder, "password")); err != nil || string(got) != "hunter2 \"$x\"\nline" {
		t.Errorf("the secret arrived as %q, %v", got, err)
	}
	if !out.has("stdout 0") || !out.has("stdout in "+folder+" 8080") {
		t.Errorf("output: %v", out.lines)
	}
	if f := r.Err(); f != nil {
		t.Errorf("failure = %+v", f)
	}
}

func TestEndOfAProgramIsJudgedByItsRestartPolicy(t *testing.T) {
	const finished = hub.Class("")
	for _, tt := range []struct {
		restart, script string
		class           hub.Class
		code            string
	}{
		{"always", "exit 0", hub.Transient, "exit_status"},
		{"always", "exit 3", hub.Transient, "exit_status"},
		{"on-failure", "exit 0", finished, ""},
		{"on-failure", "exit 3", hub.Transient, "exit_status"},
		{"never", "exit 0", finished, ""},
		{"never", "exit 3", hub.Permanent, "exit_status"},
		{"on-failure", "kill -9 $$", hub.Transient, "signal"},
	} {
		t.Run(tt.restart+" "+tt.script, func(t *testing.T) {
			var out log
			engine := newEngine(t)
			s := spec(t, "{command: sh, args: [-c, '"+tt.script+"'], restart: "+tt.restart+"}", &out)
			s.Token = "judged-" + strconv.Itoa(os.Getpid())
			r, err := engine.Start(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			wait(t, r.Done(), "the end")
			switch f := r.Err(); {
			case tt.class == finished && f != nil, tt.class != finished && (f == nil || f.Class != tt.class || f.Code != tt.code):
				t.Errorf("failure = %+v, want %s %s", f, tt.class, tt.code)
			}
		})
	}
}

func TestWhatCannotStartIsClassified(t *testing.T) {
	for _, tt := range []struct {
		content string
		class   hub.Class
		code    string
		message string
	}{
		{"command: no-such-program", hub.Permanent, "command_not_found", "no-such-program"},
		{"command: sleep 600", hub.Permanent, "command_not_found", "arguments go into args"},
		{"command: /no/such/program", hub.Permanent, "command_not_found", "/no/such/program"},
		{"command: /etc/passwd", hub.Permanent, "start_failed", "permission denied"},
		{"command: /bin/true\nworkdir: /no/such/folder", hub.Permanent, "start_failed", "workdir"},
		{"command: /bin/true\nenv: {A: '${secret:absent}'}", hub.Transient, "secret_missing", "absent"},
		{"comand: /bin/true", hub.ConfigRejected, "invalid_config", "line 1, column 1"},
	} {
		var out log
		_, err := newEngine(t).Start(t.Context(), spec(t, tt.content, &out))
		var failed *engine.Error
		if !errors.As(err, &failed) || failed.Failure.Class != tt.class || failed.Failure.Code != tt.code || !strings.Contains(failed.Failure.Message, tt.message) {
			t.Errorf("%s:\n%v, want %s %s %s", tt.content, err, tt.class, tt.code, tt.message)
		}
	}
}

func TestCheckStartsNothing(t *testing.T) {
	var out log
	marker := filepath.Join(t.TempDir(), "marker")
	e := newEngine(t)
	if err := e.Check(t.Context(), spec(t, "command: touch\nargs: ["+marker+"]", &out)); err != nil {
		t.Error(err)
	}
	if err := e.Check(t.Context(), spec(t, "command: no-such-program", &out)); err == nil {
		t.Error("a program that is not there passed")
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the program ran")
	}
}

func TestFaultsHaveLineAndColumn(t *testing.T) {
	for _, tt := range []struct {
		content string
		line    int
		column  int
		message string
	}{
		{"", 1, 1, "empty"},
		{"command: [", 1, 1, "YAML"},
		{"command: x\nrestart: sometimes", 2, 10, "restart"},
		{"command: x\nargs: y", 2, 7, "list"},
		{"command: x\nargs:\n  - a: b", 3, 5, "args[0]"},
		{"command: x\nstop_timeout: 5", 2, 15, "duration"},
		{"command: x\nstop_timeout: 0s", 2, 15, "stop_timeout"},
		{"command: x\nstop_signal: SIGWHAT", 2, 14, "SIGTERM"},
		{"command: x\nlimits:\n  cpu: lots", 3, 8, "processors"},
		{"command: x\nlimits:\n  memory: 12", 3, 11, "256Mi"},
		{"command: x\ncommand: y", 2, 1, "twice"},
		{"command: x\nenv:\n  P: ${secret:a b}", 3, 6, "secret"},
		{"command: x\nenv:\n  FREEHOLD_RUN: y", 3, 17, "agent"},
		{"command: x\nargs: ['${secret:p}']", 2, 8, "env"},
		{"command: x\nworkdir: here", 2, 10, "absolute"},
		{"args: [x]", 1, 1, "command is missing"},
		{"command: x\n---\ncommand: y", 2, 1, "more than one"},
		{`{"command": "x", "nope": 1}`, 1, 18, `"nope"`},
	} {
		lints := process.Lint(tt.content)
		if len(lints) != 1 || lints[0].Line != tt.line || !strings.Contains(lints[0].Message, tt.message) ||
			(tt.column != lints[0].Column && tt.message != "YAML") {
			t.Errorf("%q:\n%+v, want %d:%d %s", tt.content, lints, tt.line, tt.column, tt.message)
		}
	}
}

func TestContentIsReadWithItsDefaults(t *testing.T) {
	c, lints := process.Parse("command: x\nlimits: {cpu: 1.5, memory: 2Gi}\nstop_timeout: 1m\nargs: [1, yes]")
	if len(lints) > 0 || c.Limits.CPU != 1500 || c.Limits.Memory != 2048 || c.StopTimeout != time.Minute ||
		c.Restart != process.RestartAlways || c.ReadyAfter != time.Second || c.Args[1] != "yes" {
		t.Errorf("%+v %v", c, lints)
	}
}

func FuzzLint(f *testing.F) {
	for _, s := range []string{"command: x", "{", "a: &a [*a]", "command: x\nlimits: {cpu: 500m, memory: 1Gi}\nenv: {A: '${secret:x}'}", "? [a]\n: b", "<<: {a: b}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		for _, l := range process.Lint(content) {
			if l.Line < 1 || l.Column < 1 || l.Message == "" {
				t.Errorf("%+v", l)
			}
		}
	})
}
