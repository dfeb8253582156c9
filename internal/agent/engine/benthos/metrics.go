package benthos

import (
	"context"
	"sync/atomic"

	"github.com/redpanda-data/benthos/v4/public/service"

	"freehold.dev/freehold/internal/agent/engine/benthos/natsjetstream"
)

// collector is the metrics exporter of a host: it keeps sums over all components.
type collector struct{ input, output, errors, lag atomic.Int64 }

func newCollector() *collector {
	c := &collector{}
	c.lag.Store(-1)
	return c
}

func (c *collector) read() counters {
	return counters{Input: c.input.Load(), Output: c.output.Load(), Errors: c.errors.Load(), Lag: c.lag.Load()}
}

// metric counts what it is told into a sum, or nowhere.
type metric struct{ sum *atomic.Int64 }

func (m metric) Incr(n int64) {
	if m.sum != nil {
		m.sum.Add(n)
	}
}

func (m metric) Set(n int64) {
	if m.sum != nil {
		m.sum.Store(n)
	}
}

func (m metric) Timing(int64) {}

func (c *collector) NewCounterCtor(name string, _ ...string) service.MetricsExporterCounterCtor {
	sums := map[string]*atomic.Int64{
		"input_received": &c.input, "output_sent": &c.output, "output_error": &c.errors, "processor_error": &c.errors,
	}
	return func(...string) service.MetricsExporterCounter { return metric{sums[name]} }
}

func (c *collector) NewTimerCtor(string, ...string) service.MetricsExporterTimerCtor {
	return func(...string) service.MetricsExporterTimer { return metric{} }
}

func (c *collector) NewGaugeCtor(name string, _ ...string) service.MetricsExporterGaugeCtor {
	var sum *atomic.Int64
	if name == natsjetstream.LagGauge {
		sum = &c.lag
	}
	return func(...string) service.MetricsExporterGauge { return metric{sum} }
}

func (c *collector) Close(context.Context) error { return nil }
