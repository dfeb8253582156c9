package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

const (
	// defaultHeartbeat of watches.
	defaultHeartbeat = 15 * time.Second
	// defaultStall is how long a reader of a stream may take nothing before it is cut off.
	defaultStall = 30 * time.Second
	// A batch is sent in writes of about this size.
	streamChunk = 32 << 10
	// What a stream keeps of its buffer, in bytes, while it waits.
	idleBuffer = 4 << 10
	// readmitEvery is how long a stream sends without asking whether its caller would still be let in.
	readmitEvery = time.Second
)

// Stream is the output of an operation that streams. Make it with [WatchStream].
type Stream struct {
	Body func(huma.Context)
}

// Frames are the events of one revision, already encoded.
type Frames struct {
	// Revision to resume after; 0: the frames carry none.
	Revision int64
	// Events are JSON values without line breaks.
	Events [][]byte
}

// WatchInput is embedded in the input of watches.
type WatchInput struct {
	Watch           bool   `query:"watch" doc:"Follow the changes instead of answering the recent ones."`
	SSE             bool   `query:"sse" doc:"Send Server-Sent Events instead of JSON lines."`
	ResourceVersion string `query:"resourceVersion" doc:"Resume after this revision, without the objects that exist already."`
	LastEventID     string `header:"Last-Event-ID" doc:"What a browser sends when it resumes; resourceVersion comes first."`
}

// Since is the revision to resume after, 0 for none. The error is a *Problem that names the parameter.
func (in WatchInput) Since() (int64, error) {
	name, text := "resourceVersion", in.ResourceVersion
	if text == "" && in.SSE {
		name, text = "Last-Event-ID", in.LastEventID
	}
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, Invalid(Cause{Field: name, Message: "must be a revision: a whole number that is not negative"})
	}
	return n, nil
}

// Watch is a source of frames for [WatchStream].
type Watch struct {
	// SSE sends Server-Sent Events with the revision as their id, instead of JSON lines.
	SSE bool
	// Next waits for frames. When its context ends it answers the context's error, and may be called again. Any
	// other error ends the stream: its reader resumes, and is told what is wrong.
	Next func(context.Context) (Frames, error)
	// Close is called once, after the last Next.
	Close func()
	// Heartbeat (default 15 s) is how long nothing may happen before an empty line or an SSE comment
	// is sent.
	Heartbeat time.Duration
	// Stall (default 30 s) is how long the reader may take nothing before it is cut off.
	Stall time.Duration
}

// WatchStream sends a watch's frames until the client leaves, its credential ends, the source ends or the server
// drains. A heartbeat (an empty line, an SSE comment) goes out when nothing happened for a while; a client that stops
// reading is cut off. Call it last: whatever can fail, the first look at the source included, belongs before it.
func WatchStream(w Watch) *Stream {
	if w.Heartbeat == 0 {
		w.Heartbeat = defaultHeartbeat
	}
	if w.Stall == 0 {
		w.Stall = defaultStall
	}
	return &Stream{Body: func(hc huma.Context) { w.serve(hc.(*exchange)) }}
}

func (w *Watch) serve(x *exchange) {
	x.streamed, x.w.streamed = true, true
	if w.Close != nil {
		defer w.Close()
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	if w.SSE {
		h.Set("Content-Type", "text/event-stream")
	}
	h.Set("X-Accel-Buffering", "no") // proxies that buffer would hold events back
	if x.r.Method == http.MethodHead {
		x.w.WriteHeader(http.StatusOK)
		return
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	if drain, ok := ctx.Value(drainKey).(context.Context); ok {
		defer context.AfterFunc(drain, cancel)()
	}
	if m := x.w.metrics; m != nil {
		m.streams.Inc()
		defer m.streams.Dec()
	}
	out := &streamWriter{
		w: x.w, rc: http.NewResponseController(x.w), stall: w.Stall,
		admit: x.admit, admitted: time.Now(), readmit: min(readmitEvery, w.Heartbeat),
	}
	x.w.WriteHeader(http.StatusOK)
	if out.flush() != nil {
		return
	}
	_ = w.send(ctx, out) // its reader learns why when it resumes
}

func (w *Watch) send(ctx context.Context, out *streamWriter) error {
	for {
		frames, err := nextOrBeat(ctx, w.Heartbeat, w.Next)
		switch beat := errors.Is(err, errBeat); {
		case beat && w.SSE:
			out.raw(":\n\n")
		case beat:
			out.raw("\n")
		case err != nil:
			return err
		case w.SSE:
			out.events(frames)
		default:
			out.lines(frames)
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
}

var errBeat = errors.New("nothing happened for a heartbeat")

// nextOrBeat answers errBeat when it is time for a heartbeat.
func nextOrBeat(ctx context.Context, heartbeat time.Duration, next func(context.Context) (Frames, error)) (Frames, error) {
	waiting, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	frames, err := next(waiting)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return Frames{}, errBeat
	}
	return frames, err
}

// streamWriter gathers what belongs together and sends it under a deadline.
type streamWriter struct {
	w   *response
	rc  *http.ResponseController
	buf bytes.Buffer
	err error
	// stall is the deadline of one write.
	stall time.Duration
	// admit tells whether the reader would still be let in. It is asked before something is sent, every readmit at most.
	admit    func() error
	admitted time.Time
	readmit  time.Duration
}

func (s *streamWriter) raw(text string) { s.buf.WriteString(text) }

func (s *streamWriter) lines(f Frames) {
	for _, e := range f.Events {
		s.buf.Write(e)
		s.buf.WriteByte('\n')
		s.spill()
	}
}

// events sends the frames of one revision; only the last carries its id, so that a reader resumes after a whole one.
func (s *streamWriter) events(f Frames) {
	for i, e := range f.Events {
		if i == len(f.Events)-1 && f.Revision > 0 {
			s.buf.WriteString("id: ")
			s.buf.Write(strconv.AppendInt(s.buf.AvailableBuffer(), f.Revision, 10))
			s.buf.WriteByte('\n')
		}
		s.buf.WriteString("data: ")
		s.buf.Write(e)
		s.buf.WriteString("\n\n")
		s.spill()
	}
}

func (s *streamWriter) spill() {
	if s.buf.Len() >= streamChunk {
		s.send()
	}
}

func (s *streamWriter) send() {
	if now := time.Now(); s.err == nil && s.buf.Len() > 0 && now.Sub(s.admitted) >= s.readmit {
		s.err, s.admitted = s.admit(), now
	}
	if s.err == nil && s.buf.Len() > 0 {
		_ = s.rc.SetWriteDeadline(time.Now().Add(s.stall))
		_, s.err = s.w.Write(s.buf.Bytes())
	}
	s.buf.Reset()
}

func (s *streamWriter) flush() error {
	s.send()
	if s.buf.Cap() > idleBuffer {
		s.buf = bytes.Buffer{}
	}
	if s.err == nil {
		_ = s.rc.SetWriteDeadline(time.Now().Add(s.stall))
		s.err = s.rc.Flush()
	}
	return s.err
}

// EncodeEvent renders one watch event as a frame.
func EncodeEvent(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
