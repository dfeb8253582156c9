package secrets_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/agent/secrets"
)

func write(t *testing.T, folder, name, value string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(value), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestASecretComesFromItsFileElseFromTheEnvironment(t *testing.T) {
	s := secrets.Store{Folder: t.TempDir(), Environment: func(name string) (string, bool) {
		return "from the environment", name == "FREEHOLD_SECRET_DB_PASS_WORD"
	}}
	if got, err := s.Get("db.pass-word"); err != nil || got != "from the environment" {
		t.Errorf("%q %v", got, err)
	}
	write(t, s.Folder, "db.pass-word", "from the file\n", 0o600)
	if got, err := s.Get("db.pass-word"); err != nil || got != "from the file" {
		t.Errorf("%q %v", got, err)
	}
}

func TestASecretThatOthersCanReadIsNone(t *testing.T) {
	s := secrets.Store{Folder: t.TempDir()}
	write(t, s.Folder, "open", "x", 0o644)
	if _, err := s.Get("open"); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("%v", err)
	}
}

func TestWhatIsNoSecretIsSaidSo(t *testing.T) {
	s := secrets.Store{Folder: t.TempDir()}
	write(t, s.Folder, "large", strings.Repeat("x", secrets.MaxSize+1), 0o600)
	if err := os.Mkdir(filepath.Join(s.Folder, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"missing", "large", "folder", "../secrets_test.go", "", "a/b"} {
		if got, err := s.Get(name); err == nil {
			t.Errorf("%q: %q", name, got)
		}
	}
}
