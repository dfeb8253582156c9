package api

import (
	"errors"
	"net/http"

	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/rest"
)

// Problem maps identity's errors; nil for others. It is for [rest.Config].
func Problem(err error) *rest.Problem {
	var (
		invalid *identity.InvalidError
		limited *identity.LimitedError
	)
	switch {
	case errors.As(err, &invalid):
		causes := make([]rest.Cause, len(invalid.Faults))
		for i, f := range invalid.Faults {
			causes[i] = rest.Cause{Field: f.Field, Message: f.Message}
		}
		return rest.Invalid(causes...)
	case errors.As(err, &limited):
		return rest.TooMany(limited.After, "%s", limited)
	case errors.Is(err, identity.ErrUnauthenticated):
		return unauthenticated()
	case errors.Is(err, identity.ErrLastAdmin):
		return rest.Conflict("%s", identity.ErrLastAdmin)
	case errors.Is(err, identity.ErrForbidden):
		return rest.Forbidden("%s", identity.ErrForbidden)
	case errors.Is(err, identity.ErrNotSession):
		return rest.BadRequest("%s", identity.ErrNotSession)
	}
	return nil
}

func unauthenticated() *rest.Problem {
	return rest.Unauthorized("log in first: the credential is missing, expired or revoked")
}

// mapped translates the errors of the service for the API that they are answered through, whose own mapping may not know them.
func mapped(err error) error {
	if p := Problem(err); p != nil {
		return p
	}
	return err
}

// failedLogin does not tell which of the two was wrong.
func failedLogin(err error) error {
	if errors.Is(err, identity.ErrUnauthenticated) {
		return &rest.Problem{Status: http.StatusUnauthorized, Reason: rest.ReasonUnauthorized, Message: "wrong user name or password"}
	}
	return mapped(err)
}
