package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	adminPassword = "correct horse battery staple"
	// patience bounds every wait of these tests; nothing is expected to take this long.
	patience = 3 * time.Minute
)

// process is a binary under test.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *lockedBuffer // stderr, and stdout after the first line
	line string        // the first line of stdout
	done chan struct{}
}

// launch runs a binary, and does not wait for anything.
func launch(t *testing.T, env []string, name string, args ...string) (p *process, first <-chan string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Env = append(os.Environ(), env...)
	p = &process{t: t, cmd: cmd, log: &lockedBuffer{}, done: make(chan struct{})}
	cmd.Stderr = p.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make(chan string, 1)
	go func() {
		defer close(p.done)
		r := bufio.NewReader(stdout)
		text, _ := r.ReadString('\n')
		line <- strings.TrimSpace(text)
		_, _ = io.Copy(p.log, r)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %s wrote:\n%s", name, strings.Join(args, " "), tail(p.log.String(), 12000))
		}
	})
	return p, line
}

// start runs a binary and waits for its first line on stdout, which says that it is ready.
func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p, first := launch(t, env, name, args...)
	select {
	case p.line = <-first:
		if p.line == "" {
			t.Fatalf("%s ended before it was ready:\n%s", name, p.log.String())
		}
	case <-time.After(patience):
		t.Fatalf("%s did not become ready:\n%s", name, p.log.String())
	}
	return p
}

// kill ends the process as a power cut would, and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop ends the process as an operator would, and answers its exit code.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s did not stop on SIGTERM", p.cmd.Path)
	}
	return p.cmd.ProcessState.ExitCode()
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// plane is a running `freehold server` and an administrator's session on it.
type plane struct {
	*process
	dir   string
	args  []string
	url   string
	token string
}

// startPlane starts a server on an empty or existing data folder and logs in.
func startPlane(t *testing.T, dir string, args ...string) *plane {
	t.Helper()
	p := &plane{dir: dir, args: args}
	p.boot(t)
	return p
}

func (p *plane) boot(t *testing.T) {
	t.Helper()
	args := append([]string{"server", "--data", p.dir, "--listen", "127.0.0.1:0", "--apply-debounce", "100ms"}, p.args...)
	p.process = start(t, []string{"FREEHOLD_ADMIN_PASSWORD=" + adminPassword, "XDG_CONFIG_HOME=" + filepath.Join(p.dir, "config")}, "freehold", args...)
	for field := range strings.FieldsSeq(p.line) {
		if url, ok := strings.CutPrefix(field, "api="); ok {
			p.url = url
		}
	}
	if p.url == "" {
		t.Fatalf("the ready line names no api: %q", p.line)
	}
	p.token = ""
	login := p.want(http.StatusOK, "POST", "/api/v1/auth/login", `{"username":"admin","password":"`+adminPassword+`"}`)
	p.token = login.str("token")
}

// crash kills the server and starts it again on the same data.
func (p *plane) crash(t *testing.T) {
	t.Helper()
	p.kill()
	p.boot(t)
}

// object is a decoded JSON answer.
type object map[string]any

// at follows a dotted path; nil where it ends early.
func (o object) at(path string) any {
	var v any = map[string]any(o)
	for key := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

func (o object) str(path string) string { s, _ := o.at(path).(string); return s }
func (o object) num(path string) int    { f, _ := o.at(path).(float64); return int(f) }
func (o object) bool(path string) bool  { b, _ := o.at(path).(bool); return b }

func (o object) items() []object {
	list, _ := o["items"].([]any)
	out := make([]object, 0, len(list))
	for _, v := range list {
		out = append(out, object(v.(map[string]any)))
	}
	return out
}

func (o object) json() string { b, _ := json.Marshal(o); return string(b) }

// call sends one request with the session's token; the body is JSON text.
func (p *plane) call(method, path, body string) (int, []byte) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, data
}

// want calls and insists on a status.
func (p *plane) want(status int, method, path, body string) object {
	p.t.Helper()
	got, data := p.call(method, path, body)
	if got != status {
		p.t.Fatalf("%s %s: %d, want %d: %s", method, path, got, status, data)
	}
	if len(data) == 0 {
		return nil
	}
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		p.t.Fatalf("%s %s: %v: %s", method, path, err, data)
	}
	return o
}

// eventually polls until f answers "" (reached); what it answers else is why not.
func eventually(t *testing.T, what string, f func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %s", what, patience, why)
		}
		<-tick.C
	}
}

// untilActive waits until a tenant is active and ready with n machines.
func (p *plane) untilActive(t *testing.T, tenant string, n int) object {
	t.Helper()
	var got object
	eventually(t, "tenant "+tenant+" active", func() string {
		got = p.want(http.StatusOK, "GET", "/api/v1/tenants/"+tenant, "")
		if got.str("status.phase") == "active" && got.bool("status.ready") && got.num("status.machines.healthy") == n && got.num("status.machines.total") == n {
			return ""
		}
		return fmt.Sprint(got.at("status"))
	})
	return got
}

// untilGone waits until a tenant is not found and none of its machines is left to it.
func (p *plane) untilGone(t *testing.T, tenant string) {
	t.Helper()
	eventually(t, "tenant "+tenant+" gone", func() string {
		status, data := p.call("GET", "/api/v1/tenants/"+tenant, "")
		if status == http.StatusNotFound {
			return ""
		}
		return string(data)
	})
	list := p.want(http.StatusOK, "GET", "/api/v1/machines?labelSelector=rezuscloud.io/tenant%3D"+tenant, "")
	if list.num("total") != 0 {
		t.Fatalf("machines still carry the label of %s: %s", tenant, list.json())
	}
}
