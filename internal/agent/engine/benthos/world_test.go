package benthos_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/supervise"
)

// The test program is also the supervisor and the host of streams.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(supervise.Main())
		case "stream-host":
			os.Exit(benthos.Host())
		}
	}
	os.Exit(m.Run())
}

const patience = 60 * time.Second

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited %s in vain for: %s", patience, what)
		case <-tick.C:
		}
	}
}

// runLog is what a run said.
type runLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *runLog) add(source, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, source+" "+line)
}

func (l *runLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// node is an agent's half of the engine.
type node struct {
	t       *testing.T
	engine  *benthos.Engine
	log     runLog
	secrets map[string]string
	runs    int
}

func newNode(t *testing.T) *node {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := supervise.New(supervise.Config{Command: []string{self, "supervise"}})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, secrets: map[string]string{}, engine: benthos.New(benthos.Config{
		Supervisor: s, Command: []string{self, "stream-host"}, Env: process.BaseEnv(os.Environ()),
	})}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the streams' log:\n" + n.log.String())
		}
	})
	return n
}

func (n *node) spec(content string) engine.Spec {
	n.runs++
	return engine.Spec{
		Stream: "orders", Token: strings.ReplaceAll(n.t.Name(), "/", ".") + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(n.runs),
		Content: content, Log: n.log.add,
		Secret: func(name string) (string, error) {
			if value, ok := n.secrets[name]; ok {
				return value, nil
			}
			return "", errors.New("no such secret")
		},
	}
}

func (n *node) start(content string) engine.Run {
	n.t.Helper()
	r, err := n.engine.Start(n.t.Context(), n.spec(content))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Stop(ctx)
	})
	return r
}

func (n *node) ready(r engine.Run) {
	n.t.Helper()
	select {
	case <-r.Ready():
	case <-r.Done():
		n.t.Fatalf("the stream ended: %+v", r.Err())
	case <-time.After(patience):
		n.t.Fatal("the stream does not get ready")
	}
}

func (n *node) ended(r engine.Run) {
	n.t.Helper()
	select {
	case <-r.Done():
	case <-time.After(patience):
		n.t.Fatal("the stream does not end")
	}
}

func (n *node) stop(r engine.Run) {
	n.t.Helper()
	if err := r.Stop(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	if f := r.Err(); f != nil {
		n.t.Errorf("a stopped stream failed: %+v", f)
	}
}

// kill ends the stream's process as a crash would.
func (n *node) kill(r engine.Run) {
	n.t.Helper()
	pid := benthos.Pid(r)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	n.ended(r)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
