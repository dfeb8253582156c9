package tofu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-plugin"
)

func TestSupervisorIsNotToldThePasswordAndClearsSocketsAway(t *testing.T) {
	t.Setenv("FREEHOLD_ADMIN_PASSWORD", "hunter2")
	t.Setenv("TMPDIR", "/tmp")
	root, err := os.MkdirTemp("", "f")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	f := Folder(filepath.Join(root, "u"))
	left := filepath.Join(f.sockets(), "plugin1")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	env, err := f.environment()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.Join(env, " "), "hunter2") {
		t.Error("the administrator's password is in it")
	}
	if !slices.Contains(env, plugin.EnvUnixSocketDir+"="+f.sockets()) {
		t.Error("sockets lie elsewhere")
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what a killed run left: %v", err)
	}
	long := Folder(filepath.Join(root, strings.Repeat("x", 100)))
	if env, err := long.environment(); err != nil || slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, plugin.EnvUnixSocketDir+"=/") }) {
		t.Errorf("a folder whose sockets would have no name: %v", err)
	}
}
