package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Reasons of a [Problem]. The first seven are the operator API's standard ones; the others are used where none of
// those fits.
const (
	ReasonBadRequest       = "BadRequest"
	ReasonUnauthorized     = "Unauthorized"
	ReasonForbidden        = "Forbidden"
	ReasonNotFound         = "NotFound"
	ReasonMethodNotAllowed = "MethodNotAllowed"
	ReasonConflict         = "Conflict"
	ReasonInternalError    = "InternalError"

	ReasonGone               = "Gone"
	ReasonPayloadTooLarge    = "PayloadTooLarge"
	ReasonTooManyRequests    = "TooManyRequests"
	ReasonServiceUnavailable = "ServiceUnavailable"
)

// Cause is one fault of a request: the field's path ("spec.plugins.cni.type", a parameter's name) and what is
// wrong with it.
type Cause struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Problem is why a request was not served. As an error it may come from any handler; each API renders it in its
// own envelope. Its text is shown to clients.
type Problem struct {
	// Status is the HTTP status.
	Status int
	// Reason is a word for programs. Empty: the one that belongs to Status.
	Reason string
	// Message tells a person what is wrong, and what to do next.
	Message string
	Causes  []Cause
	// Details are for programs, in envelopes that have a place for them.
	Details any
	// Header is sent along (Retry-After, Allow).
	Header http.Header
}

func (p *Problem) Error() string { return p.Message }

// BadRequest is a request that cannot be understood or accepted.
func BadRequest(format string, args ...any) *Problem {
	return problem(http.StatusBadRequest, ReasonBadRequest, format, args)
}

// Unauthorized is a request without valid credentials.
func Unauthorized(format string, args ...any) *Problem {
	return problem(http.StatusUnauthorized, ReasonUnauthorized, format, args)
}

// Forbidden is a request that its caller may not make.
func Forbidden(format string, args ...any) *Problem {
	return problem(http.StatusForbidden, ReasonForbidden, format, args)
}

// NotFound is a request for something that does not exist.
func NotFound(format string, args ...any) *Problem {
	return problem(http.StatusNotFound, ReasonNotFound, format, args)
}

// Conflict is a request that the present state of the object does not allow.
func Conflict(format string, args ...any) *Problem {
	return problem(http.StatusConflict, ReasonConflict, format, args)
}

// Modified is the conflict of an update whose resource version is not the current one.
func Modified() *Problem { return Conflict("%s", store.ErrConflict.Error()) }

// Unavailable is a request that cannot be served now.
func Unavailable(format string, args ...any) *Problem {
	return problem(http.StatusServiceUnavailable, ReasonServiceUnavailable, format, args)
}

// TooMany is a request that may be repeated after a while.
func TooMany(after time.Duration, format string, args ...any) *Problem {
	p := problem(http.StatusTooManyRequests, ReasonTooManyRequests, format, args)
	seconds := max(1, int64((after+time.Second-1)/time.Second))
	p.Header = http.Header{"Retry-After": {strconv.FormatInt(seconds, 10)}}
	return p
}

