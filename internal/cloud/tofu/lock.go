package tofu

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// lock takes the folder's lock, or answers ErrBusy. Closing the file gives it up, unless a child has inherited it.
func (f Folder) lock() (*os.File, error) { return f.flock(unix.LOCK_EX) }

// Busy tells whether anything runs here.
func (f Folder) Busy() (bool, error) {
	// A shared lock: two who ask at once do not see each other.
	l, err := f.flock(unix.LOCK_SH)
	switch {
	case err == nil:
		return false, l.Close()
	case errors.Is(err, ErrBusy):
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	}
	return false, err
}

func (f Folder) flock(how int) (*os.File, error) {
	flags := os.O_RDWR
	if how == unix.LOCK_EX {
		flags |= os.O_CREATE
	}
	l, err := os.OpenFile(f.lockPath(), flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(l.Fd()), how|unix.LOCK_NB); err != nil {
		_ = l.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, &os.PathError{Op: "flock", Path: f.lockPath(), Err: err}
	}
	return l, nil
}

// holders lists the processes, other than this one, that have the folder's lock file open: the supervisor, tofu, and
// what tofu started.
func (f Folder) holders() ([]int, error) {
	want, err := filepath.EvalSymlinks(f.lockPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if hasOpen(p.Name(), want) {
			out = append(out, pid)
		}
	}
	return out, nil
}

func hasOpen(pid, path string) bool {
	dir := filepath.Join("/proc", pid, "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false // gone, or another user's
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == path {
			return true
		}
	}
	return false
}
