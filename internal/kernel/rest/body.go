package rest

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
)

// readBody reads a request's body into buf: 413 beyond limit, 400 when it ends early or takes too long.
func readBody(w http.ResponseWriter, r *http.Request, buf *bytes.Buffer, limit int64) error {
	if r.ContentLength > limit {
		tooLargeClose(w)
		return tooLarge(limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	// The deadline is taken off again: it would otherwise end the request's context while it is being served.
	rc := http.NewResponseController(w)
	if r.ProtoMajor == 1 {
		if rc.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
			defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
		}
	}
	_, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		tooLargeClose(w)
		return &Problem{Status: http.StatusRequestTimeout, Reason: ReasonBadRequest,
			Message: "the request body did not arrive in time; send it again"}
	case err != nil:
		return BadRequest("the request body ended early; send it again")
	case int64(buf.Len()) > limit:
		tooLargeClose(w)
		return tooLarge(limit)
	}
	return nil
}

// tooLargeClose ends the connection after the answer, instead of reading the rest of the body.
func tooLargeClose(w http.ResponseWriter) { w.Header().Set("Connection", "close") }

func tooLarge(limit int64) *Problem {
	return problem(http.StatusRequestEntityTooLarge, ReasonPayloadTooLarge,
		"the request body is larger than %d bytes", []any{limit})
}

// curlType is what curl -d says of any body when it is not told better. It is taken as no type at all: what browsers
// post across sites is stopped by its origin, not by its type.
const curlType = "application/x-www-form-urlencoded"

// checkMediaType accepts the wanted media type in UTF-8; without a Content-Type header the body is taken as such.
func checkMediaType(r *http.Request, want string) error {
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return BadRequest("the Content-Encoding %q is not supported: send the body as it is", e)
	}
	got := r.Header.Get("Content-Type")
	if got == "" || got == want || got == curlType {
		return nil
	}
	media, params, err := mime.ParseMediaType(got)
	if err == nil && media == want {
		if charset := params["charset"]; charset == "" || strings.EqualFold(charset, "utf-8") {
			return nil
		}
	}
	return BadRequest("the Content-Type must be %s, not %q", want, got)
}
