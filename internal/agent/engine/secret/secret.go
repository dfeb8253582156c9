// Package secret finds and resolves the references to secrets, ${secret:name}, in what config versions hold.
package secret

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/hub"
)

var (
	reference = regexp.MustCompile(`\$\{secret:([^}]*)\}?`)
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// In tells whether a text refers to a secret.
func In(text string) bool { return strings.Contains(text, "${secret:") }

// Check tells what is wrong with the references of a text.
func Check(text string) error {
	var errs []error
	for _, m := range reference.FindAllStringSubmatch(text, -1) {
		if !strings.HasSuffix(m[0], "}") || !nameForm.MatchString(m[1]) {
			errs = append(errs, fmt.Errorf("%q is no reference to a secret: write ${secret:name}, the name of letters, digits, '.', '_' and '-'", m[0]))
		}
	}
	return errors.Join(errs...)
}

// Expand puts the secrets' values in place of the references. Its error is an [*engine.Error] that names the secret.
func Expand(text string, resolve func(name string) (string, error)) (string, error) {
	if !In(text) {
		return text, nil
	}
	if err := Check(text); err != nil {
		return "", &engine.Error{Failure: hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config", Message: err.Error()}}
	}
	var failed error
	expanded := reference.ReplaceAllStringFunc(text, func(match string) string {
		name := reference.FindStringSubmatch(match)[1]
		if resolve == nil {
			failed = missing(name, errors.New("this node has no secrets"))
			return ""
		}
		value, err := resolve(name)
		if err != nil {
			failed = missing(name, err)
		}
		return value
	})
	if failed != nil {
		return "", failed
	}
	return expanded, nil
}

// missing is transient: an operator puts the secret there, and all goes on.
func missing(name string, err error) error {
	return &engine.Error{Failure: hub.Failure{
		Class: hub.Transient, Code: "secret_missing",
		Message: fmt.Sprintf("secret %q cannot be read on this node: %v", name, err),
	}}
}
