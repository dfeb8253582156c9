package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// RequestIDHeader carries the correlation id, in both directions, where an API names no other.
const RequestIDHeader = "X-Request-Id"

type contextKey int

const (
	requestKey contextKey = iota
	drainKey
)

// request is what the pipeline knows about the request that a context belongs to.
type request struct {
	http      *http.Request
	id        string
	caller    string
	operation string
	// failure is the server's own fault, to be logged.
	failure error
	// refuse tells of a problem that is about to be answered; nil where nobody wants to know.
	refuse func(*Problem)
}

// refused is called before a problem is answered.
func (req *request) refused(p *Problem) {
	if req.refuse != nil {
		req.refuse(p)
	}
}

// RequestID is the correlation id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	if r, ok := ctx.Value(requestKey).(*request); ok {
		return r.id
	}
	return ""
}

// OperationID names the operation that ctx belongs to, or is "".
func OperationID(ctx context.Context) string {
	if r, ok := ctx.Value(requestKey).(*request); ok {
		return r.operation
	}
	return ""
}

// Request is the HTTP request that ctx belongs to, for what no input field can carry (its address, its TLS state),
// or nil. Its body was read.
func Request(ctx context.Context) *http.Request {
	if r, ok := ctx.Value(requestKey).(*request); ok {
		return r.http
	}
	return nil
}

// requestID keeps a client's id of 1 to 128 letters, digits, '.', '_' and '-', and makes one otherwise.
func (a *API) requestID(r *http.Request) string {
	id := ""
	if values := r.Header[a.config.CorrelationHeader]; len(values) > 0 {
		id = values[0]
	}
	if id == "" || len(id) > 128 {
		return newRequestID()
	}
	for i := range len(id) {
		c := id[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return newRequestID()
		}
	}
	return id
}

func newRequestID() string {
	const digits = "0123456789abcdef"
	var b [32]byte
	for i := 0; i < len(b); i += 16 {
		u := rand.Uint64()
		for j := range 16 {
			b[i+j] = digits[u&15]
			u >>= 4
		}
	}
	return string(b[:])
}

// route is a registered operation with what its requests need.
type route struct {
	op        Operation
	wildcards []string
	metrics   operationMetrics
}

func (a *API) route(op Operation) *route {
	return &route{op: op, wildcards: wildcards(op.Path), metrics: a.config.Metrics.operation(op.ID)}
}

// changes tells whether the operation may change something.
func (rt *route) changes() bool {
	switch rt.op.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// wildcards lists the single-segment wildcards of a path.
func wildcards(path string) []string {
	var names []string
	for segment := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}") && !strings.HasSuffix(segment, "...}") && segment != "{$}" {
			names = append(names, segment[1:len(segment)-1])
		}
	}
	return names
}

// serve runs one request through the pipeline.
func (a *API) serve(rt *route, w http.ResponseWriter, r *http.Request, next func(*response, *http.Request)) {
	start := time.Now()
	req := &request{http: r, id: a.requestID(r), operation: rt.op.ID}
	r = r.WithContext(context.WithValue(r.Context(), requestKey, req))
	if a.config.Refused != nil && rt.changes() {
		req.refuse = func(p *Problem) {
			a.config.Refused(Refusal{Operation: rt.op, Request: r, Caller: req.caller, RequestID: req.id, Problem: p})
		}
	}
	rw := &response{ResponseWriter: w, metrics: a.config.Metrics}
	h := w.Header()
	h[a.config.CorrelationHeader] = []string{req.id}
	h["X-Content-Type-Options"] = nosniff
	h["Cache-Control"] = noStore
	rt.metrics.begin()
	defer func() {
		aborted := a.recovered(rw, r, recover())
		elapsed := time.Since(start)
		rt.metrics.end(rw.status, elapsed, rw.streamed)
		a.log(rt, rw, r, req, elapsed)
		if aborted {
			panic(http.ErrAbortHandler)
		}
	}()

	for _, name := range rt.wildcards {
		if !plainSegment(r.PathValue(name)) {
			a.fail(rw, r, NotFound("path %q not found", r.URL.Path))
			return
		}
	}
	if rt.op.Access != Public {
		ctx, err := a.admit(r, rt.op.Access)
		if ctx != nil {
			r = r.WithContext(ctx)
			if a.config.Caller != nil {
				req.caller = a.config.Caller(ctx)
			}
		}
		if err != nil {
			a.fail(rw, r, err)
			return
		}
	}
	next(rw, r)
}

