package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDamagedFileSaysWhatToDo(t *testing.T) {
	for name, content := range map[string][]byte{
		"another format": bytes.Repeat([]byte("no database "), 1000),
		"a broken page":  append([]byte("SQLite format 3\x00"), bytes.Repeat([]byte{0x5a}, 8176)...),
	} {
		path := filepath.Join(t.TempDir(), "store.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), path, Options{})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "restore the data folder from a backup") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
