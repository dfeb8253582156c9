package tofu

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// MaxStateBytes is the largest state that is taken.
const MaxStateBytes = 64 << 20

// proxy is the state backend that one run's tofu talks to, on loopback. It answers from what it has, keeps each
// state durably in the spool before it says so, and passes it on to the plane as soon as the plane is there.
type proxy struct {
	folder   Folder
	request  *Request
	password string
	url      string
	server   *http.Server
	served   chan struct{}

	mu      sync.Mutex
	current []byte
	holder  json.RawMessage // the lock's info while tofu holds it
	pending []string        // spooled and not delivered, oldest first
	refusal error           // the plane refused a state: the rest waits for the plane's own judgement
	wake    chan struct{}
}

func newProxy(ctx context.Context, folder Folder, req *Request) (*proxy, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for tofu: %w", err)
	}
	p := &proxy{
		folder: folder, request: req, password: rand.Text(), url: "http://" + l.Addr().String() + "/state",
		served: make(chan struct{}), current: req.State, wake: make(chan struct{}, 1),
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l)
	}()
	return p, nil
}

func (p *proxy) close() {
	_ = p.server.Close()
	<-p.served
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, password, ok := r.BasicAuth(); !ok || subtle.ConstantTimeCompare([]byte(password), []byte(p.password)) != 1 {
		http.Error(w, "unknown credential", http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path == "/state" && r.Method == http.MethodGet:
		p.get(w)
	case r.URL.Path == "/state" && r.Method == http.MethodPost:
		p.post(w, r)
	case r.URL.Path == "/state/lock" && r.Method == "LOCK":
		p.lock(w, r)
	case r.URL.Path == "/state/lock" && r.Method == "UNLOCK":
		p.unlock(w)
	default:
		http.Error(w, "not part of this run", http.StatusMethodNotAllowed)
	}
}

func (p *proxy) get(w http.ResponseWriter) {
	p.mu.Lock()
	body := p.current
	p.mu.Unlock()
	if len(body) == 0 {
		http.Error(w, "no state", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-MD5", ContentMD5(body))
	_, _ = w.Write(body)
}

func (p *proxy) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxStateBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if sum := r.Header.Get("Content-MD5"); sum != "" && sum != ContentMD5(body) {
		http.Error(w, "the body is not what was sent", http.StatusBadRequest)
		return
	}
	env, err := ReadEnvelope(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path := filepath.Join(p.folder.spool(p.request.Run), fmt.Sprintf("%012d.tfstate", env.Serial))
	if err := writeFile(path, body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	p.mu.Lock()
	p.current = body
	if !slices.Contains(p.pending, path) {
		p.pending = append(p.pending, path)
	}
	p.mu.Unlock()
	p.nudge()
	w.WriteHeader(http.StatusOK)
}

func (p *proxy) lock(w http.ResponseWriter, r *http.Request) {
	info, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	if err != nil || !json.Valid(info) {
		http.Error(w, "a lock needs its info", http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder != nil {
		w.WriteHeader(http.StatusLocked)
		_, _ = w.Write(p.holder)
		return
	}
	p.holder = info
}

func (p *proxy) unlock(w http.ResponseWriter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holder = nil
	w.WriteHeader(http.StatusOK)
}

// released forgets a lock that a killed tofu left behind. Call it only when no tofu is alive.
func (p *proxy) released() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holder = nil
}

func (p *proxy) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

const forwardRetry = 500 * time.Millisecond

// forward delivers what is spooled until ctx ends. A delivery that has begun is not cut off.
func (p *proxy) forward(ctx context.Context) {
	for {
		var retry <-chan time.Time
		if p.deliver(context.WithoutCancel(ctx)) != nil {
			retry = time.After(forwardRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-retry:
		}
	}
}

// deliver sends the spooled states, oldest first, and stops at the first that the plane does not take.
func (p *proxy) deliver(ctx context.Context) error {
	for {
		p.mu.Lock()
		if len(p.pending) == 0 || p.refusal != nil {
			defer p.mu.Unlock()
			return nil
		}
		path := p.pending[0]
		p.mu.Unlock()

		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := p.send(ctx, body); err != nil {
			if errors.Is(err, errRefused) {
				p.mu.Lock()
				p.refusal = err
				p.mu.Unlock()
			}
			return err
		}
		p.mu.Lock()
		p.pending = p.pending[1:]
		again := slices.Contains(p.pending, path)
		p.mu.Unlock()
		if !again {
			_ = os.Remove(path)
		}
	}
}

// errRefused: the plane is there and does not take the state from this run.
var errRefused = errors.New("the plane refused the state")

func (p *proxy) send(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	base, err := os.ReadFile(p.folder.backendURL())
	if err != nil {
		return err
	}
	u := fmt.Sprintf("%s/api/v1/tenants/%s/state?ID=%s",
		strings.TrimSpace(string(base)), url.PathEscape(p.request.Tenant), url.QueryEscape(p.request.Run))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-MD5", ContentMD5(body))
	req.SetBasicAuth(p.request.Run, p.request.Credential)
	resp, err := (&http.Client{Transport: direct}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch {
	case resp.StatusCode/100 == 2:
		return nil
	case resp.StatusCode/100 == 4 && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout:
		return fmt.Errorf("%w: %s", errRefused, resp.Status)
	}
	return fmt.Errorf("the plane answered %s", resp.Status)
}

// direct never goes through a proxy: the plane listens on loopback.
var direct = &http.Transport{DisableKeepAlives: true}

// flush gives what is still spooled a last chance. What stays is the plane's to collect.
func (p *proxy) flush(ctx context.Context, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for p.deliver(ctx) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(forwardRetry / 5):
		}
	}
}