var (
	nosniff = []string{"nosniff"}
	noStore = []string{"no-store"}
)

// plainSegment: an encoded slash or control character in a path segment is part of no name.
func plainSegment(s string) bool {
	if len(s) > 253 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c == '/' || c < ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// admit authenticates and authorises. The context is that of the caller, where one is known.
func (a *API) admit(r *http.Request, access Access) (context.Context, error) {
	if a.config.Authenticate == nil || a.config.Authorize == nil {
		return nil, Unauthorized("this API takes no credentials; only its public operations can be used")
	}
	ctx, err := a.config.Authenticate(r)
	if err != nil {
		return nil, err
	}
	return ctx, a.config.Authorize(ctx, access)
}

// readmit tells whether the caller of a request that goes on for long would still be let in.
func (a *API) readmit(r *http.Request, access Access) error {
	if access == Public {
		return nil
	}
	_, err := a.admit(r, access)
	return err
}

// fail answers a problem in the API's envelope.
func (a *API) fail(w *response, r *http.Request, err error) {
	p, fault := a.problemOf(r.Context(), err)
	if req, ok := r.Context().Value(requestKey).(*request); ok {
		if fault != nil {
			req.failure = fault
		}
		req.refused(p)
	}
	if r.Context().Err() != nil {
		w.abandon()
	}
	header(w, p)
	w.writeJSON(p.Status, a.config.ProblemType, a.config.Envelope(r.Context(), p))
}

func header(w http.ResponseWriter, p *Problem) {
	h := w.Header()
	for k, v := range p.Header {
		h[k] = v
	}
	if p.Status == http.StatusUnauthorized {
		h["Www-Authenticate"] = []string{`Bearer realm="freehold"`}
	}
}

// recovered answers a panic with 500, and tells whether the connection must be cut because an answer has begun.
func (a *API) recovered(w *response, r *http.Request, reason any) (abort bool) {
	if reason == nil {
		return false
	}
	if err, ok := reason.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return true
	}
	a.config.Logger.LogAttrs(r.Context(), slog.LevelError, "request handler panicked",
		slog.String("request_id", RequestID(r.Context())), slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.String("panic", fmt.Sprint(reason)), slog.String("stack", string(debug.Stack())))
	if w.status != 0 {
		return true
	}
	p := internal(r.Context())
	if req, ok := r.Context().Value(requestKey).(*request); ok {
		req.refused(p)
	}
	w.writeJSON(p.Status, a.config.ProblemType, a.config.Envelope(r.Context(), p))
	return false
}

// log writes the access log: no header, query or body, which may carry secrets. Reads that succeed are debug
// messages.
func (a *API) log(rt *route, w *response, r *http.Request, req *request, elapsed time.Duration) {
	level := slog.LevelInfo
	switch {
	case w.status >= 500:
		level = slog.LevelError
	case w.status < 400 && (rt.op.Routine || r.Method == http.MethodGet || r.Method == http.MethodHead):
		level = slog.LevelDebug
	}
	ctx := r.Context()
	if !a.config.Logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 10)
	attrs = append(attrs,
		slog.String("request_id", req.id), slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.String("operation", rt.op.ID), slog.Int("status", w.status), slog.Int64("bytes", w.bytes),
		slog.Float64("duration_ms", float64(elapsed.Microseconds())/1000), slog.String("remote", r.RemoteAddr))
	if req.caller != "" {
		attrs = append(attrs, slog.String("user", req.caller))
	}
	if req.failure != nil {
		attrs = append(attrs, slog.String("error", req.failure.Error()))
	}
	a.config.Logger.LogAttrs(ctx, level, "request", attrs...)
}

func contentLength(n int) []string { return []string{strconv.Itoa(n)} }
