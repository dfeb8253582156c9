package main

//go:generate go test . -run TestReferenceIsWhatTheCommandsSay -update

import (
	"flag"
	"os"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/cli"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md anew")

func TestReferenceIsWhatTheCommandsSay(t *testing.T) {
	const path = "../../docs/reference/cli.md"
	got := strings.ReplaceAll(cli.Reference(rootCommand()), devFolder(), "~/.local/share/freehold-dev")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Error("docs/reference/cli.md is not what the commands say: run go test ./cmd/freehold -run Reference -update")
	}
}
