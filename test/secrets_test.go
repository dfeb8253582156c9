package test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// markers are texts that only secrets contain: keys of a Talos secrets bundle in PEM, base64 or YAML, and the
// administrator's password.
var markers = []string{
	"PRIVATE KEY",
	"LS0tLS1CRUdJTiBFRDI1NTE5IFBSSVZBVEUgS0VZ", // -----BEGIN ED25519 PRIVATE KEY
	"LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS",       // -----BEGIN EC PRIVATE KEY
	"LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVkt",     // -----BEGIN RSA PRIVATE KEY
	"secretboxEncryptionSecret",
	"aescbcEncryptionSecret",
	adminPassword,
}

// assertNothingLeaked looks for secrets in everything that the plane wrote, and at the modes of its files.
func assertNothingLeaked(t *testing.T, p *plane) {
	t.Helper()
	assertNoMarker(t, "the plane's output", []byte(p.log.String()))
	err := filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of a run that was just pruned
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != p.dir && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("folder %s has mode %v", path, info.Mode().Perm())
			}
			return nil
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("file %s has mode %v", path, info.Mode().Perm())
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		assertNoMarker(t, path, data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func assertNoMarker(t *testing.T, where string, data []byte) {
	t.Helper()
	for _, m := range markers {
		if i := bytes.Index(data, []byte(m)); i >= 0 {
			around := string(data[max(0, i-80):min(len(data), i+40)])
			t.Errorf("%s holds a secret (%q…): …%s", where, m[:min(len(m), 12)], strings.ToValidUTF8(around, "?"))
		}
	}
}
