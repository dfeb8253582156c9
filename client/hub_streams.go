package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"freehold.dev/freehold/internal/hub"
)

func streamPath(node, stream string) string {
	return nodePath(node) + "/streams/" + url.PathEscape(stream)
}

// Streams lists the streams of a node by name.
func (h Hub) Streams(ctx context.Context, node string) ([]Stream, error) {
	return pages(ctx, h, nodePath(node)+"/streams", nil, 0, func(s Stream) string { return s.StreamID })
}

// AllStreams lists the streams of all nodes by NODE/STREAM.
func (h Hub) AllStreams(ctx context.Context) ([]Stream, error) {
	return pages(ctx, h, api+"/streams", nil, 0, func(s Stream) string { return hub.StreamName(s.NodeID, s.StreamID) })
}

// Stream answers what is desired of a stream, what was observed of it, and how the two compare.
func (h Hub) Stream(ctx context.Context, node, stream string) (*Stream, error) {
	return fetch[Stream](ctx, h, streamPath(node, stream), nil)
}

// SetDesiredState declares what a stream is to be; it creates the stream, too.
func (h Hub) SetDesiredState(ctx context.Context, node, stream string, want DesiredState, o MutationOptions) (*StreamAccepted, error) {
	return mutate[StreamAccepted](ctx, h, http.MethodPut, streamPath(node, stream)+"/desired-state", want, o)
}

// RestartStream restarts a stream once. An empty actionID lets the server make one.
func (h Hub) RestartStream(ctx context.Context, node, stream, actionID string, o MutationOptions) (*StreamAccepted, error) {
	body := RestartAction{ActionID: actionID}
	return mutate[StreamAccepted](ctx, h, http.MethodPost, streamPath(node, stream)+"/actions/restart", body, o)
}

// RollbackConfig declares the config version that converged before the present one.
func (h Hub) RollbackConfig(ctx context.Context, node, stream string, o MutationOptions) (*StreamAccepted, error) {
	return mutate[StreamAccepted](ctx, h, http.MethodPost, streamPath(node, stream)+"/config/rollback", nil, o)
}

// LogOptions choose a part of a stream's log.
type LogOptions struct {
	// After is the cursor to go on from, as [StreamLogs] told it. 0: the last Limit lines.
	After int64
	// Limit is the most lines to answer. 0: the server's default.
	Limit int
	// Wait is how long to wait for a line when there is none after the cursor.
	Wait time.Duration
}

// Logs reads a stream's log on its node. [IsNodeUnavailable] tells that the node is not connected.
func (h Hub) Logs(ctx context.Context, node, stream string, o LogOptions) (*StreamLogs, error) {
	q := url.Values{}
	if o.After > 0 {
		q.Set("after", strconv.FormatInt(o.After, 10))
	}
	if o.Limit > 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Wait > 0 {
		q.Set("wait", o.Wait.String())
	}
	return fetch[StreamLogs](ctx, h, streamPath(node, stream)+"/logs", q)
}

// Metrics answers a stream's counters, as its node reported them last.
func (h Hub) Metrics(ctx context.Context, node, stream string) (*StreamMetrics, error) {
	return fetch[StreamMetrics](ctx, h, streamPath(node, stream)+"/metrics", nil)
}
