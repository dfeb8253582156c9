package agentapi

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of failed attempts to get credentials, from one address. Each failure takes one from an allowance that refills
// over time; a request that finds it empty is refused unseen.
type Limits struct {
	// Failures from one IPv4 address, or IPv6 /64 (default 20), one back every Every (default 3 s).
	Failures int
	Every    time.Duration
}

// maxAddresses bounds the memory of a throttle.
const maxAddresses = 10_000

type throttle struct {
	limits Limits
	now    func() time.Time

	mu sync.Mutex
	// full is when an address' allowance is whole again.
	full  map[netip.Prefix]time.Time
	swept time.Time
}

func newThrottle(l Limits, now func() time.Time) *throttle {
	if l.Failures <= 0 {
		l.Failures = 20
	}
	if l.Every <= 0 {
		l.Every = 3 * time.Second
	}
	return &throttle{limits: l, now: now, full: map[netip.Prefix]time.Time{}}
}

// wait answers how long an address that failed too often has to wait, 0 for any other. What is on its way from the
// address already is not counted: a thousand agents behind one address may come at once, and the credentials are too long to
// be guessed by a few more tries.
func (t *throttle) wait(remote string) time.Duration {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	allowed := now.Add(time.Duration(t.limits.Failures-1) * t.limits.Every)
	return max(t.full[network(remote)].Sub(allowed), 0)
}

// failed counts a failure.
func (t *throttle) failed(remote string) {
	from := network(remote)
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	full := t.full[from]
	if full.Before(now) {
		full = now
	}
	t.bound(now)
	// However many fail at once, an address waits no longer than its whole allowance takes to come back.
	t.full[from] = minTime(full.Add(t.limits.Every), now.Add(time.Duration(t.limits.Failures)*t.limits.Every))
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// bound makes room for one more: of allowances that are whole again, looked for once a second at most, else of any.
func (t *throttle) bound(now time.Time) {
	if len(t.full) < maxAddresses {
		return
	}
	if now.Sub(t.swept) >= time.Second {
		t.swept = now
		for k, full := range t.full {
			if full.Before(now) {
				delete(t.full, k)
			}
		}
	}
	for k := range t.full {
		if len(t.full) < maxAddresses {
			return
		}
		delete(t.full, k)
	}
}

// network is what one client is taken to own: an IPv4 address, or an IPv6 /64.
func network(remote string) netip.Prefix {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	addr = addr.Unmap().WithZone("")
	size := addr.BitLen()
	if addr.Is6() {
		size = 64
	}
	p, err := addr.Prefix(size)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
