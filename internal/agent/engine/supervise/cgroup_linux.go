package supervise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	cgroupMount  = "/sys/fs/cgroup"
	groupPrefix  = "freehold-"
	agentLeaf    = "freehold-agent"
	cpuPeriodUS  = 100_000
	cgroupFolder = 0o755
)

// cgroups are the folders below which runs get theirs: one of cgroup v2, or one for each controller of cgroup v1.
type cgroups struct {
	unified string // v2
	memory  string // v1
	cpu     string
	cpuacct string
	home    []string // what this process is a member of, beside the above
	why     error    // why limits are not enforced
}

func findCgroups(parent string) *cgroups {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return &cgroups{why: fmt.Errorf("this system has no cgroups: %w", err)}
	}
	return locate(cgroupMount, string(own), parent)
}

// locate reads /proc/self/cgroup. A parent is a path below the mount of cgroup v2, or below each controller's of v1.
func locate(mount, own, parent string) *cgroups {
	folders := map[string]string{}
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			folders[controller] = parts[2]
		}
	}
	below := func(hierarchy, ownPath string) string {
		if parent != "" {
			ownPath = parent
		}
		return filepath.Join(mount, hierarchy, ownPath)
	}
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		return unified(below("", folders[""]), filepath.Join(mount, folders[""]))
	}
	c := &cgroups{}
	for controller, folder := range map[string]*string{"memory": &c.memory, "cpu": &c.cpu, "cpuacct": &c.cpuacct} {
		path, member := folders[controller]
		if !member {
			continue
		}
		base := below(controller, path)
		if err := tryGroup(base); err != nil {
			c.why = errors.Join(c.why, fmt.Errorf("cgroup controller %s: %w", controller, err))
			continue
		}
		*folder = base
		c.home = append(c.home, filepath.Join(mount, controller, path))
	}
	if c.why == nil && (c.memory == "" || c.cpu == "") {
		c.why = errors.New("the cgroup controllers memory and cpu are not there")
	}
	return c
}

func tryGroup(base string) error {
	probe, err := os.MkdirTemp(base, groupPrefix+"probe-")
	if err != nil {
		return err
	}
	return os.Remove(probe)
}

// unified prepares a folder of cgroup v2, whose controllers can be handed down only while no process is in it.
func unified(base, own string) *cgroups {
	if err := tryGroup(base); err != nil {
		return &cgroups{why: fmt.Errorf("cgroups cannot be made below the agent's own (systemd: Delegate=yes): %w", err)}
	}
	c := &cgroups{unified: base, home: []string{own}}
	handDown := func() error {
		return os.WriteFile(filepath.Join(base, "cgroup.subtree_control"), []byte("+cpu +memory"), 0)
	}
	err := handDown()
	if errors.Is(err, syscall.EBUSY) && base == own && alone(base) {
		leaf := filepath.Join(base, agentLeaf)
		if err = os.MkdirAll(leaf, cgroupFolder); err == nil {
			err = os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0)
		}
		if err == nil {
			c.home = []string{leaf}
			err = handDown()
		}
	}
	if err != nil {
		c.why = fmt.Errorf("the cgroup controllers memory and cpu are not delegated to the agent: %w", err)
	}
	return c
}

// alone tells whether this process is the only one in a cgroup: no other may be moved.
func alone(folder string) bool {
	procs, err := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
	return err == nil && strings.TrimSpace(string(procs)) == strconv.Itoa(os.Getpid())
}

func (c *cgroups) limitsError() error { return c.why }

func (c *cgroups) enforced() bool { return c.why == nil }

// leave lists the files by which the shim goes back to where it was.
func (c *cgroups) leave() []string { return procsFiles(c.home) }

func procsFiles(folders []string) []string {
	files := make([]string, len(folders))
	for i, f := range folders {
		files[i] = filepath.Join(f, "cgroup.procs")
	}
	return files
}

// group of one run. Its folders need not exist.
type group struct {
	unified, memory, cpu, cpuacct string
}

