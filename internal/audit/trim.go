package audit

import (
	"context"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Retention is how much is kept.
type Retention struct {
	Age  time.Duration
	Rows int
	// Anonymous rows are those of callers who were not let in: whoever floods the API pushes out no other's.
	Anonymous int
}

// Kept is the retention of a management plane.
var Kept = Retention{Age: 90 * 24 * time.Hour, Rows: 1_000_000, Anonymous: 100_000}

// Trim removes what is older or more than is kept.
func Trim(ctx context.Context, s store.Store, now time.Time) error { return Kept.Trim(ctx, s, now) }

// Trim removes what is older or more than the retention.
func (k Retention) Trim(ctx context.Context, s store.Store, now time.Time) error {
	if err := trimOld(ctx, s, now.Add(-k.Age)); err != nil {
		return err
	}
	if err := trimBeyond(ctx, s, "", k.Rows); err != nil {
		return err
	}
	return trimBeyond(ctx, s, anonymous, k.Anonymous)
}

// trimOld removes, from the oldest on, what is older than the cutoff.
func trimOld(ctx context.Context, s store.Store, cutoff time.Time) error {
	for {
		rows, err := scan(ctx, s, store.Scan{Limit: chunk})
		if err != nil {
			return err
		}
		below := int64(0)
		for _, row := range rows {
			if !row.Time.Before(cutoff) {
				break
			}
			below = row.ID + 1
		}
		if below == 0 {
			return nil
		}
		if err := trim(ctx, s, "", below); err != nil {
			return err
		}
		if below <= rows[len(rows)-1].ID {
			return nil
		}
	}
}

// trimBeyond leaves the newest rows of a key.
func trimBeyond(ctx context.Context, s store.Store, key string, keep int) error {
	oldest, err := scan(ctx, s, store.Scan{Key: key, Limit: 1})
	if err != nil || len(oldest) == 0 {
		return err
	}
	newest, err := scan(ctx, s, store.Scan{Key: key, NewestFirst: true, Limit: 1})
	if err != nil || newest[0].ID-oldest[0].ID < int64(keep) { // ids are not dense: there are fewer rows than that
		return err
	}
	seen, last := 0, int64(0)
	err = walk(ctx, s, key, func(row store.Entry) (bool, error) {
		seen, last = seen+1, row.ID
		return seen < keep, nil
	})
	if err != nil || seen < keep {
		return err
	}
	return trim(ctx, s, key, last)
}

func trim(ctx context.Context, s store.Store, key string, below int64) error {
	return s.Update(ctx, func(tx store.Tx) error { return tx.Trim(table, key, below) })
}
