package benthos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redpanda-data/benthos/v4/public/service"
	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/internal/agent/engine/supervise"
	"freehold.dev/freehold/internal/hub"
)

const (
	readyPoll     = 20 * time.Millisecond
	metricsPeriod = time.Second
	// listenTime is how long an HTTP server has to tell that it cannot listen.
	listenTime = 250 * time.Millisecond
)

// Host runs one stream: the whole of a hidden subcommand of the agent, which answers the status to exit with. The job
// comes by standard input, what happens goes to descriptor 3. SIGTERM drains the stream.
func Host() int {
	syscall.CloseOnExec(3)
	h := &host{notices: json.NewEncoder(os.NewFile(3, "status")), counters: newCollector(), failed: make(chan hub.Failure, 1)}
	// The agent may be gone before the stream is drained: what is printed then is lost, no more.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	if err := json.NewDecoder(os.Stdin).Decode(&h.job); err != nil && !errors.Is(err, io.EOF) {
		return 1
	}
	// Processes that the stream starts are told apart by what they inherit, and see no more than that.
	_ = os.Setenv("FREEHOLD_STREAM", h.job.Stream)
	if h.job.MemoryMiB > 0 {
		debug.SetMemoryLimit(int64(h.job.MemoryMiB) << 20 / 10 * 9)
	}
	if failed := h.run(terminated); failed != nil {
		h.tell(notice{Failed: failed})
		return 1
	}
	return 0
}

type host struct {
	job      job
	counters *collector
	// failed is what only the log of the library tells.
	failed chan hub.Failure

	mu      sync.Mutex
	notices *json.Encoder
}

func (h *host) tell(n notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.notices.Encode(n)
}

func (h *host) run(terminated <-chan os.Signal) *hub.Failure {
	stream, endpoints, failed := h.build()
	if failed != nil {
		return failed
	}
	ended := make(chan error, 1)
	go func() { ended <- stream.Run(context.Background()) }()
	stop, stopped := context.WithCancel(context.Background())
	var watchers sync.WaitGroup
	starting, started := context.WithCancel(stop)
	watchers.Go(func() { h.awaitReady(starting, endpoints) })
	watchers.Go(func() { h.reportMetrics(stop) })
	defer func() {
		stopped()
		watchers.Wait()
		c := h.counters.read()
		h.tell(notice{Metrics: &c})
	}()
	defer started()
	select {
	case err := <-ended:
		if err != nil {
			return startFailure(err)
		}
		h.tell(notice{Finished: true})
		return nil
	case <-terminated:
		h.drain(stream)
		return nil
	case failure := <-h.failed:
		started() // what failed does not become ready while it is drained
		h.drain(stream)
		return &failure
	}
}

// drain lets what is in flight be delivered; what is not in time is given back to its source, or stays there.
func (h *host) drain(stream *service.Stream) {
	ctx, cancel := context.WithTimeout(context.Background(), h.job.Grace)
	defer cancel()
	if err := stream.Stop(ctx); err != nil {
		h.tell(notice{Log: "the stream was not drained: " + err.Error()})
	}
}

func (h *host) build() (*service.Stream, *endpoints, *hub.Failure) {
	env, err := environment()
	if err != nil {
		return nil, nil, &hub.Failure{Class: hub.Permanent, Code: "start_failed", Message: err.Error()}
	}
	env = env.Clone()
	exporter := func(*service.ParsedConfig, *service.Logger) (service.MetricsExporter, error) { return h.counters, nil }
	if err := env.RegisterMetricsExporter("freehold", service.NewConfigSpec(), exporter); err != nil {
		return nil, nil, &hub.Failure{Class: hub.Permanent, Code: "start_failed", Message: err.Error()}
	}
	b := env.NewStreamBuilder()
	e := &endpoints{}
	b.SetLogger(slog.New(&logHandler{host: h, level: logLevel(h.job.Config)}))
	b.SetHTTPMux(e)
	if err := b.SetYAML(h.job.Config); err != nil {
		return nil, nil, &rejected("%v", err).Failure
	}
	if err := b.SetMetricsYAML("freehold: {}"); err != nil {
		return nil, nil, &hub.Failure{Class: hub.Permanent, Code: "start_failed", Message: err.Error()}
	}
	stream, err := b.Build()
	if err != nil {
		return nil, nil, startFailure(err)
	}
	return stream, e, nil
}

