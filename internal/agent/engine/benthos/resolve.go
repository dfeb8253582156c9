package benthos

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/secret"
	"freehold.dev/freehold/internal/agent/engine/strict"
	"freehold.dev/freehold/internal/hub"
)

// interpolation is what Benthos takes for a reference to a variable.
var interpolation = regexp.MustCompile(`\$\{[0-9A-Za-z_.]+(:((\$\{[^}]+\})|[^}])*)?(\|[0-9A-Za-z]+)?\}`)

// transformed is one that cannot be escaped.
var transformed = regexp.MustCompile(`\$\{[0-9A-Za-z_.]+(:[^}]*)?\|[0-9A-Za-z]+\}`)

var digits = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)

// resolve puts secrets into a content, as values: none can become syntax, nor a reference to a variable.
func resolve(content string, value func(name string) (string, error)) (string, error) {
	if !secret.In(content) {
		return content, nil
	}
	root, lints := strict.Parse(content)
	if len(lints) > 0 {
		return "", rejected("%s", lints[0].Message)
	}
	safe := func(name string) (string, error) {
		v, err := value(name)
		if err != nil {
			return "", err
		}
		if strings.Contains(v, "${!") || transformed.MatchString(v) {
			return "", errors.New("its value contains ${, which Benthos would execute")
		}
		return interpolation.ReplaceAllStringFunc(v, func(m string) string { return "${{" + m[2:] + "}" }), nil
	}
	if value == nil {
		safe = nil
	}
	if err := resolveNode(root, safe); err != nil {
		return "", err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	if err := encoder.Encode(root); err != nil {
		return "", rejected("%v", err)
	}
	return out.String(), nil
}

func resolveNode(n *yaml.Node, value func(string) (string, error)) error {
	if n.Kind == yaml.ScalarNode && secret.In(n.Value) {
		expanded, err := secret.Expand(n.Value, value)
		if err != nil {
			return err
		}
		// A port that stands for itself may stay a number.
		if n.Style != 0 || !digits.MatchString(expanded) {
			n.Tag, n.Style = "!!str", yaml.DoubleQuotedStyle
		} else {
			n.Tag = "!!int"
		}
		n.Value = expanded
	}
	for _, c := range n.Content {
		if err := resolveNode(c, value); err != nil {
			return err
		}
	}
	return nil
}

func rejected(format string, args ...any) *engine.Error {
	return &engine.Error{Failure: hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config", Message: fmt.Sprintf(format, args...)}}
}
