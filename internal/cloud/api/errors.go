package api

import (
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// invalid turns faults into one answer, nil without any.
func invalid(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	causes := make([]rest.Cause, len(errs))
	for i, e := range errs {
		causes[i] = rest.Cause{Field: e.Field, Message: e.ErrorBody()}
	}
	return rest.Invalid(causes...)
}

// fault is a request with one fault.
func fault(field, message string) error {
	return rest.Invalid(rest.Cause{Field: field, Message: message})
}

// refused maps the domain's refusals to a conflict with their own words.
func refused(err error) error {
	if errors.Is(err, cloud.ErrRefused) {
		return rest.Conflict("%s", strings.TrimPrefix(err.Error(), cloud.ErrRefused.Error()+": "))
	}
	return err
}

// named says what was not found, or is there already.
func named(err error, what, name string) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return rest.NotFound("%s %q not found", what, name)
	case errors.Is(err, store.ErrExists):
		return rest.Conflict("%s %q already exists", what, name)
	}
	return err
}
