package sqlite

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lockFile takes the lock that keeps a second process from the store at path. It is a file of its own, because
// closing any descriptor of the database file would drop SQLite's locks on it. The lock lives as long as the
// process: it needs no clean-up after a crash.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer func() { _ = f.Close() }()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		holder := "another process"
		if pid, err := os.ReadFile(f.Name()); err == nil && len(pid) > 0 {
			holder = "process " + strings.TrimSpace(string(pid))
		}
		return nil, fmt.Errorf("the store %s is in use by %s: stop that one first, or name another data folder", path, holder)
	}
	// The process id only serves the message above: a full disk must not keep the store from opening.
	_ = f.Truncate(0)
	_, _ = fmt.Fprintln(f, os.Getpid())
	return f, nil
}
