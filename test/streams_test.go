package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// road leads agents to a plane that gets another address each time it starts.
type road struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
}

func openRoad(t *testing.T, p *plane) *road {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &road{listener: l}
	r.leadTo(t, p)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go r.carry(conn)
		}
	}()
	return r
}

func (r *road) url() string { return "http://" + r.listener.Addr().String() }

func (r *road) leadTo(t *testing.T, p *plane) {
	t.Helper()
	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = u.Host
}

func (r *road) carry(in net.Conn) {
	defer in.Close()
	r.mu.Lock()
	to := r.to
	r.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		out.Close()
	}()
	_, _ = io.Copy(in, out)
}

// node is a machine with an agent.
type node struct {
	*process
	t    *testing.T
	name string
	data string
}

// join registers a node, enrols its agent, and runs it.
func (p *plane) join(t *testing.T, r *road, name string) *node {
	t.Helper()
	n := &node{t: t, name: name, data: t.TempDir()}
	token := p.want(http.StatusCreated, "POST", "/api/v1/nodes", `{"node_id":"`+name+`"}`).str("enrolment_token")
	enrol := exec.Command(filepath.Join(bin, "freehold-agent"), "enroll", "--server", r.url(), "--node", name, "--token", token, "--data", n.data)
	if out, err := enrol.CombinedOutput(); err != nil {
		t.Fatalf("enroll: %v\n%s", err, out)
	}
	n.run()
	return n
}

func (n *node) run() {
	n.t.Helper()
	n.process, _ = launch(n.t, nil, "freehold-agent", "run", "--data", n.data, "--log-level", "debug")
}

// publish answers the version of a content.
func (p *plane) publish(t *testing.T, engine, content string) string {
	t.Helper()
	body, err := json.Marshal(map[string]string{"engine": engine, "content": content})
	if err != nil {
		t.Fatal(err)
	}
	return p.want(http.StatusCreated, "POST", "/api/v1/config-versions", string(body)).str("config_version")
}

func streamPath(node, stream string) string { return "/api/v1/nodes/" + node + "/streams/" + stream }

func (p *plane) declare(node, stream, state, version string) object {
	p.t.Helper()
	body := fmt.Sprintf(`{"state":%q,"config_version":%q}`, state, version)
	return p.want(http.StatusAccepted, "PUT", streamPath(node, stream)+"/desired-state", body)
}

// untilInSync waits until a generation of a stream is what the node reports.
func (p *plane) untilInSync(t *testing.T, node, stream string, generation int) object {
	t.Helper()
	var got object
	eventually(t, "stream "+stream+" in sync", func() string {
		got = p.want(http.StatusOK, "GET", streamPath(node, stream), "")
		if got.str("convergence") == "in_sync" && got.num("observed.generation") == generation {
			return ""
		}
		return got.json()
	})
	return got
}

// single is a program that notes each of its starts, and whether another run of it was alive then.
func single(t *testing.T) (content string, starts func() []string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "starts")
	script := fmt.Sprintf("exec 9>%s/lock; flock -n 9 || echo twice >>%s; echo $$ >>%s; exec sleep 100000", dir, log, log)
	raw, err := json.Marshal(map[string]any{"command": "sh", "args": []string{"-c", script}, "ready_after": "10ms"})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw), func() []string {
		text, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		lines := strings.Fields(string(text))
		for _, line := range lines {
			if line == "twice" {
				t.Errorf("two runs of one stream were alive at once: %v", lines)
			}
		}
		return lines
	}
}

// TestStreamsOutliveCrashesOfBothSides kills the agent and the plane around a program and a pipeline.
func TestStreamsOutliveCrashesOfBothSides(t *testing.T) {
	var mu sync.Mutex
	arrived := map[string]int{}
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		arrived[string(body)]++
	}))
	defer sink.Close()
	flowing := func(what string) {
		t.Helper()
		mu.Lock()
		before := len(arrived)
		mu.Unlock()
		eventually(t, what, func() string {
			mu.Lock()
			defer mu.Unlock()
			if len(arrived) > before+5 {
				return ""
			}
			return fmt.Sprintf("%d messages, %d before", len(arrived), before)
		})
	}

	p := startPlane(t, t.TempDir())
	r := openRoad(t, p)
	n := p.join(t, r, "edge-1")
	program, starts := single(t)
	pipeline := "input:\n  generate:\n    interval: 20ms\n    mapping: 'root = uuid_v4()'\noutput:\n  http_client:\n    url: " + sink.URL + "\n    verb: POST\n"
	// A run that is in sync may not have come to its first line yet.
	started := func(when string, n int) {
		t.Helper()
		eventually(t, "starts "+when, func() string {
			if got := starts(); len(got) != n {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	job, pipe := p.publish(t, "process", program), p.publish(t, "benthos", pipeline)
	p.declare("edge-1", "job", "running", job)
	p.declare("edge-1", "pipe", "running", pipe)
	p.untilInSync(t, "edge-1", "job", 1)
	p.untilInSync(t, "edge-1", "pipe", 1)
	flowing("messages")
	started("at first", 1)

	// The agent dies, and comes back.
	n.kill()
	n.run()
	started("after the agent's death", 2)
	flowing("messages after the agent's death")

	// The plane dies; a change is declared to its next life, and reaches the agent there.
	p.crash(t)
	r.leadTo(t, p)
	p.want(http.StatusAccepted, "POST", streamPath("edge-1", "job")+"/actions/restart", `{"action_id":"once"}`)
	p.untilInSync(t, "edge-1", "job", 2)
	started("after one restart", 3)

	// Without a plane the agent goes on, across its own death too.
	p.kill()
	n.kill()
	n.run()
	flowing("messages without a plane")
	started("after the agent's second death", 4)
	p.boot(t)
	r.leadTo(t, p)
	p.untilInSync(t, "edge-1", "job", 2)
	p.untilInSync(t, "edge-1", "pipe", 1)

	// Stopped is stopped, and a deleted node leaves nothing running.
	p.declare("edge-1", "pipe", "stopped", pipe)
	p.untilInSync(t, "edge-1", "pipe", 2)
	p.want(http.StatusAccepted, "DELETE", "/api/v1/nodes/edge-1", "")
	eventually(t, "node gone", func() string {
		status, data := p.call("GET", "/api/v1/nodes/edge-1", "")
		if status == http.StatusNotFound {
			return ""
		}
		return string(data)
	})
	got := starts()
	if alive(got[len(got)-1]) {
		t.Error("the program of a deleted node is alive")
	}
	if len(got) != 4 {
		t.Errorf("starts at the end: %v", got)
	}
}

func alive(pid string) bool {
	_, err := os.Stat("/proc/" + pid)
	return err == nil
}
