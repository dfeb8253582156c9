package rest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
)

// response remembers what was answered.
type response struct {
	http.ResponseWriter
	status int
	bytes  int64
	// streamed: the answer lasted as long as its reader wanted.
	streamed bool
	metrics  *Metrics
}

// statusClientGone is logged for requests whose client went away before the answer.
const statusClientGone = 499

// abandon ends a request whose client is gone.
func (w *response) abandon() {
	if w.status == 0 {
		w.status = statusClientGone
	}
	panic(http.ErrAbortHandler)
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap serves http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// writeJSON answers a whole JSON body.
func (w *response) writeJSON(status int, mediaType string, v any) {
	buf := getBuffer()
	defer putBuffer(buf)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", mediaType)
	w.writeBody(status, buf.Bytes())
}

func (w *response) writeBody(status int, body []byte) {
	if status != http.StatusNoContent && status != http.StatusNotModified {
		w.Header()["Content-Length"] = contentLength(len(body))
	} else {
		body = nil
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		// An error here means that the client is gone: there is nobody to tell.
		_, _ = w.Write(body)
	}
}

// Buffers above this size go back to the garbage collector.
const pooledBuffer = 256 << 10

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func getBuffer() *bytes.Buffer { return buffers.Get().(*bytes.Buffer) }

func putBuffer(b *bytes.Buffer) {
	if b.Cap() <= pooledBuffer {
		b.Reset()
		buffers.Put(b)
	}
}
