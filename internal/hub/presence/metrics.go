package presence

import (
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub/api"
)

// maxStreams is of how many streams of one node the counters are kept.
const maxStreams = 2000

// counters are the latest two of a stream.
type counters struct {
	at, beforeAt time.Time
	now, before  agentapi.Metrics
}

// count takes the counters out of a report. A full report drops those of streams that it does not list.
func (n *node) count(in *agentapi.Report, now time.Time) {
	old := n.streams
	if in.Full {
		n.streams = nil
	}
	for i := range in.Streams {
		s := &in.Streams[i]
		if s.Metrics == nil {
			continue
		}
		c := old[s.StreamID]
		if c == nil {
			c = &counters{}
		} else {
			c.before, c.beforeAt = c.now, c.at
		}
		c.now, c.at = *s.Metrics, now
		if n.streams == nil {
			n.streams = make(map[string]*counters, len(in.Streams))
		}
		if _, ok := n.streams[s.StreamID]; ok || len(n.streams) < maxStreams {
			n.streams[s.StreamID] = c
		}
	}
}

// Metrics are the counters of a stream's latest reports to this server.
func (r *Registry) Metrics(name, stream string) (api.StreamMetrics, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[name]
	if n == nil || n.streams[stream] == nil {
		return api.StreamMetrics{}, false
	}
	c := n.streams[stream]
	return api.StreamMetrics{ReportedAt: c.at, Counters: c.now, BeforeAt: c.beforeAt, Before: c.before}, true
}
