// Package ledger keeps the records of the Hub: nodes, streams, intents with their attempts, config versions. Each
// function is one step inside a transaction of the store; none does I/O of its own, and each may be repeated when
// its transaction is. What is decided, package hub decides.
package ledger

import (
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"time"
)

// Config of a Ledger. The zero value of each field takes the default.
type Config struct {
	// Now is the clock.
	Now func() time.Time
	// Jitter answers a number in [0,1) that spreads retries.
	Jitter func() float64
	// NewID answers a random word of lower-case letters and digits, which no other call answers.
	NewID func() string
}

// Ledger keeps records. It holds nothing itself and is safe for use by several goroutines.
type Ledger struct{ cfg Config }

// New makes a ledger.
func New(cfg Config) *Ledger {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Jitter == nil {
		cfg.Jitter = mathrand.Float64
	}
	if cfg.NewID == nil {
		cfg.NewID = randomID
	}
	return &Ledger{cfg}
}

// now is the clock's reading as it is stored.
func (l *Ledger) now() time.Time { return l.cfg.Now().UTC().Truncate(time.Microsecond) }

func randomID() string {
	var b [10]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
