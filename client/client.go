package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"freehold.dev/freehold/client/internal/dial"
)

// Config of a [Client].
type Config struct {
	// Server is the base URL of the operator API, such as "https://cloud.example.com:8080".
	Server string
	// Token is sent as bearer token with every request, unless it is empty.
	Token string
	// CAFile is a PEM file of the authorities that the server's certificate is checked against, instead of the
	// system's.
	CAFile string
	// Fingerprint pins the server's own certificate, instead of asking any authority: the hexadecimal SHA-256 of
	// its DER form, with or without "sha256:" and colons.
	Fingerprint string
	// UserAgent names the program to the server. Default: "freehold-client".
	UserAgent string
	// Timeout of one attempt of a request that is not a watch. Default: 30 s.
	Timeout time.Duration
	// HTTPClient replaces the client that CAFile and Fingerprint configure.
	HTTPClient *http.Client
	// Warn receives what the server warns of ("an even number of control-plane machines …"). Default: dropped.
	Warn func(text string)
}

// Client of one server. It is safe for concurrent use.
type Client struct {
	base *url.URL
	http *http.Client
	cfg  Config
}

// attempts of a request that may be repeated.
const attempts = 4

// New makes a client. It reads the CA file, and does not contact the server.
func New(cfg Config) (*Client, error) {
	base, err := ParseServer(cfg.Server)
	if err != nil {
		return nil, err
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "freehold-client"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	c := &Client{base: base, http: cfg.HTTPClient, cfg: cfg}
	if c.http == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		if transport.TLSClientConfig, err = dial.TLS(cfg.CAFile, cfg.Fingerprint); err != nil {
			return nil, err
		}
		transport.MaxIdleConnsPerHost = 16
		c.http = &http.Client{Transport: transport}
	}
	return c, nil
}

// Server is the base URL that the client speaks to.
func (c *Client) Server() string { return c.base.String() }

// WithToken is the same client with another token.
func (c *Client) WithToken(token string) *Client {
	other := *c
	other.cfg.Token = token
	return &other
}

// ParseServer checks a server's base URL and completes it: a missing scheme is https, or http for a loopback
// address.
func ParseServer(server string) (*url.URL, error) { return dial.ParseServer(server) }

// IsLoopback tells whether a host name or address is this computer's own.
func IsLoopback(host string) bool { return dial.IsLoopback(host) }

// request to the server.
type request struct {
	method string
	path   string // "/api/v1/tenants/prod", escaped
	query  url.Values
	body   any // sent as JSON unless nil
	header http.Header
}

func (r *request) repeatable() bool {
	return r.method == http.MethodGet || r.header.Get(headerIdempotency) != ""
}

// do sends the request, decodes a JSON answer into out (unless nil), and answers an [*Error] for what the server
// refused or a [*ConnectError] when it could not be asked. Requests that change nothing, or that the server recognises
// by a key, are repeated when the connection broke or the server was not able to serve.
func (c *Client) do(ctx context.Context, r request, out any) error {
	data, err := c.raw(ctx, r)
	if err != nil || out == nil || len(data) == 0 {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s %s: the server's answer is not what this client understands: %w", r.method, r.path, err)
	}
	return nil
}

// raw is do without decoding.
func (c *Client) raw(ctx context.Context, r request) ([]byte, error) {
	body, err := encodeBody(r.body)
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		data, err := c.attempt(ctx, r, body)
		if err == nil || !r.repeatable() || n == attempts || !transient(err) {
			return data, err
		}
		if sleep(ctx, retryDelay(n, err)) != nil {
			return nil, err
		}
	}
}

func (c *Client) attempt(ctx context.Context, r request, body []byte) ([]byte, error) {
	attemptCtx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	resp, err := c.send(attemptCtx, r, body)
	if err != nil {
		return nil, c.sendError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, c.sendError(ctx, err)
	}
	if resp.StatusCode >= 300 {
		return nil, decodeError(r, resp, data)
	}
	return data, nil
}

func (c *Client) sendError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &ConnectError{Server: c.Server(), Err: err}
}

func (c *Client) send(ctx context.Context, r request, body []byte) (*http.Response, error) {
	u := c.base.String() + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json")
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	if c.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	}
	resp, err := c.http.Do(req)
	if err == nil && c.cfg.Warn != nil {
		for _, w := range resp.Header.Values("Warning") {
			c.cfg.Warn(warningText(w))
		}
	}
	return resp, err
}

// warningText takes the text out of a Warning header: 299 - "text".
func warningText(header string) string {
	if _, quoted, ok := strings.Cut(header, `"`); ok {
		if text, err := strconv.Unquote(`"` + quoted); err == nil {
			return text
		}
	}
	return header
}

func encodeBody(body any) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	if raw, ok := body.([]byte); ok {
		return raw, nil
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	return data, nil
}

// transient tells whether asking again soon may succeed. A refused connection is not: nobody listens there.
func transient(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		if e.Reason == CodeNodeUnavailable {
			return false // the server is well; the node may be away for long
		}
		return e.Code == http.StatusTooManyRequests && e.RetryAfter <= 5*time.Second ||
			e.Code == http.StatusBadGateway || e.Code == http.StatusServiceUnavailable || e.Code == http.StatusGatewayTimeout
	}
	var connect *ConnectError
	if !errors.As(err, &connect) || errors.Is(err, syscall.ECONNREFUSED) || connect.Untrusted() {
		return false
	}
	var dns *net.DNSError
	return !(errors.As(err, &dns) && dns.IsNotFound)
}

func retryDelay(attempt int, err error) time.Duration {
	var e *Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		return e.RetryAfter
	}
	return backoff(attempt, 100*time.Millisecond, 2*time.Second)
}

// backoff doubles from first up to most, less a random part of at most a half.
func backoff(attempt int, first, most time.Duration) time.Duration {
	d := most
	if attempt < 16 {
		d = min(first<<(attempt-1), most)
	}
	return d - time.Duration(rand.Int64N(int64(d)/2+1))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
