package test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demo starts the demo in a temporary folder of the test's own.
func demo(t *testing.T) (cmd *exec.Cmd, lines <-chan string, folder string) {
	t.Helper()
	folder = t.TempDir()
	home := t.TempDir()
	cmd = exec.Command(filepath.Join(bin, "freehold"), "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+folder, "HOME="+home, "XDG_CONFIG_HOME=", "FREEHOLD_TOFU="+builtTofu())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	all := make(chan string, 10_000)
	go func() {
		defer close(all)
		for s := bufio.NewScanner(out); s.Scan(); {
			all <- s.Text()
		}
	}()
	return cmd, all, folder
}

// until reads lines up to one that contains the text; "" reads all.
func until(t *testing.T, lines <-chan string, text string) string {
	t.Helper()
	var seen strings.Builder
	late := time.After(2 * patience)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				if text != "" {
					t.Fatalf("the demo ended before it said %q:\n%s", text, seen.String())
				}
				return seen.String()
			}
			seen.WriteString(line + "\n")
			if text != "" && strings.Contains(line, text) {
				return seen.String()
			}
		case <-late:
			t.Fatalf("the demo does not go on:\n%s", seen.String())
		}
	}
}

// nothingOf makes sure that no file in the folder and no process that works with it is left.
func nothingOf(t *testing.T, folder string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", entries, err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if line, err := os.ReadFile(p); err == nil && strings.Contains(string(line), folder) {
			t.Errorf("still running: %s", strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
}

func TestDemoShowsTheMainJobAndLeavesNothing(t *testing.T) {
	cmd, lines, folder := demo(t)
	out := until(t, lines, "")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"/readyz: ok", "v1.12.6", "tenant/demo deleted", "nothing left of it"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	nothingOf(t, folder)
}

func TestInterruptedDemoCleansUp(t *testing.T) {
	cmd, lines, folder := demo(t)
	until(t, lines, "apply started")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	out := until(t, lines, "")
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("%v, want exit status 130\n%s", err, out)
	}
	nothingOf(t, folder)
}

func TestFailedDemoTellsWhy(t *testing.T) {
	cmd, lines, folder := demo(t)
	until(t, lines, "apply started")
	// Its plane is the child whose command line names the folder.
	for _, pid := range childrenOf(cmd.Process.Pid) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Signal(syscall.SIGKILL)
		}
	}
	out := until(t, lines, "")
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "freehold dev ended by itself") {
		t.Errorf("%v, want exit status 1 and the reason\n%s", err, out)
	}
	nothingOf(t, folder)
}

func childrenOf(pid int) []int {
	var children []int
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, task := range tasks {
		data, _ := os.ReadFile(task)
		for _, field := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}
