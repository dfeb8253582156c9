package identity

import (
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limits of failed logins. Each failure takes one from an allowance that refills over time; a login that finds its
// allowance empty is refused unseen.
type Limits struct {
	// PerUser failures of one user name from one address (default 5), one back every PerUserEvery (default 20 s).
	PerUser      int
	PerUserEvery time.Duration
	// PerAddress failures from one address, whatever the name (default 50), one back every PerAddressEvery (default 2 s).
	PerAddress      int
	PerAddressEvery time.Duration
}

func (l *Limits) defaults() {
	if l.PerUser == 0 {
		l.PerUser = 5
	}
	if l.PerUserEvery == 0 {
		l.PerUserEvery = 20 * time.Second
	}
	if l.PerAddress == 0 {
		l.PerAddress = 50
	}
	if l.PerAddressEvery == 0 {
		l.PerAddressEvery = 2 * time.Second
	}
}

// maxBuckets bounds the limiter's memory, per table.
const maxBuckets = 10_000

type limiter struct {
	limits Limits
	now    func() time.Time

	mu    sync.Mutex
	users map[userKey]bucket
	addrs map[netip.Prefix]bucket
	swept time.Time
}

type userKey struct {
	user string
	addr netip.Prefix
}

// bucket is an allowance as the time at which it is full again.
type bucket struct{ full time.Time }

func newLimiter(limits Limits, now func() time.Time) *limiter {
	limits.defaults()
	return &limiter{limits: limits, now: now, users: map[userKey]bucket{}, addrs: map[netip.Prefix]bucket{}}
}

// network is what one client is taken to own: an IPv4 address, or an IPv6 /64.
func network(addr netip.Addr) netip.Prefix {
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

// attempt is a login that took a failure from both allowances before its password was looked at, so that guesses
// made at once do not share one.
type attempt struct {
	l    *limiter
	user userKey
}

// take answers nil and when to try again if an allowance is empty.
func (l *limiter) take(user string, addr netip.Addr) (a *attempt, after time.Duration) {
	// A long name is only a name that does not exist.
	if len(user) > 64 {
		user = user[:64]
	}
	net := network(addr)
	key := userKey{strings.ToLower(user), net}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	ub, wait := l.users[key].take(now, l.limits.PerUser, l.limits.PerUserEvery)
	if wait > 0 {
		return nil, wait
	}
	ab, wait := l.addrs[net].take(now, l.limits.PerAddress, l.limits.PerAddressEvery)
	if wait > 0 {
		return nil, wait
	}
	l.bound(now)
	l.users[key], l.addrs[net] = ub, ab
	return &attempt{l, key}, 0
}

// undo gives back what the attempt took: it came to nothing, by no fault of the caller.
func (a *attempt) undo() { a.end(false) }

// succeed lets the user start afresh from this address.
func (a *attempt) succeed() { a.end(true) }

func (a *attempt) end(afresh bool) {
	l := a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.addrs[a.user.addr]; ok {
		l.addrs[a.user.addr] = bucket{b.full.Add(-l.limits.PerAddressEvery)}
	}
	if b, ok := l.users[a.user]; ok && !afresh {
		l.users[a.user] = bucket{b.full.Add(-l.limits.PerUserEvery)}
	} else {
		delete(l.users, a.user)
	}
}

func (b bucket) take(now time.Time, size int, every time.Duration) (bucket, time.Duration) {
	full := b.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(every)
	if over := full.Sub(now) - time.Duration(size)*every; over > 0 {
		return b, over
	}
	return bucket{full}, 0
}

// bound makes room for one more: of allowances that are full again, looked for once a second at most, else of any.
func (l *limiter) bound(now time.Time) {
	if len(l.users) < maxBuckets && len(l.addrs) < maxBuckets {
		return
	}
	if now.Sub(l.swept) >= time.Second {
		l.swept = now
		sweep(l.users, now)
		sweep(l.addrs, now)
	}
	evict(l.users)
	evict(l.addrs)
}

func sweep[K comparable](m map[K]bucket, now time.Time) {
	for k, b := range m {
		if b.full.Before(now) {
			delete(m, k)
		}
	}
}

func evict[K comparable](m map[K]bucket) {
	for k := range m {
		if len(m) < maxBuckets {
			return
		}
		delete(m, k)
	}
}
