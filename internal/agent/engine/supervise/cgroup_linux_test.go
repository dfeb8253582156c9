package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// A folder stands for the mount: what is written where is the kernel's contract.
func TestUnifiedCgroupsAreWrittenAsTheKernelWants(t *testing.T) {
	mount := t.TempDir()
	own := filepath.Join(mount, "system.slice/agent.service")
	write(t, filepath.Join(mount, "cgroup.controllers"), "cpu memory")
	write(t, filepath.Join(own, "cgroup.subtree_control"), "")
	c := locate(mount, "0::/system.slice/agent.service\n", "")
	if err := c.limitsError(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(own, "cgroup.subtree_control")); got != "+cpu +memory" {
		t.Errorf("controllers handed down: %q", got)
	}
	folder := filepath.Join(own, "freehold-run-1")
	for _, file := range []string{"memory.max", "memory.oom.group", "cpu.max"} {
		write(t, filepath.Join(folder, file), "")
	}
	g, err := c.make("run-1", Limits{CPUMillicores: 1500, MemoryMiB: 64})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.max": "67108864", "memory.oom.group": "1", "cpu.max": "150000 100000"} {
		if got := read(t, filepath.Join(folder, file)); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	if enter := g.enter(); len(enter) != 1 || enter[0] != filepath.Join(folder, "cgroup.procs") {
		t.Errorf("enter %v", enter)
	}
	if leave := c.leave(); len(leave) != 1 || leave[0] != filepath.Join(own, "cgroup.procs") {
		t.Errorf("leave by %v", leave)
	}
	write(t, filepath.Join(folder, "cpu.stat"), "usage_usec 2500000\nuser_usec 1\n")
	write(t, filepath.Join(folder, "memory.current"), "1000\n")
	write(t, filepath.Join(folder, "memory.stat"), "anon 1\ninactive_file 400\n")
	write(t, filepath.Join(folder, "memory.events"), "low 0\noom 1\noom_kill 1\n")
	write(t, filepath.Join(folder, "cgroup.procs"), "12\n34\n")
	if u := g.usage(); u.CPUSeconds != 2.5 || u.MemoryBytes != 600 {
		t.Errorf("usage = %+v", u)
	}
	if !g.outOfMemory() {
		t.Error("the kernel's kill was not seen")
	}
	if pids := g.pids(); len(pids) != 2 || pids[1] != 34 {
		t.Errorf("pids = %v", pids)
	}
}

func TestMissingCgroupsAreSaid(t *testing.T) {
	for name, own := range map[string]string{"none": "", "only one": "3:memory:/\n", "v2 without a mount": "0::/a\n"} {
		if err := locate(t.TempDir(), own, "").limitsError(); err == nil {
			t.Errorf("%s: limits are said to be enforced", name)
		}
	}
}