// Invalid is a request with faults, all of them, each with its field. It is nil without causes: do not assign it to
// an error variable unseen.
func Invalid(causes ...Cause) *Problem {
	if len(causes) == 0 {
		return nil
	}
	const shown = 3
	var b strings.Builder
	if len(causes) > 1 {
		fmt.Fprintf(&b, "%d faults: ", len(causes))
	}
	for i, c := range causes {
		if i == shown {
			fmt.Fprintf(&b, "; and %d more", len(causes)-shown)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		if c.Field != "" {
			b.WriteString(c.Field)
			b.WriteString(": ")
		}
		b.WriteString(c.Message)
	}
	return &Problem{Status: http.StatusBadRequest, Reason: ReasonBadRequest, Message: b.String(), Causes: causes}
}

func problem(status int, reason, format string, args []any) *Problem {
	return &Problem{Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// reasonOf is the standard reason of a status.
func reasonOf(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return ReasonUnauthorized
	case http.StatusForbidden:
		return ReasonForbidden
	case http.StatusNotFound:
		return ReasonNotFound
	case http.StatusMethodNotAllowed:
		return ReasonMethodNotAllowed
	case http.StatusConflict:
		return ReasonConflict
	case http.StatusGone:
		return ReasonGone
	case http.StatusRequestEntityTooLarge:
		return ReasonPayloadTooLarge
	case http.StatusTooManyRequests:
		return ReasonTooManyRequests
	case http.StatusServiceUnavailable:
		return ReasonServiceUnavailable
	}
	if status >= 500 {
		return ReasonInternalError
	}
	return ReasonBadRequest
}

// StoreProblem maps the store's errors; nil for any other error. What is not found or exists already is named by
// the text that err was wrapped with.
func StoreProblem(err error) *Problem {
	switch {
	case errors.Is(err, store.ErrConflict):
		return Modified()
	case errors.Is(err, store.ErrNotFound):
		return NotFound("%s", sentence(err, store.ErrNotFound))
	case errors.Is(err, store.ErrExists):
		return Conflict("%s", sentence(err, store.ErrExists))
	case errors.Is(err, store.ErrClaimed):
		return Conflict("%s", sentence(err, store.ErrClaimed))
	case errors.Is(err, store.ErrCompacted):
		return &Problem{Status: http.StatusGone, Reason: ReasonGone,
			Message: "the asked resourceVersion is too old and no longer kept; start the watch again without resourceVersion"}
	case errors.Is(err, store.ErrFull):
		return Unavailable("the server's disk is full: nothing was changed; free space in its data folder and try again")
	case errors.Is(err, store.ErrClosed):
		return Unavailable("the server is shutting down; try again")
	}
	return nil
}

// sentence reads `tenant "prod" not found`, where the store wrote `tenant "prod": not found`.
func sentence(err, known error) string {
	return strings.Replace(err.Error(), ": "+known.Error(), " "+known.Error(), 1)
}

// problemOf turns any error into a problem; the second value is the error to log, if it is the server's fault.
func (a *API) problemOf(ctx context.Context, err error) (*Problem, error) {
	var p *Problem
	if errors.As(err, &p) && p != nil {
		return p, nil
	}
	if a.config.Problem != nil {
		if p := a.config.Problem(err); p != nil {
			return p, nil
		}
	}
	if p := StoreProblem(err); p != nil {
		return p, nil
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Unavailable("the request took too long and was given up; try again"), err
	case errors.Is(err, context.Canceled):
		return Unavailable("the request was given up; try again"), nil
	}
	return internal(ctx), err
}

func internal(ctx context.Context) *Problem {
	return problem(http.StatusInternalServerError, ReasonInternalError,
		"internal error; the server's log has the details under request id %s", []any{RequestID(ctx)})
}

// Failure is the operator API's envelope of a problem.
type Failure struct {
	Status  string          `json:"status" enum:"failure"`
	Message string          `json:"message" doc:"What is wrong, for people."`
	Reason  string          `json:"reason" doc:"What is wrong, for programs." enum:"NotFound,Conflict,BadRequest,Forbidden,Unauthorized,InternalError,MethodNotAllowed,Gone,PayloadTooLarge,TooManyRequests,ServiceUnavailable"`
	Code    int             `json:"code" doc:"The HTTP status."`
	Details *FailureDetails `json:"details,omitempty"`
}

// FailureDetails lists every fault of an invalid request.
type FailureDetails struct {
	Causes []Cause `json:"causes"`
}

// FailureEnvelope renders a problem as [Failure]. It is the default of [Config].
func FailureEnvelope(_ context.Context, p *Problem) any {
	f := &Failure{Status: "failure", Message: p.Message, Reason: p.Reason, Code: p.Status}
	if f.Reason == "" {
		f.Reason = reasonOf(p.Status)
	}
	if len(p.Causes) > 0 {
		f.Details = &FailureDetails{Causes: p.Causes}
	}
	return f
}
