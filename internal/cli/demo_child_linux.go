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

// processesIn finds the processes that have the folder, or something in it, as their working directory.
func processesIn(folder string) []int {
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil
	}
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil
	}
	var pids []int
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || cwd != folder && !strings.HasPrefix(cwd, folder+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
