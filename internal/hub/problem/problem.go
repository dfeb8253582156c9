// Package problem renders refusals of the Hub plane's APIs: a stable code, a message for people, the correlation id, and
// details that belong to the code.
package problem

import (
	"context"
	"net/http"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
)

// CorrelationHeader carries the correlation id, in both directions.
const CorrelationHeader = "X-Correlation-ID"

// The codes of the Hub plane. A code belongs to one HTTP status.
const (
	CodeBadRequest            = "bad_request"
	CodeValidationFailed      = "validation_failed"
	CodeUnauthorized          = "unauthorized"
	CodeForbidden             = "forbidden"
	CodeNotFound              = "not_found"
	CodeMethodNotAllowed      = "method_not_allowed"
	CodeRequestTimeout        = "request_timeout"
	CodeConflict              = "conflict"
	CodeGenerationConflict    = "generation_conflict"
	CodeIdempotencyKeyReused  = "idempotency_key_reused"
	CodeOperationTerminal     = "operation_terminal"
	CodeStreamNotRunning      = "stream_not_running"
	CodeNodeDeleting          = "node_deleting"
	CodeGone                  = "gone"
	CodePayloadTooLarge       = "payload_too_large"
	CodeRateLimited           = "rate_limited"
	CodeRepositoryUnavailable = "repository_unavailable"
	CodeNodeUnavailable       = "node_unavailable"
	CodeInternal              = "internal"
)

// codes of problems that say no more than a status.
var codes = map[int]string{
	http.StatusBadRequest:            CodeBadRequest,
	http.StatusUnauthorized:          CodeUnauthorized,
	http.StatusForbidden:             CodeForbidden,
	http.StatusNotFound:              CodeNotFound,
	http.StatusMethodNotAllowed:      CodeMethodNotAllowed,
	http.StatusRequestTimeout:        CodeRequestTimeout,
	http.StatusConflict:              CodeConflict,
	http.StatusGone:                  CodeGone,
	http.StatusPreconditionFailed:    CodeGenerationConflict,
	http.StatusRequestEntityTooLarge: CodePayloadTooLarge,
	http.StatusUnprocessableEntity:   CodeValidationFailed,
	http.StatusTooManyRequests:       CodeRateLimited,
	http.StatusServiceUnavailable:    CodeRepositoryUnavailable,
}

// New makes a problem with a code of this plane.
func New(status int, code, message string, details any) *rest.Problem {
	return &rest.Problem{Status: status, Reason: code, Message: message, Details: details}
}

// Invalid is a request that is well formed and asks for what cannot be: every fault with its field. It is nil without
// faults: do not assign it to an error variable unseen.
func Invalid(faults ...rest.Cause) *rest.Problem {
	p := rest.Invalid(faults...)
	if p != nil {
		p.Status, p.Reason = http.StatusUnprocessableEntity, CodeValidationFailed
	}
	return p
}

// Code of a problem: its own, or the one of its status where the kernel made it.
func Code(p *rest.Problem) string {
	if p.Reason != "" && p.Reason[0] >= 'a' && p.Reason[0] <= 'z' {
		return p.Reason
	}
	if code, ok := codes[p.Status]; ok {
		return code
	}
	if p.Status >= 500 {
		return CodeInternal
	}
	return CodeBadRequest
}

// Envelope is for [rest.Config].
func Envelope(ctx context.Context, p *rest.Problem) any {
	e := &client.HubProblem{Code: Code(p), Message: p.Message, CorrelationID: rest.RequestID(ctx), Details: p.Details}
	if e.Details == nil && len(p.Causes) > 0 {
		fields := make([]client.Cause, len(p.Causes))
		for i, c := range p.Causes {
			fields[i] = client.Cause{Field: c.Field, Message: c.Message}
		}
		e.Details = client.HubFaults{Fields: fields}
	}
	return e
}
