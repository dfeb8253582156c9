package agentapi

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"freehold.dev/freehold/client/internal/dial"
)

// Options of a [Client].
type Options struct {
	// Server is the base URL of the hub, such as "https://hub.example.com:8080".
	Server string
	// CAFile is a PEM file of the authorities that the server's certificate is checked against, instead of the
	// system's.
	CAFile string
	// Fingerprint pins the server's own certificate, instead of asking any authority: the hexadecimal SHA-256 of
	// its DER form, with or without "sha256:" and colons.
	Fingerprint string
	// UserAgent names the program to the server. Default: "freehold-agent".
	UserAgent string
	// Timeout of one request, beside what a long poll waits. Default: 30 s.
	Timeout time.Duration
	// HTTPClient replaces the client that CAFile and Fingerprint configure.
	HTTPClient *http.Client
}

// Client is an agent's side of the protocol. It is safe for concurrent use. Over https all requests share one
// connection (HTTP/2), which is given up when the server stops answering pings.
//
// Every method answers an [*Error] for what the hub refused, and a [*ConnectError] when it could not be asked or its
// answer did not arrive. None of them tries again by itself: the agent knows better when.
type Client struct {
	base    *url.URL
	http    *http.Client
	options Options
	token   atomic.Pointer[string]
}

const (
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
	// maxAnswer bounds what is read of an answer: a config version of 1 MiB grows when it is quoted.
	maxAnswer = 16 << 20
)

// New makes a client. It reads the CA file, and does not contact the server.
func New(o Options) (*Client, error) {
	base, err := dial.ParseServer(o.Server)
	if err != nil {
		return nil, err
	}
	if o.UserAgent == "" {
		o.UserAgent = "freehold-agent"
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	c := &Client{base: base, http: o.HTTPClient, options: o}
	if c.http == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		if transport.TLSClientConfig, err = dial.TLS(o.CAFile, o.Fingerprint); err != nil {
			return nil, err
		}
		transport.ForceAttemptHTTP2 = true
		transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
		transport.DisableCompression = true
		c.http = &http.Client{Transport: transport}
	}
	return c, nil
}

// Server is the base URL that the client speaks to.
func (c *Client) Server() string { return c.base.String() }

// SetSessionToken is what the next requests carry. Enrol and Session set it by themselves.
func (c *Client) SetSessionToken(token string) { c.token.Store(&token) }

// SessionToken is what the next request carries, "" without a session.
func (c *Client) SessionToken() string {
	if token := c.token.Load(); token != nil {
		return *token
	}
	return ""
}

// Close gives up idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Enrol makes the node known with its key, and uses the session that it gets from then on. The same request may be
// repeated until the enrolment token expires.
func (c *Client) Enrol(ctx context.Context, in EnrolRequest) (*EnrolAnswer, error) {
	out := &EnrolAnswer{}
	if err := c.do(ctx, call{method: http.MethodPost, path: "/agent/v1/enroll", body: in, public: true}, out); err != nil {
		return nil, err
	}
	c.SetSessionToken(out.SessionToken)
	return out, nil
}

// Session renews the session: it proves with the node's key that the refresh credential is held by whom it was given
// to. Challenge and Signature of the request are filled in. The client uses the new session from then on.
func (c *Client) Session(ctx context.Context, in SessionRequest, key ed25519.PrivateKey) (*Session, error) {
	in.Challenge, in.Signature = "", ""
	ask := func() (*Session, error) {
		out := &Session{}
		return out, c.do(ctx, call{method: http.MethodPost, path: "/agent/v1/session", body: in, public: true}, out)
	}
	out, err := ask()
	var refused *Error
	if errors.As(err, &refused) && refused.Code == CodeChallenge {
		if in.Challenge = refused.Challenge(); in.Challenge == "" {
			return nil, fmt.Errorf("renew the session: the hub asks for a signature without saying over what: %w", err)
		}
		in.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(key, SessionStatement(in.NodeID, in.BootID, in.Challenge)))
		out, err = ask()
	}
	if err != nil {
		return nil, err
	}
	c.SetSessionToken(out.SessionToken)
	return out, nil
}

// Report tells the hub what the node observes. [CodeStaleReport] comes with [Error.Cursor].
func (c *Client) Report(ctx context.Context, in Report) (*ReportAnswer, error) {
	out := &ReportAnswer{}
	if err := c.do(ctx, call{method: http.MethodPost, path: "/agent/v1/reports", body: in}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Commands waits for work, up to wait. An answer without any is not an error: ask again.
func (c *Client) Commands(ctx context.Context, wait time.Duration) (*Commands, error) {
	out := &Commands{}
	query := url.Values{"wait": {wait.String()}}
	if err := c.do(ctx, call{method: http.MethodGet, path: "/agent/v1/commands", query: query, wait: wait}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Config fetches a config version by its id. The caller verifies the digest.
func (c *Client) Config(ctx context.Context, id string) (*ConfigContent, error) {
	out := &ConfigContent{}
	if err := c.do(ctx, call{method: http.MethodGet, path: "/agent/v1/config-versions/" + url.PathEscape(id)}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// AnswerRequest answers a [Request] that came with the commands. [CodeNotFound] means that nobody waits for it any more.
func (c *Client) AnswerRequest(ctx context.Context, requestID string, in LogAnswer) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/agent/v1/requests/" + url.PathEscape(requestID), body: in}, nil)
}

// call is one request to the hub.
type call struct {
	method, path string
	query        url.Values
	body         any
	// public: no session is needed, and none is sent.
	public bool
	wait   time.Duration
}

func (c *Client) do(ctx context.Context, in call, out any) error {
	timed, cancel := context.WithTimeout(ctx, c.options.Timeout+in.wait)
	defer cancel()
	req, err := c.request(timed, in)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.connectError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.connectError(ctx, err)
	case len(data) > maxAnswer:
		return fmt.Errorf("%s %s: the hub's answer is larger than %d bytes", in.method, in.path, maxAnswer)
	case resp.StatusCode >= http.StatusMultipleChoices:
		return decodeError(in, resp, data)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s %s: the hub's answer is not what this agent understands: %w", in.method, in.path, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, in call) (*http.Request, error) {
	var body io.Reader
	if in.body != nil {
		data, err := json.Marshal(in.body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	u := c.base.String() + in.path
	if len(in.query) > 0 {
		u += "?" + in.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, in.method, u, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.options.UserAgent)
	if token := c.SessionToken(); token != "" && !in.public {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

func (c *Client) connectError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &ConnectError{Server: c.Server(), Err: err}
}

func retryAfter(h http.Header) time.Duration {
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 {
		return time.Duration(s) * time.Second
	}
	return 0
}
