// Package secrets looks up what config versions refer to as ${secret:name}: in a folder on the node, or in the agent's
// environment. The hub does not see the values.
package secrets

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Store of a node's secrets.
type Store struct {
	// Folder has one file for each secret, named after it. Nobody but its owner may read it.
	Folder string
	// Environment looks up FREEHOLD_SECRET_<NAME> for a secret without a file; nil: it is not looked at.
	Environment func(name string) (string, bool)
}

// MaxSize of a secret, in bytes.
const MaxSize = 64 << 10

var validName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// Get answers a secret's value. One newline at the end of a file is not part of it.
func (s Store) Get(name string) (string, error) {
	if !validName.MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a secret", name)
	}
	value, err := s.fromFile(filepath.Join(s.Folder, name))
	if !errors.Is(err, fs.ErrNotExist) {
		return value, err
	}
	variable := Variable(name)
	if s.Environment != nil {
		if value, found := s.Environment(variable); found {
			return value, nil
		}
		return "", fmt.Errorf("there is neither a file %s nor a variable %s in the agent's environment", filepath.Join(s.Folder, name), variable)
	}
	return "", fmt.Errorf("there is no file %s", filepath.Join(s.Folder, name))
}

// Variable is the name of the environment's variable with a secret: "db.password" is FREEHOLD_SECRET_DB_PASSWORD.
func Variable(name string) string {
	return "FREEHOLD_SECRET_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(name))
}

func (s Store) fromFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a file", path)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("%s can be read or written by others than its owner: chmod 600 it", path)
	case info.Size() > MaxSize:
		return "", fmt.Errorf("%s is larger than %d bytes", path, MaxSize)
	}
	raw, err := io.ReadAll(io.LimitReader(f, MaxSize))
	return strings.TrimSuffix(string(raw), "\n"), err
}
