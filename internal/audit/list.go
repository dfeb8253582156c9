package audit

import (
	"context"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// MaxListed is how many entries one filter reaches, counted from the newest: Until reaches older ones.
	MaxListed = 10_000
	// chunk is how many rows one view of the store reads.
	chunk = 1000
	// clockSlack is how far the clock may have been set back between two entries.
	clockSlack = time.Hour
)

// Page of entries, newest first. Total counts those that the filter selects, up to [MaxListed].
type Page struct {
	Entries []Entry
	Total   int
}

// List answers the entries from offset on, limit at most.
func List(ctx context.Context, s store.Store, f Filter, offset, limit int) (Page, error) {
	page := Page{Entries: []Entry{}}
	err := walk(ctx, s, f.Principal, func(row store.Entry) (bool, error) {
		e, err := decode(row)
		if err != nil {
			return false, err
		}
		if !f.Since.IsZero() && e.Time.Before(f.Since.Add(-clockSlack)) {
			return false, nil
		}
		if f.selects(&e) {
			if page.Total >= offset && len(page.Entries) < limit {
				page.Entries = append(page.Entries, e)
			}
			page.Total++
		}
		return page.Total < MaxListed, nil
	})
	return page, err
}

// walk shows the rows of a key ("": of all), newest first, until f has seen enough. No view of the store is held for
// longer than a chunk.
func walk(ctx context.Context, s store.Store, key string, f func(store.Entry) (more bool, err error)) error {
	for before := int64(0); ; {
		rows, err := scan(ctx, s, store.Scan{Key: key, NewestFirst: true, Before: before, Limit: chunk})
		if err != nil {
			return err
		}
		for _, row := range rows {
			if more, err := f(row); err != nil || !more {
				return err
			}
			before = row.ID
		}
		if len(rows) < chunk {
			return nil
		}
	}
}

func scan(ctx context.Context, s store.Store, q store.Scan) (rows []store.Entry, err error) {
	err = s.View(ctx, func(r store.Reader) error {
		rows, err = r.Scan(table, q)
		return err
	})
	return rows, err
}
