package benthos

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redpanda-data/benthos/v4/public/service"
	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/internal/agent/engine/secret"
	"freehold.dev/freehold/internal/agent/engine/strict"
	"freehold.dev/freehold/internal/hub"
)

const (
	// maxNodes bounds what a content's aliases expand to.
	maxNodes = 200_000
	// maxNesting bounds the brackets within each other in one text: mappings are read by backtracking.
	maxNesting = 64
)

// disableLint at its beginning would switch Benthos' linter off.
const disableLint = "# BENTHOS LINT DISABLE"

// Lint tells the faults of a content. It executes nothing of it and opens nothing.
func Lint(content string) []hub.Lint {
	root, lints := strict.Parse(content)
	if len(lints) > 0 {
		return lints
	}
	w := walker{sizes: map[*yaml.Node]int{}}
	if w.size(root) > maxNodes {
		return []hub.Lint{{Line: 1, Column: 1, Message: "the content expands to too much: it has aliases of aliases"}}
	}
	w.topLevel(root)
	w.walk(root)
	if len(w.lints) == 0 || !w.fatal {
		w.lints = append(w.lints, benthosLints(content)...)
	}
	slices.SortStableFunc(w.lints, func(a, b hub.Lint) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return w.lints
}

// linter is the library's; it keeps nothing of what it lints.
var linter = sync.OnceValues(func() (*service.StreamConfigLinter, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	return env.FullConfigSchema("", "").NewStreamConfigLinter().SetSkipEnvVarCheck(true).
		SetEnvVarLookupFunc(func(_ context.Context, name string) (string, bool) { return "x", variable(name) }), nil
})

var secretReference = regexp.MustCompile(`\$\{secret:[^}\n]*\}`)

// benthosLints are those of the library's own linter. It sees placeholders for secrets, as long as the references, and
// for variables.
func benthosLints(content string) []hub.Lint {
	linter, err := linter()
	if err != nil {
		return []hub.Lint{{Line: 1, Column: 1, Message: err.Error()}}
	}
	text := secretReference.ReplaceAllStringFunc(content, func(m string) string { return strings.Repeat("x", len(m)) })
	if strings.HasPrefix(text, disableLint) {
		text = "# (lint)" + strings.TrimPrefix(text, disableLint)
	}
	found, err := linter.LintYAML([]byte(text))
	if err != nil {
		return []hub.Lint{{Line: 1, Column: 1, Message: err.Error()}}
	}
	lints := make([]hub.Lint, 0, len(found))
	for _, l := range found {
		lints = append(lints, hub.Lint{Line: max(1, l.Line), Column: max(1, l.Column), Message: message(l)})
	}
	return lints
}

func message(l service.Lint) string {
	if l.What == "" {
		return "this is not valid here"
	}
	return l.What
}

// walker finds what Benthos does not mind.
type walker struct {
	lints []hub.Lint
	// fatal: the library's linter must not see this.
	fatal bool
	sizes map[*yaml.Node]int
}

func (w *walker) fault(at *yaml.Node, format string, args ...any) {
	w.lints = append(w.lints, hub.Lint{Line: max(1, at.Line), Column: max(1, at.Column), Message: fmt.Sprintf(format, args...)})
}

// size is how many nodes there are when aliases are followed, or more than maxNodes.
func (w *walker) size(n *yaml.Node) int {
	if known, ok := w.sizes[n]; ok {
		return known
	}
	w.sizes[n] = maxNodes + 1 // what contains itself
	total := 1
	if n.Alias != nil {
		total += w.size(n.Alias)
	}
	for _, c := range n.Content {
		if total = min(total+w.size(c), maxNodes+1); total > maxNodes {
			break
		}
	}
	w.sizes[n] = total
	return total
}

// The agent's part of what a Benthos process does.
var agents = map[string]string{
	"http":           "streams share no HTTP server: give http_server an address of its own",
	"metrics":        "the agent collects the metrics: remove this",
	"tracer":         "there is no tracer: remove this",
	"shutdown_delay": "this has no effect here: remove it",
}

func (w *walker) topLevel(root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		w.fatal = true
		w.fault(root, "a pipeline is an object with input, pipeline and output")
		return
	}
	fields := map[string]*yaml.Node{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key := root.Content[i]
		fields[key.Value] = root.Content[i+1]
		if why, mine := agents[key.Value]; mine {
			w.fault(key, "%s: %s", key.Value, why)
		}
	}
	for _, required := range []string{"input", "output"} {
		if n := fields[required]; n == nil {
			w.fault(root, "%s is missing", required)
		} else if n.Kind == yaml.ScalarNode || n.Kind == yaml.MappingNode && len(n.Content) == 0 {
			w.fault(n, "%s has no type", required)
		}
	}
	if logger := fields["logger"]; logger != nil && logger.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(logger.Content); i += 2 {
			if key := logger.Content[i]; key.Value != "level" {
				w.fault(key, "logger.%s: the agent takes the log; only the level can be set", key.Value)
			}
		}
	}
}

func (w *walker) walk(n *yaml.Node) {
	switch n.Kind {
	case yaml.ScalarNode:
		w.scalar(n)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			w.httpServer(n.Content[i], n.Content[i+1])
		}
	}
	for _, c := range n.Content {
		w.walk(c)
	}
}

func (w *walker) httpServer(key, value *yaml.Node) {
	if key.Value != "http_server" || value.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(value.Content); i += 2 {
		if value.Content[i].Value == "address" && value.Content[i+1].Value != "" {
			return
		}
	}
	w.fault(key, "http_server needs an address of its own, such as 127.0.0.1:8090")
}

var variableReference = regexp.MustCompile(`\$\{([0-9A-Za-z_.]+)\}`)

func (w *walker) scalar(n *yaml.Node) {
	if nesting(n.Value) > maxNesting {
		w.fatal = true
		w.fault(n, "brackets are nested deeper than %s", strconv.Itoa(maxNesting))
	}
	if err := secret.Check(n.Value); err != nil {
		w.fault(n, "%v", err)
	}
	for _, m := range variableReference.FindAllStringSubmatch(n.Value, -1) {
		if !variable(m[1]) {
			w.fault(n, "${%s}: a stream does not see the agent's environment; write ${%s:default}, or ${secret:name} for a secret of the node", m[1], m[1])
		}
	}
}

func nesting(text string) int {
	depth, deepest := 0, 0
	for _, c := range text {
		switch c {
		case '(', '[', '{':
			depth++
			deepest = max(deepest, depth)
		case ')', ']', '}':
			depth = max(0, depth-1)
		}
	}
	return deepest
}
