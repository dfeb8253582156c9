package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
)

const (
	// maxLogLines of one answer.
	maxLogLines = 1000
	// maxLogWait is the longest that a request waits for a line.
	maxLogWait = 30 * time.Second
)

type (
	logsInput struct {
		StreamPath
		After int64  `query:"after" minimum:"0" doc:"The cursor to go on from, as next told it; 0: the last lines."`
		Limit int    `query:"limit" minimum:"1" default:"100" doc:"The most lines to answer; more than 1000 is taken as 1000."`
		Wait  string `query:"wait" doc:"How long to wait for a line when there is none: a duration such as 10s, at most 30s."`
	}
	logsOutput    struct{ Body client.StreamLogs }
	metricsOutput struct{ Body client.StreamMetrics }
)

func (s *service) registerLive(a *rest.API) {
	tag := op("Streams")
	logs := tag.get(streamPath+"/logs", "get-stream-logs", "Read a stream's recent log")
	logs.Description = "It is fetched from the node: 503 node_unavailable when that is offline."
	rest.Register(a, logs, s.logs)
	rest.Register(a, tag.get(streamPath+"/metrics", "get-stream-metrics", "A stream's counters, as its node reported them last"), s.metrics)
}

func (s *service) logs(ctx context.Context, in *logsInput) (*logsOutput, error) {
	wait, err := parseWait(in.Wait)
	if err != nil {
		return nil, err
	}
	if _, err := s.stream(ctx, &in.StreamPath); err != nil {
		return nil, err
	}
	got, err := s.Live.Logs(ctx, in.Node, in.Stream, LogQuery{After: in.After, Limit: min(in.Limit, maxLogLines), Wait: wait})
	switch {
	case errors.Is(err, ErrNodeUnavailable):
		return nil, problem.New(http.StatusServiceUnavailable, problem.CodeNodeUnavailable,
			"node "+in.Node+" does not answer: its log can be read when it is online", map[string]string{"node_id": in.Node})
	case errors.Is(err, ErrNoLog):
		return nil, rest.NotFound("node %q has no log of stream %q", in.Node, in.Stream)
	case err != nil:
		return nil, err
	}
	return &logsOutput{client.StreamLogs{Items: never(got.Lines), Next: got.Next}}, nil
}

func parseWait(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 || wait > maxLogWait {
		return 0, problem.Invalid(rest.Cause{Field: "wait", Message: "must be a duration from 0s to 30s"})
	}
	return wait, nil
}

func (s *service) metrics(ctx context.Context, in *StreamPath) (*metricsOutput, error) {
	if _, err := s.stream(ctx, in); err != nil {
		return nil, err
	}
	out := client.StreamMetrics{NodeID: in.Node, StreamID: in.Stream, Metrics: agentapi.Metrics{LagMessages: -1}}
	if m, ok := s.Live.Metrics(in.Node, in.Stream); ok {
		at := m.ReportedAt.UTC()
		out.ReportedAt, out.Metrics = &at, m.Counters
		out.InputPerSecond = rate(m, func(c *agentapi.Metrics) int64 { return c.InputMessages })
		out.OutputPerSecond = rate(m, func(c *agentapi.Metrics) int64 { return c.OutputMessages })
		out.ErrorsPerSecond = rate(m, func(c *agentapi.Metrics) int64 { return c.Errors })
	}
	return &metricsOutput{out}, nil
}

// rate of a counter between two reports. One that fell belongs to an engine that started in between: it counts from 0.
func rate(m StreamMetrics, counter func(*agentapi.Metrics) int64) float64 {
	elapsed := m.ReportedAt.Sub(m.BeforeAt).Seconds()
	if m.BeforeAt.IsZero() || elapsed <= 0 {
		return 0
	}
	now, before := counter(&m.Counters), counter(&m.Before)
	if now < before {
		before = 0
	}
	return float64(now-before) / elapsed
}
