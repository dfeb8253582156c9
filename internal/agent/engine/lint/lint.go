// Package lint tells the faults of config versions of every engine. It looks at the content only: it executes nothing
// of it, and opens no files and no connections.
package lint

import (
	"context"
	"fmt"

	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/nodeconfig"
	"freehold.dev/freehold/internal/hub"
)

// Linter lints contents.
type Linter struct{}

// New makes a linter.
func New() Linter { return Linter{} }

// maxLints is how many faults are worth telling at once.
const maxLints = 100

// Lint tells the faults of a content, in the order of the lines. Its error is that of an unknown engine.
func (Linter) Lint(ctx context.Context, engine hub.Engine, content string) ([]hub.Lint, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(content) > hub.MaxConfig {
		return []hub.Lint{{Line: 1, Column: 1, Message: fmt.Sprintf("the content is longer than %d bytes", hub.MaxConfig)}}, nil
	}
	var lints []hub.Lint
	switch engine {
	case hub.EngineBenthos:
		lints = benthos.Lint(content)
	case hub.EngineProcess:
		lints = process.Lint(content)
	case hub.EngineNode:
		lints = nodeconfig.Lint(content)
	default:
		return nil, fmt.Errorf("there is no engine %q", engine)
	}
	return lints[:min(len(lints), maxLints)], nil
}
