package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sandbox is a `freehold dev` with a home of its own.
type sandbox struct {
	*process
	home string
}

func startSandbox(t *testing.T, home string) *sandbox {
	t.Helper()
	s := &sandbox{home: home}
	s.process = start(t, s.env(), "freehold", "dev", "--data", filepath.Join(home, "data"), "--listen", "127.0.0.1:0",
		"--machines", "3", "--machine-timing", "fast", "--apply-debounce", "100ms")
	return s
}

func (s *sandbox) env() []string {
	return []string{"HOME=" + s.home, "XDG_CONFIG_HOME=", "FREEHOLD_SERVER=", "FREEHOLD_TOKEN=", "FREEHOLD_CONTEXT=", "FREEHOLD_TOFU=" + builtTofu()}
}

// cli runs a client command as it would be typed in the next terminal, and insists that it works.
func (s *sandbox) cli(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "freehold"), args...)
	cmd.Env = append(os.Environ(), s.env()...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("freehold %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A sandbox needs no configuration, is there for the client in the next terminal, stops cleanly, and comes back as it
// was: after a clean stop as well as after a crash that takes the machines with it.
func TestSandboxKeepsWhatItHas(t *testing.T) {
	home := t.TempDir()
	s := startSandbox(t, home)
	s.cli(t, "create", "tenant", "prod", "--control-planes", "1", "--workers", "1", "--wait", "--timeout", "2m")
	before := s.cli(t, "get", "machines", "-t", "prod", "-o", "name")

	if code := s.stop(); code != 0 {
		t.Errorf("stopped with exit code %d", code)
	}
	s = startSandbox(t, home)
	s.cli(t, "wait", "tenant/prod", "--for=ready", "--timeout", "2m")
	if after := s.cli(t, "get", "machines", "-t", "prod", "-o", "name"); after != before {
		t.Errorf("other machines than before:\n%s\n%s", before, after)
	}

	s.cli(t, "scale", "node-group", "prod-worker", "--count", "2", "-t", "prod")
	s.kill()
	s = startSandbox(t, home)
	s.cli(t, "wait", "tenant/prod", "--for=ready", "--timeout", "2m")
	s.cli(t, "delete", "tenant", "prod", "--timeout", "2m")
	if out := s.cli(t, "get", "tenants"); strings.Contains(out, "prod") {
		t.Errorf("the tenant is still there:\n%s", out)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("stopped with exit code %d", code)
	}
}
