package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

func TestFilesAreTheOwnersAlone(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "data")
	path := filepath.Join(dir, "store.db")
	s, err := sqlite.Open(ctx, path, sqlite.Options{Kinds: tenants})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Update(ctx, func(tx store.Tx) error { return tx.PutBlob("a", []byte("b")) }); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 4 {
		t.Errorf("%d files, want the database, its log, the log's index and the lock", len(files))
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o, want 600", f.Name(), mode)
		}
	}
}

// holderPath, in the environment, makes the test binary a process that holds a store open.
const holderPath = "FREEHOLD_SQLITE_HOLDER"

func TestASecondProcessIsRefused(t *testing.T) {
	ctx := context.Background()
	if path := os.Getenv(holderPath); path != "" {
		s, err := sqlite.Open(ctx, path, sqlite.Options{Kinds: tenants})
		_, _ = fmt.Fprintln(os.Stdout, "opened", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = s.Close()
		return
	}
	path := filepath.Join(t.TempDir(), "store.db")
	holder := exec.Command(os.Args[0], "-test.run=^TestASecondProcessIsRefused$")
	holder.Env = append(os.Environ(), holderPath+"="+path)
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "opened <nil>\n" {
		t.Errorf("the holder says %q", line)
	}
	_, err = sqlite.Open(ctx, path, sqlite.Options{Kinds: tenants})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", holder.Process.Pid)) {
		t.Errorf("got %v, want an error that names process %d", err, holder.Process.Pid)
	}
	_ = stdin.Close()
	_ = holder.Wait()
	s, err := sqlite.Open(ctx, path, sqlite.Options{Kinds: tenants})
	if err != nil {
		t.Fatalf("after the other has ended: %v", err)
	}
	_ = s.Close()
}

func TestOtherFilesAreRefused(t *testing.T) {
	ctx := context.Background()
	for name, content := range map[string]string{
		"Text": strings.Repeat("not a database. ", 100),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if s, err := sqlite.Open(ctx, path, sqlite.Options{Kinds: tenants}); err == nil {
				_ = s.Close()
				t.Error("opened")
			}
			if after, err := os.ReadFile(path); string(after) != content || err != nil {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}
