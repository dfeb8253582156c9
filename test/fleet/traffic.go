package fleet

import (
	"net/http"
	"strings"
	"sync"
	"time"
)

// slot is the grain of the record of requests.
const slot = 100 * time.Millisecond

// Traffic counts the requests of a fleet that were answered.
type Traffic struct {
	mu    sync.Mutex
	since time.Time
	slots map[int]int
	total map[string]int
}

// Reset forgets what was counted.
func (t *Traffic) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.slots, t.total = time.Now(), map[int]int{}, map[string]int{}
}

func (t *Traffic) count(kind string, answered time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots[int(answered.Sub(t.since)/slot)]++
	t.total[kind]++
}

// Total counts the requests by the last word of their path ("reports", "commands", "session"), "" all.
func (t *Traffic) Total(kind string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if kind != "" {
		return t.total[kind]
	}
	n := 0
	for _, v := range t.total {
		n += v
	}
	return n
}

// Peak is the most requests in any second.
func (t *Traffic) Peak() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	peak := 0
	for from := range t.slots {
		sum := 0
		for i := range int(time.Second / slot) {
			sum += t.slots[from+i]
		}
		peak = max(peak, sum)
	}
	return peak
}

// counted is a transport whose answers are counted: a connection that was refused cost the server nothing.
type counted struct {
	*http.Transport
	traffic *Traffic
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.Transport.RoundTrip(r)
	if err == nil {
		c.traffic.count(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], time.Now())
	}
	return resp, err
}
