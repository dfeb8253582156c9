// Package test starts the binaries that users start, and speaks the API that they speak.
package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin is the folder of the binaries under test: $FREEHOLD_BIN, or built here.
var bin string

func TestMain(m *testing.M) {
	code, err := setUpAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUpAndRun(m *testing.M) (int, error) {
	if bin = os.Getenv("FREEHOLD_BIN"); bin != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "freehold-bin-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	bin = dir
	for _, name := range []string{"freehold", "freehold-agent", "talosim"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), "../cmd/"+name)
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return m.Run(), nil
}
