package api

import (
	"context"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
)

// Live is what this server knows of nodes without storing it: when they reported last, the counters of their streams, and
// the way to ask them for a log.
type Live interface {
	// LastReport is when the node reported last to this server; false when it did not since the server started.
	LastReport(node string) (time.Time, bool)
	// Metrics are the counters of a stream's latest reports; false when none came since the server started.
	Metrics(node, stream string) (StreamMetrics, bool)
	// Logs asks the node for a part of a stream's log. The error is [ErrNodeUnavailable] when the node is offline or does
	// not answer in time, and [ErrNoLog] when the node answers that it has none of that stream.
	Logs(ctx context.Context, node, stream string, q LogQuery) (agentapi.LogAnswer, error)
}

// StreamMetrics are the two latest counters of a stream that were reported by one run of its agent.
type StreamMetrics struct {
	ReportedAt time.Time
	Counters   agentapi.Metrics
	// Before were the counters at BeforeAt; BeforeAt is zero when there are none to compare with.
	BeforeAt time.Time
	Before   agentapi.Metrics
}

// LogQuery selects a part of a log.
type LogQuery struct {
	// After is the cursor to go on from; 0: the last Limit lines.
	After int64
	Limit int
	// Wait is how long to wait for a line when there is none.
	Wait time.Duration
}

// Linter finds the faults of a config version's content.
type Linter interface {
	// Lint answers every fault that can be told from the content alone, none for a good one. The error is of the linter,
	// not of the content.
	Lint(ctx context.Context, engine hub.Engine, content string) ([]hub.Lint, error)
}
