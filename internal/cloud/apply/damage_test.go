package apply

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// leave puts a file where a run of the tenant would have left it.
func (d *desk) leave(uid, name, content string) string {
	d.Helper()
	path := filepath.Join(string(d.Service.folder(uid)), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		d.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		d.Fatal(err)
	}
	return path
}

func TestHalfAStateDoesNotHoldUpItsTenant(t *testing.T) {
	d := newDesk(t)
	whole := envelope(1, "l", "x")
	d.leave(d.tenant.UID, "runs/run-1/spool/000000000001.tfstate", whole)
	half := d.leave(d.tenant.UID, "work/errored.tfstate", whole[:len(whole)/2])
	d.lend("run-1")
	if err := d.deliver(t.Context(), d.tenant.UID, "prod"); err != nil {
		t.Fatal(err)
	}
	if s := d.record().State; s == nil || s.Serial != 1 {
		t.Errorf("the whole state beside it: %+v", s)
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half state is still in the way: %v", err)
	}
	aside, err := filepath.Glob(filepath.Join(filepath.Dir(half), "errored.refused-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("set aside: %v, %v", aside, err)
	}
}

func TestALostDatabaseIsNotTakenForANewOne(t *testing.T) {
	d := newDesk(t)
	kept := d.leave("uid-of-before", "runs/run-1/spool/000000000001.tfstate", envelope(1, "l", "x"))
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "freehold.db"), sqlite.Options{Kinds: cloud.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := New(t.Context(), d.config(s)); !errors.Is(err, ErrDatabaseLost) || !strings.Contains(err.Error(), d.Folder) {
		t.Errorf("opened on another database: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

func TestFoldersOfUnknownTenantsGoUnlessTheyHoldAState(t *testing.T) {
	d := newDesk(t)
	d.lend("run-1")
	kept := d.leave("uid-of-one", "runs/run-1/spool/000000000001.tfstate", envelope(1, "l", "x"))
	gone := d.leave("uid-of-two", "runs/run-1/log.jsonl", "")
	if err := d.sweep(map[string]bool{d.tenant.UID: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other folder: %v", err)
	}
}
