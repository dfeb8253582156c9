// Package idempotency keeps the answers of accepted mutations that carried an Idempotency-Key, so that a retry gets the
// same answer and changes nothing.
package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// Header carries the key.
	Header = "Idempotency-Key"
	// Kept is how long an answer is kept.
	Kept = 24 * time.Hour
	// MaxKey is the longest key, in bytes.
	MaxKey = 255

	table   = "idempotency"
	purpose = "hub idempotency "
	// trimChunk is how many rows one look at the table reads.
	trimChunk = 1000
)

// ErrReused means that the key was used for another request with the same principal, method and path.
var ErrReused = errors.New("this Idempotency-Key was used with another request body")

// Valid tells whether a key may be used: 1 to 255 printable ASCII characters.
func Valid(key string) bool {
	if key == "" || len(key) > MaxKey {
		return false
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return false
		}
	}
	return true
}

// Request that may be a retry.
type Request struct {
	Principal, Method, Path, Key string
	// Body is what must be the same in a retry.
	Body []byte
}

// scope is the key of the table.
func (r *Request) scope() string {
	h := sha256.New()
	for _, part := range []string{r.Principal, r.Method, r.Path, r.Key} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (r *Request) digest() string {
	sum := sha256.Sum256(r.Body)
	return hex.EncodeToString(sum[:])
}

// Answer as it was given.
type Answer struct {
	Status int               `json:"status"`
	Header map[string]string `json:"header"`
	Body   []byte            `json:"body"`
}

// Sealer encrypts answers, which may hold a token that is shown once ([secrets.Root]).
type Sealer interface {
	Seal(plain []byte, purpose string) []byte
	Unseal(sealed []byte, purpose string) ([]byte, error)
}

// Records of answers.
type Records struct{ Sealer Sealer }

type record struct {
	Digest string    `json:"digest"`
	Time   time.Time `json:"time"`
	Sealed []byte    `json:"sealed"`
}

// Find answers what the request was answered before, nil if it was not; [ErrReused] when the key belongs to another
// request.
func (r Records) Find(view store.Reader, req *Request, now time.Time) (*Answer, error) {
	scope := req.scope()
	rows, err := view.Scan(table, store.Scan{Key: scope, NewestFirst: true, Limit: 1})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	var kept record
	if err := json.Unmarshal(rows[0].Data, &kept); err != nil {
		return nil, fmt.Errorf("decode an idempotency record: %w", err)
	}
	if now.Sub(kept.Time) >= Kept {
		return nil, nil
	}
	if kept.Digest != req.digest() {
		return nil, ErrReused
	}
	plain, err := r.Sealer.Unseal(kept.Sealed, purpose+scope)
	if err != nil {
		return nil, fmt.Errorf("unseal an idempotency record: %w", err)
	}
	answer := &Answer{}
	if err := json.Unmarshal(plain, answer); err != nil {
		return nil, fmt.Errorf("decode a kept answer: %w", err)
	}
	return answer, nil
}

// Keep records the answer of a request, in the transaction of what it answers.
func (r Records) Keep(tx store.Tx, req *Request, answer *Answer, now time.Time) error {
	plain, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode an answer to keep: %w", err)
	}
	scope := req.scope()
	data, err := json.Marshal(record{Digest: req.digest(), Time: now, Sealed: r.Sealer.Seal(plain, purpose+scope)})
	if err != nil {
		return fmt.Errorf("encode an idempotency record: %w", err)
	}
	_, err = tx.Append(table, scope, data)
	return err
}

// Trim removes the answers that are kept no longer.
func Trim(ctx context.Context, s store.Store, now time.Time) error {
	for {
		below, more, err := expired(ctx, s, now)
		if err != nil || below == 0 {
			return err
		}
		if err := s.Update(ctx, func(tx store.Tx) error { return tx.Trim(table, "", below) }); err != nil || !more {
			return err
		}
	}
}

// expired answers the id below which, among the oldest rows, nothing is kept any longer.
func expired(ctx context.Context, s store.Store, now time.Time) (below int64, more bool, err error) {
	err = s.View(ctx, func(r store.Reader) error {
		below, more = 0, false
		rows, err := r.Scan(table, store.Scan{Limit: trimChunk})
		if err != nil {
			return err
		}
		for _, row := range rows {
			var kept record
			if err := json.Unmarshal(row.Data, &kept); err != nil {
				return fmt.Errorf("decode an idempotency record: %w", err)
			}
			if now.Sub(kept.Time) < Kept {
				return nil
			}
			below = row.ID + 1
		}
		more = len(rows) == trimChunk
		return nil
	})
	return below, more, err
}
