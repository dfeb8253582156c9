package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// silence after which a watch's connection is taken for dead: the server sends a heartbeat every 15 s.
const silence = 50 * time.Second

// message of a server-sent event stream. id is 0 where none was sent.
type message struct {
	id   int64
	data []byte
}

// stream follows an events endpoint after a revision (0: from what exists) and hands each message on, an empty one
// when it begins, until handle answers an error, the connection ends (errEnded) or breaks (a ConnectError), or ctx
// ends.
func (c *Client) stream(ctx context.Context, path string, q url.Values, since int64, handle func(message) error) error {
	q.Set("watch", "true")
	q.Set("sse", "true")
	if since > 0 {
		q.Set("resourceVersion", strconv.FormatInt(since, 10))
	}
	r := request{method: http.MethodGet, path: path, query: q, header: http.Header{"Accept": {"text/event-stream"}}}

	streamCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dead := time.AfterFunc(silence, func() { cancel(errors.New("the connection fell silent")) })
	defer dead.Stop()

	resp, err := c.send(streamCtx, r, nil)
	if err != nil {
		return c.sendError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 300 {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return decodeError(r, resp, data)
	}
	if err := handle(message{}); err != nil {
		return err
	}
	messages := &messageReader{r: bufio.NewReader(resp.Body), alive: func() { dead.Reset(silence) }}
	for {
		m, err := messages.next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return errEnded
		case err != nil:
			if cause := context.Cause(streamCtx); cause != nil {
				err = cause
			}
			return &ConnectError{Server: c.Server(), Err: err}
		}
		if err := handle(m); err != nil {
			return err
		}
	}
}

// messageReader splits a server-sent event stream. An unfinished message at the end is dropped, as it was never
// sent whole.
type messageReader struct {
	r     *bufio.Reader
	alive func()
}

func (s *messageReader) next() (message, error) {
	var m message
	for {
		line, err := s.r.ReadBytes('\n')
		if err != nil {
			return message{}, err
		}
		s.alive()
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if m.id != 0 || len(m.data) > 0 {
				return m, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if len(m.data) > 0 {
				m.data = append(m.data, '\n')
			}
			m.data = append(m.data, value...)
		case "id":
			if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				m.id = n
			}
		}
	}
}
