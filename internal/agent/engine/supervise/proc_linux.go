package supervise

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// descendants of a process, itself not included, zombies not included.
func descendants(of int) []int {
	children := map[int][]int{}
	for _, pid := range processes() {
		if parent, alive := parentOf(pid); alive {
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for next := children[of]; len(next) > 0; {
		all = append(all, next...)
		var below []int
		for _, pid := range next {
			below = append(below, children[pid]...)
		}
		next = below
	}
	return all
}

func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	pids := make([]int, 0, len(entries))
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf reads the parent from /proc/PID/stat, whose second field, the program's name, may contain anything.
func parentOf(pid int) (parent int, alive bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return parent, err == nil
}

// marked are the living processes that carry one of the tokens.
func marked(tokens []string) []int {
	want := make(map[string]bool, len(tokens))
	for _, t := range tokens {
		want[t] = true
	}
	var found []int
	for _, pid := range processes() {
		if pid == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			continue
		}
		for variable := range strings.SplitSeq(string(environ), "\x00") {
			if token, ok := strings.CutPrefix(variable, TokenVariable+"="); ok && want[token] {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

// treeUsage sums what the processes below pid use, for a machine without cgroups.
func treeUsage(pid int) Usage {
	var u Usage
	for _, p := range append(descendants(pid), pid) {
		folder := "/proc/" + strconv.Itoa(p)
		if stat, err := os.ReadFile(folder + "/stat"); err == nil {
			fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
			if len(fields) > 14 {
				for _, f := range fields[11:15] { // utime, stime, cutime, cstime, in USER_HZ
					ticks, _ := strconv.ParseFloat(string(f), 64)
					u.CPUSeconds += ticks / 100
				}
			}
		}
		if statm, err := os.ReadFile(folder + "/statm"); err == nil {
			if fields := bytes.Fields(statm); len(fields) > 2 {
				resident, _ := strconv.ParseInt(string(fields[1]), 10, 64)
				shared, _ := strconv.ParseInt(string(fields[2]), 10, 64)
				u.MemoryBytes += (resident - shared) * int64(os.Getpagesize())
			}
		}
	}
	return u
}
