package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

func open(t *testing.T) (store.Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, filepath.Join(dir, "root.key")
}

func TestTheSameSecretComesBack(t *testing.T) {
	s, path := open(t)
	first, err := Open(t.Context(), s, path)
	if err != nil {
		t.Fatal(err)
	}
	sealed := first.Seal([]byte("plain"), "a")
	again, err := Open(t.Context(), s, path)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := again.Unseal(sealed, "a"); err != nil || string(plain) != "plain" {
		t.Errorf("sealed before, unsealed after: %q, %v", plain, err)
	}
	if _, err := again.Unseal(sealed, "b"); err == nil {
		t.Error("what was sealed for one purpose was unsealed for another")
	}
	if !bytes.Equal(first.Key("x"), again.Key("x")) || bytes.Equal(first.Key("x"), first.Key("y")) {
		t.Error("a key belongs to its use and to the root secret")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
	if text := fmt.Sprintf("%v %s", first, first); text != "[secret] [secret]" {
		t.Errorf("printed as %q", text)
	}
}

func TestTheSecretIsLeftToItsOwner(t *testing.T) {
	for mode, want := range map[os.FileMode]os.FileMode{0o644: 0o600, 0o660: 0o600, 0o440: 0o400, 0o400: 0o400} {
		s, path := open(t)
		if _, err := Open(t.Context(), s, path); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), s, path); err != nil {
			t.Errorf("mode %v: %v", mode, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("mode %v became %v, %v; want %v", mode, info.Mode(), err, want)
		}
	}
}

func TestASecretThatDoesNotFitIsRefused(t *testing.T) {
	for name, content := range map[string]string{"missing": "", "another": strings.Repeat("ab", size), "garbage": "x", "short": "abcd"} {
		t.Run(name, func(t *testing.T) {
			s, path := open(t)
			if _, err := Open(t.Context(), s, path); err != nil {
				t.Fatal(err)
			}
			err := os.Remove(path)
			if content != "" {
				err = os.WriteFile(path, []byte(content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), s, path); !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), path) {
				t.Errorf("opened: %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".root.key*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
