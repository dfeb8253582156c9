package api_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
)

// BenchmarkSetDesiredState is the canonical mutation over HTTP, by 32 callers at once per processor.
func BenchmarkSetDesiredState(b *testing.B) {
	p := newPlane(b)
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 128
	const nodes = 100
	for i := range nodes {
		p.node(fmt.Sprintf("node-%d", i))
	}
	body := object{"state": "running", "config_version": p.config("command: one")}
	var n atomic.Int64
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			path := fmt.Sprintf("/nodes/node-%d/streams/s%d/desired-state", i%nodes, i/nodes%10)
			p.put(path, body, "Idempotency-Key", fmt.Sprint(i)).want(202)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "mutations/s")
}

// BenchmarkListOperations is a page of the newest operations of a node, of 10,000.
func BenchmarkListOperations(b *testing.B) {
	p := newPlane(b)
	for i := range 10 {
		p.node(fmt.Sprintf("node-%d", i))
	}
	cfg := p.config("command: one")
	for i := range 10_000 {
		p.run(fmt.Sprintf("node-%d", i%10), fmt.Sprintf("s%d", i/10%10), cfg)
	}
	b.ResetTimer()
	for b.Loop() {
		p.get("/operations?node_id=node-3").want(200)
	}
}