// startFailure tells what the content is to blame for from what the node is.
func startFailure(err error) *hub.Failure {
	var errno syscall.Errno
	var path *os.PathError
	if errors.As(err, &errno) || errors.As(err, &path) {
		return &hub.Failure{Class: hub.Transient, Code: "start_failed", Message: err.Error()}
	}
	return &rejected("%v", err).Failure
}

func logLevel(config string) slog.Level {
	var c struct {
		Logger struct {
			Level string `yaml:"level"`
		} `yaml:"logger"`
	}
	level := slog.LevelInfo
	if yaml.Unmarshal([]byte(config), &c) == nil {
		switch strings.ToUpper(c.Logger.Level) {
		case "TRACE", "ALL":
			return slog.LevelDebug - 4
		case "OFF", "NONE", "FATAL":
			return slog.LevelError + 4
		}
		_ = level.UnmarshalText([]byte(c.Logger.Level))
	}
	return level
}

// endpoints takes what the stream would serve: only whether it is ready is of interest.
type endpoints struct {
	mu    sync.Mutex
	ready http.HandlerFunc
}

// HandleFunc keeps the endpoint that answers whether the stream is ready.
func (e *endpoints) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if pattern == "/ready" {
		e.ready = handler
	}
}

// answer keeps a status and a body.
type answer struct {
	status int
	body   []byte
}

func (a *answer) Header() http.Header { return http.Header{} }

func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(b []byte) (int, error) {
	a.body = append(a.body, b...)
	return len(b), nil
}

func (e *endpoints) isReady() bool {
	e.mu.Lock()
	handler := e.ready
	e.mu.Unlock()
	if handler == nil {
		return false
	}
	a := &answer{status: http.StatusOK}
	handler(a, &http.Request{Method: http.MethodGet})
	return a.status == http.StatusOK
}

func (h *host) awaitReady(ctx context.Context, e *endpoints) {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for !e.isReady() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	if strings.Contains(h.job.Config, "http_server") {
		// Such a component is ready before its server listens, and that it cannot is told later.
		select {
		case <-time.After(listenTime):
		case <-ctx.Done():
			return
		}
	}
	h.tell(notice{Ready: true})
}

func (h *host) reportMetrics(ctx context.Context) {
	tick := time.NewTicker(metricsPeriod)
	defer tick.Stop()
	last := counters{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if c := h.counters.read(); c != last {
			last = c
			h.tell(notice{Metrics: &c})
		}
	}
}

// logHandler puts the library's log into the stream's.
type logHandler struct {
	host  *host
	level slog.Level
	attrs []slog.Attr
}

func (l *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= l.level || level >= slog.LevelError
}

func (l *logHandler) Handle(_ context.Context, r slog.Record) error {
	message := strings.TrimSpace(r.Message)
	// An HTTP server that cannot listen says so in its log only.
	if reason, listening := strings.CutPrefix(message, "Server error: "); listening && r.Level >= slog.LevelError {
		select {
		case l.host.failed <- hub.Failure{Class: hub.Transient, Code: "listen_failed", Message: reason}:
		default:
		}
	}
	if r.Level < l.level {
		return nil
	}
	var line strings.Builder
	fmt.Fprintf(&line, "%s %s", r.Level, message)
	each := func(a slog.Attr) bool {
		if a.Key != "@service" && a.Key != "stream" && a.Value.String() != "" {
			fmt.Fprintf(&line, " %s=%v", a.Key, a.Value)
		}
		return true
	}
	for _, a := range l.attrs {
		each(a)
	}
	r.Attrs(each)
	text := line.String()
	l.host.tell(notice{Log: text[:min(len(text), supervise.MaxLine/2)]})
	return nil
}

func (l *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{host: l.host, level: l.level, attrs: append(l.attrs[:len(l.attrs):len(l.attrs)], attrs...)}
}

func (l *logHandler) WithGroup(string) slog.Handler { return l }