func (c *cgroups) group(token string) *group {
	of := func(base string) string {
		if base == "" {
			return ""
		}
		return filepath.Join(base, groupPrefix+token)
	}
	return &group{unified: of(c.unified), memory: of(c.memory), cpu: of(c.cpu), cpuacct: of(c.cpuacct)}
}

func (c *cgroups) make(token string, limits Limits) (*group, error) {
	g := c.group(token)
	for _, folder := range g.folders() {
		if err := os.MkdirAll(folder, cgroupFolder); err != nil {
			g.remove()
			return nil, err
		}
	}
	if !c.enforced() {
		return g, nil
	}
	if err := g.limit(limits); err != nil {
		g.remove()
		return nil, err
	}
	return g, nil
}

func (g *group) limit(l Limits) error {
	var writes [][3]string
	if g.unified != "" {
		if l.MemoryMiB > 0 {
			writes = append(writes, [3]string{g.unified, "memory.max", mib(l.MemoryMiB)}, [3]string{g.unified, "memory.oom.group", "1"})
		}
		if l.CPUMillicores > 0 {
			writes = append(writes, [3]string{g.unified, "cpu.max", quota(l.CPUMillicores) + " " + strconv.Itoa(cpuPeriodUS)})
		}
	} else {
		if l.MemoryMiB > 0 {
			writes = append(writes, [3]string{g.memory, "memory.limit_in_bytes", mib(l.MemoryMiB)})
		}
		if l.CPUMillicores > 0 {
			writes = append(writes, [3]string{g.cpu, "cpu.cfs_period_us", strconv.Itoa(cpuPeriodUS)}, [3]string{g.cpu, "cpu.cfs_quota_us", quota(l.CPUMillicores)})
		}
	}
	for _, w := range writes {
		if err := os.WriteFile(filepath.Join(w[0], w[1]), []byte(w[2]), 0); err != nil {
			return err
		}
	}
	return nil
}

func mib(n int) string { return strconv.FormatInt(int64(n)<<20, 10) }

// quota is the CPU time of each period; the kernel takes no less than a millisecond.
func quota(millicores int) string { return strconv.Itoa(max(1000, millicores*cpuPeriodUS/1000)) }

func (g *group) folders() []string {
	var all []string
	for _, f := range []string{g.unified, g.memory, g.cpu, g.cpuacct} {
		if f != "" {
			all = append(all, f)
		}
	}
	return all
}

func (g *group) enter() []string { return procsFiles(g.folders()) }

func (g *group) pids() []int {
	var pids []int
	for _, file := range g.enter() {
		procs, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(procs)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// remove does what it can: a folder that is still busy is removed with the next clean-up.
func (g *group) remove() {
	for _, f := range g.folders() {
		_ = os.Remove(f)
	}
}

func (g *group) usage() Usage {
	var u Usage
	if g.unified != "" {
		u.CPUSeconds = float64(keyed(g.unified, "cpu.stat", "usage_usec")) / 1e6
		u.MemoryBytes = number(g.unified, "memory.current") - keyed(g.unified, "memory.stat", "inactive_file")
	} else if g.memory != "" && g.cpuacct != "" {
		u.CPUSeconds = float64(number(g.cpuacct, "cpuacct.usage")) / 1e9
		u.MemoryBytes = number(g.memory, "memory.usage_in_bytes") - keyed(g.memory, "memory.stat", "total_inactive_file")
	}
	u.MemoryBytes = max(0, u.MemoryBytes)
	return u
}

func (g *group) outOfMemory() bool {
	switch {
	case g.unified != "":
		return keyed(g.unified, "memory.events", "oom_kill") > 0
	case g.memory != "":
		return keyed(g.memory, "memory.oom_control", "oom_kill") > 0
	}
	return false
}

// number reads a file with one number; what cannot be read counts as 0.
func number(folder, file string) int64 {
	b, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// keyed reads a number from a file of "key number" lines.
func keyed(folder, file, key string) int64 {
	b, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == key {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n
		}
	}
	return 0
}
