package rest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/queryparam"
)

// exchange is one request and its answer, as huma sees them. The body was read before, and the answer is sent
// whole at the end: an error on the way can still become a proper answer.
type exchange struct {
	op     *huma.Operation
	r      *http.Request
	w      *response
	body   []byte
	status int
	// failed is the status of the problem that is answered; huma has its own idea of it.
	failed int
	out    *bytes.Buffer
	// streamed: the handler writes the answer itself.
	streamed bool
	// admit tells whether the caller may still do what it was let in for.
	admit func() error
}

var _ huma.Context = (*exchange)(nil)

func (x *exchange) Operation() *huma.Operation  { return x.op }
func (x *exchange) Context() context.Context    { return x.r.Context() }
func (x *exchange) TLS() *tls.ConnectionState   { return x.r.TLS }
func (x *exchange) Method() string              { return x.r.Method }
func (x *exchange) Host() string                { return x.r.Host }
func (x *exchange) RemoteAddr() string          { return x.r.RemoteAddr }
func (x *exchange) URL() url.URL                { return *x.r.URL }
func (x *exchange) Param(name string) string    { return x.r.PathValue(name) }
func (x *exchange) Query(name string) string    { return queryparam.Get(x.r.URL.RawQuery, name) }
func (x *exchange) BodyReader() io.Reader       { return bytes.NewReader(x.body) }
func (x *exchange) SetStatus(code int)          { x.status = code }
func (x *exchange) Status() int                 { return x.status }
func (x *exchange) SetHeader(name, v string)    { x.w.Header().Set(name, v) }
func (x *exchange) AppendHeader(name, v string) { x.w.Header().Add(name, v) }
func (x *exchange) BodyWriter() io.Writer       { return x.out }

// SetReadDeadline does nothing: the body was read before.
func (x *exchange) SetReadDeadline(time.Time) error { return nil }

func (x *exchange) Header(name string) string {
	// The media type was checked before; huma needs it for nothing but the choice of a decoder.
	if name == "Content-Type" || name == "Accept" {
		return "application/json"
	}
	return x.r.Header.Get(name)
}

func (x *exchange) EachHeader(f func(name, value string)) {
	for name, values := range x.r.Header {
		for _, v := range values {
			f(name, v)
		}
	}
}

func (x *exchange) Version() huma.ProtoVersion {
	return huma.ProtoVersion{Proto: x.r.Proto, ProtoMajor: x.r.ProtoMajor, ProtoMinor: x.r.ProtoMinor}
}

func (x *exchange) GetMultipartForm() (*multipart.Form, error) {
	return nil, errors.New("multipart forms are not supported")
}
