package talos

import (
	"errors"
	"sort"
	"strings"

	"go.yaml.in/yaml/v4"
)

const (
	unknownKeys = "unknown keys found during decoding:\n"
	maxPaths    = 8
)

// plainError says what the machinery says in one line, and names unknown keys by path instead of printing what stands
// below them, which may be secret.
func plainError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	var several interface {
		error
		WrappedErrors() []error
	}
	if errors.As(err, &several) && len(several.WrappedErrors()) > 0 {
		lines := make([]string, 0, len(several.WrappedErrors()))
		for _, e := range several.WrappedErrors() {
			if line := plainError(e); line != nil {
				lines = append(lines, line.Error())
			}
		}
		text = strings.Replace(text, several.Error(), strings.Join(lines, "; "), 1)
	}
	if before, after, found := strings.Cut(text, unknownKeys); found {
		return errors.New(before + "unknown keys: " + strings.Join(leafPaths(after), ", "))
	}
	return errors.New(oneLine(text))
}

// leafPaths lists the paths of a YAML mapping's leaves ("machine.install.foo").
func leafPaths(text string) []string {
	var root any
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		return []string{"(see the patch)"}
	}
	var paths []string
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		m, ok := v.(map[string]any)
		if !ok || len(m) == 0 {
			paths = append(paths, prefix)
			return
		}
		for k, child := range m {
			p := k
			if prefix != "" {
				p = prefix + "." + k
			}
			walk(p, child)
		}
	}
	walk("", root)
	sort.Strings(paths)
	if len(paths) > maxPaths {
		paths = append(paths[:maxPaths], "…")
	}
	return paths
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "\n", " ")), " ")
}
