package agentapi

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"freehold.dev/freehold/client/internal/dial"
)

// Codes that the hub's APIs share.
const (
	CodeBadRequest            = "bad_request"
	CodeValidationFailed      = "validation_failed"
	CodeUnauthorized          = "unauthorized" // no session, or not one of this hub
	CodeForbidden             = "forbidden"
	CodeNotFound              = "not_found"
	CodeConflict              = "conflict"
	CodeRateLimited           = "rate_limited"
	CodeRepositoryUnavailable = "repository_unavailable" // the hub cannot store anything now
	CodeInternal              = "internal"
	// CodeEnrolmentRefused: the enrolment token is unknown, used with another key, expired, or another node's.
	CodeEnrolmentRefused = "enrolment_refused"
)

// Error is the hub's refusal of a request.
type Error struct {
	Status        int
	Code          string
	Message       string
	CorrelationID string
	// RetryAfter is how long the hub asked to wait; 0 when it did not.
	RetryAfter time.Duration
	Details    json.RawMessage
}

func (e *Error) Error() string { return e.Message }

// Challenge that comes with [CodeChallenge], or "".
func (e *Error) Challenge() string {
	var d struct {
		Challenge string `json:"challenge"`
	}
	_ = json.Unmarshal(e.Details, &d) // details of another form have none
	return d.Challenge
}

// Cursor that comes with [CodeStaleReport]: the newest report that the hub knows. It is zero otherwise.
func (e *Error) Cursor() Cursor {
	var c Cursor
	_ = json.Unmarshal(e.Details, &c) // details of another form have none
	return c
}

// Cursor orders the reports of a node.
type Cursor struct {
	BootSeq   int64 `json:"boot_seq"`
	ReportSeq int64 `json:"report_seq"`
}

// Before tells whether c is older than o.
func (c Cursor) Before(o Cursor) bool {
	return c.BootSeq < o.BootSeq || c.BootSeq == o.BootSeq && c.ReportSeq < o.ReportSeq
}

// HasCode tells whether err is a refusal with one of the codes.
func HasCode(err error, codes ...string) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}

// FingerprintError tells that the server showed another certificate than the pinned one.
type FingerprintError = dial.FingerprintError

// ConnectError tells that the hub could not be asked, or that its answer did not arrive. What was asked may have been
// done all the same.
type ConnectError struct {
	Server string
	Err    error
}

func (e *ConnectError) Error() string {
	if e.Untrusted() {
		return fmt.Sprintf("the certificate of %s is not trusted: %v", e.Server, e.Err)
	}
	return fmt.Sprintf("cannot reach the hub at %s: %v", e.Server, e.Err)
}

func (e *ConnectError) Unwrap() error { return e.Err }

// Untrusted tells that the hub showed a certificate that was not accepted.
func (e *ConnectError) Untrusted() bool {
	var verify *tls.CertificateVerificationError
	var pinned *FingerprintError
	return errors.As(e.Err, &verify) || errors.As(e.Err, &pinned)
}

// envelope is the hub's form of an error.
type envelope struct {
	Code          string          `json:"code"`
	Message       string          `json:"message"`
	CorrelationID string          `json:"correlation_id"`
	Details       json.RawMessage `json:"details"`
}

func decodeError(in call, resp *http.Response, body []byte) error {
	e := &Error{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header)}
	var env envelope
	if json.Unmarshal(body, &env) == nil && env.Code != "" && env.Message != "" {
		e.Code, e.Message, e.CorrelationID, e.Details = env.Code, env.Message, env.CorrelationID, env.Details
		return e
	}
	// A proxy, or a server that is no hub, answers in its own way.
	e.Code = strings.ToLower(strings.ReplaceAll(http.StatusText(resp.StatusCode), " ", "_"))
	if e.Code == "" {
		e.Code = fmt.Sprintf("http_%d", resp.StatusCode)
	}
	e.Message = fmt.Sprintf("%s %s: the server answered %s", in.method, in.path, resp.Status)
	return e
}
