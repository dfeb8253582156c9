package problem

import (
	"errors"
	"net/http"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/idempotency"
	"freehold.dev/freehold/internal/kernel/rest"
)

// conflict are the details of generation_conflict.
type conflict struct {
	// Expected is left out when any generation would have done.
	Expected *int64   `json:"expected_generation,omitempty"`
	Current  int64    `json:"current_generation"`
	Resource resource `json:"resource"`
}

type resource struct {
	Node   string `json:"node_id"`
	Stream string `json:"stream_id"`
}

// Of maps the errors of package hub to what operators are told; nil for others. It is for [rest.Config].
func Of(err error) *rest.Problem {
	var (
		notFound *hub.NotFoundError
		stale    *hub.GenerationConflictError
		terminal *hub.TerminalError
		invalid  *hub.ValidationError
	)
	switch {
	case errors.As(err, &notFound):
		return New(http.StatusNotFound, CodeNotFound, notFound.Error(), nil)
	case errors.As(err, &stale):
		return New(http.StatusPreconditionFailed, CodeGenerationConflict, stale.Error(), conflictOf(stale))
	case errors.As(err, &terminal):
		return New(http.StatusConflict, CodeOperationTerminal, terminal.Error(),
			map[string]any{"intent_id": terminal.IntentID, "state": terminal.State})
	case errors.As(err, &invalid):
		return Invalid(faults(invalid)...)
	}
	return ofValue(err)
}

func ofValue(err error) *rest.Problem {
	for _, known := range []struct {
		err    error
		status int
		code   string
	}{
		{hub.ErrNotRunning, http.StatusConflict, CodeStreamNotRunning},
		{hub.ErrNodeDeleting, http.StatusConflict, CodeNodeDeleting},
		{hub.ErrNodeExists, http.StatusConflict, CodeConflict},
		{hub.ErrNoRollback, http.StatusConflict, CodeConflict},
		{hub.ErrBadMatch, http.StatusBadRequest, CodeBadRequest},
		{idempotency.ErrReused, http.StatusConflict, CodeIdempotencyKeyReused},
	} {
		if errors.Is(err, known.err) {
			return New(known.status, known.code, known.err.Error(), nil)
		}
	}
	return nil
}

func conflictOf(e *hub.GenerationConflictError) conflict {
	c := conflict{Current: e.Current, Resource: resource{e.Node, e.Resource}}
	if e.Expected >= 0 {
		c.Expected = &e.Expected
	}
	return c
}

func faults(e *hub.ValidationError) []rest.Cause {
	causes := make([]rest.Cause, len(e.Fields))
	for i, f := range e.Fields {
		causes[i] = rest.Cause{Field: f.Field, Message: f.Message}
	}
	return causes
}
