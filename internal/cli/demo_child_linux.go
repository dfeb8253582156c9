package cli

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// childAttributes: the child gets no signals of our terminal, for it is stopped in order, and ends with us even when
// we are killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// processesIn finds the processes of ours (this program, and tofu) that work in the folder: it is their working
// directory, or their command line names it.
func processesIn(folder string) []int {
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var pids []int
	for _, p := range processes {
		pid, err := strconv.Atoi(filepath.Base(p))
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, err := os.Readlink(filepath.Join(p, "exe"))
		if err != nil || exe != self && filepath.Base(exe) != "tofu" {
			continue
		}
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		line, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if cwd == folder || strings.HasPrefix(cwd, folder+"/") || strings.Contains(string(line), folder+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}
