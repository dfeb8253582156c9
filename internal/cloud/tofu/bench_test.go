package tofu

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// workbench is a tenant's folder, a plane that takes its state, and a world that tofu changes.
type workbench struct {
	testing.TB
	tofu     Binary
	root     string
	folder   Folder
	template string
	world    string
	phrase   string
	runs     int

	mu      sync.Mutex
	away    bool // the plane answers nothing
	state   []byte
	serial  int64
	posts   int
	badPost []string
	plane   *httptest.Server
}

func newWorkbench(t testing.TB) *workbench {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	b, err := Find(t.Context(), os.Getenv("FREEHOLD_TOFU"))
	if err != nil {
		t.Fatal(err)
	}
	w := &workbench{TB: t, tofu: b, root: t.TempDir(), world: t.TempDir(), phrase: rand.Text() + rand.Text()}
	if w.template, err = Prepare(t.Context(), w.root, b); err != nil {
		t.Fatal(err)
	}
	w.folder = Folder(filepath.Join(w.root, "uid-1"))
	w.plane = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.plane.Close)
	if err := PublishBackend(w.root, w.plane.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.folder.signal(9)
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		if err := w.folder.Wait(ctx, time.Now().Add(time.Hour), time.Hour); err != nil {
			t.Errorf("something is still alive: %v", err)
		}
	})
	return w
}

func (w *workbench) serve(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		rw.WriteHeader(http.StatusBadGateway)
		return
	}
	if r.Method == http.MethodGet {
		if w.state == nil {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = rw.Write(w.state)
		return
	}
	if err := w.takeLocked(body); err != nil {
		w.badPost = append(w.badPost, err.Error())
		rw.WriteHeader(http.StatusBadRequest)
		return
	}
	w.posts++
}

func (w *workbench) takeLocked(body []byte) error {
	env, err := ReadEnvelope(body)
	if err != nil {
		return err
	}
	if env.Serial < w.serial {
		return fmt.Errorf("serial %d after %d", env.Serial, w.serial)
	}
	w.state, w.serial = body, env.Serial
	return nil
}

func (w *workbench) setAway(away bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = away
}

// things renders a configuration of things in the world, by slot key.
func (w *workbench) things(things map[string]map[string]any) []byte {
	for key, m := range things {
		m["path"] = filepath.Join(w.world, key)
		for _, k := range []string{"text", "kind", "delay_ms", "hang", "fail", "secret"} {
			if _, ok := m[k]; !ok {
				m[k] = nil
			}
		}
	}
	raw, err := json.Marshal(map[string]any{
		"terraform": map[string]any{
			"backend":            map[string]any{"http": map[string]any{}},
			"encryption":         Encryption(""),
			"required_providers": map[string]any{"world": map[string]any{"source": "freehold/world"}},
		},
		"locals": map[string]any{"things": things},
		"resource": map[string]any{"world_thing": map[string]any{"t": map[string]any{
			"for_each": "${local.things}", "path": "${each.value.path}", "text": "${each.value.text}", "kind": "${each.value.kind}",
			"delay_ms": "${each.value.delay_ms}", "hang": "${each.value.hang}", "fail": "${each.value.fail}",
			"secret": "${each.value.secret}",
		}}},
	})
	if err != nil {
		w.Fatal(err)
	}
	return raw
}

func (w *workbench) request(stages ...Stage) Request {
	w.runs++
	w.mu.Lock()
	defer w.mu.Unlock()
	return Request{
		Run: fmt.Sprintf("run-%d", w.runs), Tenant: "prod", Tofu: w.tofu.Path, Template: w.template, Stages: stages,
		State: w.state, Passphrase: w.phrase, Credential: rand.Text(), Deadline: time.Now().Add(5 * time.Minute), Grace: 30 * time.Second,
	}
}

func (w *workbench) self() []string {
	self, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	return []string{self, "tofu-run"}
}

func (w *workbench) start(req Request) {
	w.Helper()
	if err := w.folder.Start(w.Context(), w.self(), req); err != nil {
		w.Fatal(err)
	}
}

func (w *workbench) wait(req Request) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	if err := w.folder.Wait(ctx, req.Deadline, req.Grace); err != nil {
		w.Fatal(err)
	}
}

// do runs the request to its end.
func (w *workbench) do(req Request) Outcome {
	w.Helper()
	w.start(req)
	w.wait(req)
	o, err := w.folder.Outcome(req.Run)
	if err != nil {
		stderr, _ := os.ReadFile(filepath.Join(w.folder.run(req.Run), "stderr"))
		w.Fatalf("run %s: %v\n%s", req.Run, err, stderr)
	}
	return o
}

// collect delivers what dead runs left behind, as the plane does.
func (w *workbench) collect() (delivered int) {
	w.Helper()
	left, err := w.folder.Leftovers()
	if err != nil {
		w.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range left {
		if l.Serial > w.serial {
			if err := w.takeLocked(l.Body); err != nil {
				w.Fatal(err)
			}
			delivered++
		}
		if err := l.Remove(); err != nil {
			w.Fatal(err)
		}
	}
	return delivered
}

// inState answers the slot keys that the stored state knows.
func (w *workbench) inState() map[string]bool {
	w.Helper()
	raw, err := Pull(w.Context(), w.tofu, w.template, w.plane.URL+"/state", "r", "r", w.phrase)
	if err != nil {
		w.Fatal(err)
	}
	var v struct {
		Resources []struct {
			Instances []struct {
				Key string `json:"index_key"`
			} `json:"instances"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		w.Fatal(err)
	}
	keys := map[string]bool{}
	for _, r := range v.Resources {
		for _, i := range r.Instances {
			keys[i.Key] = true
		}
	}
	return keys
}

func (w *workbench) until(what string, ok func() bool) {
	w.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			w.Fatalf("not within a minute: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (w *workbench) exists(name string) bool {
	_, err := os.Stat(filepath.Join(w.world, name))
	return err == nil
}
