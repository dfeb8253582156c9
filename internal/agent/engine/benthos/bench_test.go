package benthos_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/supervise"
)

// BenchmarkStart measures from the start of a trivial pipeline to its being ready, and what its processes keep.
func BenchmarkStart(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	s, err := supervise.New(supervise.Config{Command: []string{self, "supervise"}})
	if err != nil {
		b.Fatal(err)
	}
	e := benthos.New(benthos.Config{Supervisor: s, Command: []string{self, "stream-host"}, Env: process.BaseEnv(os.Environ())})
	var anonymous, resident, shim float64
	n := 0
	for b.Loop() {
		n++
		r, err := e.Start(context.Background(), engine.Spec{
			Stream: "s", Token: "bench-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(n), Log: func(string, string) {},
			Content: "input: {generate: {mapping: 'root = {}', interval: 1s}}\noutput: {drop: {}}",
		})
		if err != nil {
			b.Fatal(err)
		}
		<-r.Ready()
		b.StopTimer()
		pid := benthos.Pid(r)
		anonymous += status(b, pid, "RssAnon:")
		resident += status(b, pid, "VmRSS:")
		shim += status(b, int(status(b, pid, "PPid:")*1024), "RssAnon:")
		if err := r.Stop(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(resident/float64(n), "rss-MiB")
	b.ReportMetric(anonymous/float64(n), "private-MiB")
	b.ReportMetric(shim/float64(n), "supervisor-private-MiB")
}

// status reads a number of /proc/PID/status, divided by 1024: MiB where it is in KiB.
func status(b *testing.B, pid int, key string) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == key {
			n, _ := strconv.ParseFloat(fields[1], 64)
			return n / 1024
		}
	}
	b.Fatal("no ", key)
	return 0
}
