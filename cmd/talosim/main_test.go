package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestMain runs the command itself when a test starts this binary as one.
func TestMain(m *testing.M) {
	if os.Getenv("TALOSIM_TEST_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func start(t *testing.T, args ...string) (*exec.Cmd, ready) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TALOSIM_TEST_MAIN=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var r ready
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatalf("ready line %q: %v", line, err)
	}
	return cmd, r
}

func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("after SIGTERM: %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("it does not stop on SIGTERM")
	}
}

func TestCommandKeepsItsMachinesAndStopsCleanly(t *testing.T) {
	folder := t.TempDir()
	cmd, first := start(t, "--machines", "2", "--timing", "fast", "--folder", folder)
	if len(first.Machines) != 2 {
		t.Fatalf("ready: %+v", first)
	}
	resp, err := http.Get(first.Control + "/machines")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Machines []struct {
			Address string `json:"address"`
			Stage   string `json:"stage"`
		} `json:"machines"`
	}
	err = json.NewDecoder(resp.Body).Decode(&list)
	resp.Body.Close()
	if err != nil || len(list.Machines) != 2 {
		t.Errorf("list: %+v, %v", list, err)
	}
	stop(t, cmd)
	cmd, second := start(t, "--machines", "3", "--timing", "fast", "--folder", folder)
	if len(second.Machines) != 3 {
		t.Fatalf("ready after a restart: %+v", second)
	}
	known := map[machineLine]bool{}
	for _, m := range second.Machines {
		known[m] = true
	}
	for _, m := range first.Machines {
		if !known[m] {
			t.Errorf("machine %+v did not come back", m)
		}
	}
	stop(t, cmd)
}

func TestBadFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--timing", "slow"}, {"--addresses", "10.0.0.1"}, {"--addresses", "x"}, {"--control", "0.0.0.0:0", "--machines", "0"}, {"stray"},
	} {
		if err := run(args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
