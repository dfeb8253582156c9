package client

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"freehold.dev/freehold/client/internal/dial"
	"freehold.dev/freehold/internal/hub"
)

// Error is the server's refusal of a request.
type Error struct {
	// Code is the HTTP status, Reason its word ("NotFound", "Conflict", "BadRequest", …; "generation_conflict", … in the
	// Hub's API).
	Code    int
	Reason  string
	Message string
	// Causes name each fault of a refused body, with the path of its field.
	Causes []Cause
	// CorrelationID finds the request in the server's log.
	CorrelationID string
	// RetryAfter is how long the server asked to wait; 0 when it did not.
	RetryAfter time.Duration
	// Details are for programs, as JSON; nil when there are none.
	Details json.RawMessage

	lints []hub.Lint
}

// Cause is one fault of a request.
type Cause struct {
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Error is the server's message, with the causes that the message does not tell.
func (e *Error) Error() string {
	text := e.Message
	sep := ": "
	for _, c := range e.Causes {
		if strings.Contains(e.Message, c.Message) {
			continue
		}
		text += sep
		if c.Field != "" {
			text += c.Field + ": "
		}
		text += c.Message
		sep = "; "
	}
	return text
}

// ConnectError tells that the server could not be asked, or that its answer did not arrive. A request that changes
// something may have been carried out all the same.
type ConnectError struct {
	Server string
	Err    error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("no answer from the server at %s: %v", e.Server, e.Err)
}

func (e *ConnectError) Unwrap() error { return e.Err }

// Refused tells that nobody listens at the server's address.
func (e *ConnectError) Refused() bool { return errors.Is(e.Err, syscall.ECONNREFUSED) }

// Untrusted tells that the server's certificate was not accepted.
func (e *ConnectError) Untrusted() bool {
	var verify *tls.CertificateVerificationError
	var pinned *FingerprintError
	return errors.As(e.Err, &verify) || errors.As(e.Err, &pinned)
}

// Certificate is the certificate that was not accepted, if it is known.
func (e *ConnectError) Certificate() *x509.Certificate {
	var verify *tls.CertificateVerificationError
	if errors.As(e.Err, &verify) && len(verify.UnverifiedCertificates) > 0 {
		return verify.UnverifiedCertificates[0]
	}
	return nil
}

// FingerprintError tells that the server showed another certificate than the pinned one.
type FingerprintError = dial.FingerprintError

func hasReason(err error, reason string) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == reason
}

func hasCode(err error, code int) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// IsNotFound tells that the object, or the route, does not exist.
func IsNotFound(err error) bool { return hasCode(err, http.StatusNotFound) }

// IsConflict tells that the object was changed in the meantime, exists already, or is being deleted.
func IsConflict(err error) bool { return hasCode(err, http.StatusConflict) }

// IsGone tells that the revision to resume a watch from was compacted.
func IsGone(err error) bool { return hasCode(err, http.StatusGone) }

// IsUnauthorized tells that the token is missing, expired or revoked, or that the password is wrong.
func IsUnauthorized(err error) bool { return hasCode(err, http.StatusUnauthorized) }

// IsForbidden tells that the user's role does not allow the request.
func IsForbidden(err error) bool { return hasCode(err, http.StatusForbidden) }

// IsInvalid tells that the request's content was refused; see [Error.Causes].
func IsInvalid(err error) bool { return hasCode(err, http.StatusBadRequest) }

// IsMethodNotAllowed tells that the route does not offer the method.
func IsMethodNotAllowed(err error) bool { return hasCode(err, http.StatusMethodNotAllowed) }

// IsConnect tells that the server could not be asked.
func IsConnect(err error) bool {
	var e *ConnectError
	return errors.As(err, &e)
}

// envelope is the server's form of an error: {status, message, reason, code: 409, details: {causes}}, or the Hub's
// {code: "generation_conflict", message, correlation_id, details}.
type envelope struct {
	Message       string          `json:"message"`
	Reason        string          `json:"reason"`
	Code          json.RawMessage `json:"code"`
	CorrelationID string          `json:"correlation_id"`
	Details       json.RawMessage `json:"details"`
}

func (e envelope) toError() *Error {
	out := &Error{Reason: e.Reason, Message: e.Message, CorrelationID: e.CorrelationID, Details: e.Details}
	if json.Unmarshal(e.Code, &out.Code) != nil {
		_ = json.Unmarshal(e.Code, &out.Reason)
	}
	var details struct {
		Causes []Cause    `json:"causes"`
		Fields []Cause    `json:"fields"`
		Lints  []hub.Lint `json:"lints"`
	}
	if json.Unmarshal(e.Details, &details) == nil {
		out.Causes, out.lints = append(details.Causes, details.Fields...), details.Lints
	}
	return out
}

func decodeError(r request, resp *http.Response, body []byte) error {
	var env envelope
	e := &Error{}
	if json.Unmarshal(body, &env) == nil && env.Message != "" {
		e = env.toError()
	} else {
		// A proxy, or a server that is not Freehold, answers in its own way.
		e.Message = fmt.Sprintf("%s %s: the server answered %s", r.method, r.path, resp.Status)
	}
	e.Code = resp.StatusCode
	if e.Reason == "" {
		e.Reason = strings.ReplaceAll(http.StatusText(e.Code), " ", "")
	}
	for _, name := range []string{headerCorrelation, "X-Request-ID"} {
		if e.CorrelationID == "" {
			e.CorrelationID = resp.Header.Get(name)
		}
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}
