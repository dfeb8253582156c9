package sqlite

import (
	"context"
	"errors"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// compactChunk is how many log entries one transaction drops: short ones, so that other updates get between.
const compactChunk = 500

// Compact implements [store.Store].
func (db *database) Compact(ctx context.Context, keep time.Duration, min int) error {
	for {
		more := false
		err := db.writer.submit(ctx, func(t *tx) (err error) {
			more, err = t.compact(t.now.Add(-keep), int64(min))
			return err
		})
		if err != nil || !more {
			return err
		}
	}
}

// compact drops some of the log entries older than cutoff and not among the last min; more tells that there are
// others.
func (t *tx) compact(cutoff time.Time, min int64) (more bool, err error) {
	if t.ended {
		return false, errEnded
	}
	last, scanned := int64(0), 0
	err = t.conn.query(func(r row) error {
		revision, at := r.ColumnInt64(0), r.ColumnInt64(1)
		if revision > t.revision-min || at >= cutoff.UnixMicro() {
			return errEnough
		}
		last, scanned = revision, scanned+1
		return nil
	}, "SELECT revision, time FROM log ORDER BY revision LIMIT ?", compactChunk)
	if err != nil && !errors.Is(err, errEnough) {
		return false, t.note(err)
	}
	if last == 0 {
		return false, nil
	}
	if err := t.exec("DELETE FROM log WHERE revision <= ?", last); err != nil {
		return false, err
	}
	return scanned == compactChunk, t.exec("UPDATE facts SET value = ? WHERE name = 'compacted'", last)
}

// errEnough ends a query early.
var errEnough = errors.New("enough rows")

// keepCompact compacts from time to time until ctx ends.
func (db *database) keepCompact(ctx context.Context, o Options) {
	ticker := time.NewTicker(o.CompactEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			err := db.Compact(ctx, o.Keep, o.KeepEntries)
			if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
				o.Logger.Warn("the store's change log was not compacted; it is tried again", "error", err, "after", o.CompactEvery)
			}
		case <-ctx.Done():
			return
		}
	}
}
