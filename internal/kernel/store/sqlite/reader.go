package sqlite

import (
	"errors"
	"fmt"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// errEnded is answered to a caller that kept a Reader or Tx beyond its function.
var errEnded = errors.New("the view or update that this reader belongs to has ended")

// reader reads through one connection, inside a transaction.
type reader struct {
	conn     *conn
	kinds    kindSet
	revision int64
	ended    bool
	// recent is what a transaction has read and written of late; nil in a view.
	recent *recent
}

var _ store.Reader = (*reader)(nil)

// Revision implements [store.Reader].
func (r *reader) Revision() int64 { return r.revision }

// Get implements [store.Reader].
func (r *reader) Get(kind, name string) (*store.Object, error) {
	rec, err := r.load(kind, name)
	if err != nil {
		return nil, err
	}
	return rec.object, nil
}

// load answers the record of an object, or ErrNotFound.
func (r *reader) load(kindName, name string) (storedRecord, error) {
	var found storedRecord
	k, err := r.kind(kindName)
	if err != nil {
		return found, err
	}
	if id, data := r.recent.get(kindName, name); data != nil {
		found.id = id
		found.record, err = k.decode(data)
		return found, err
	}
	err = r.conn.query(func(row row) (err error) {
		found.id = row.ColumnInt64(0)
		data := columnBytes(row, 1)
		r.recent.put(kindName, name, found.id, data)
		found.record, err = k.decode(data)
		return err
	}, "SELECT id, data FROM objects WHERE kind = ? AND name = ?", kindName, name)
	if err == nil && found.object == nil {
		err = store.ErrNotFound
	}
	if err != nil {
		return found, fmt.Errorf("%s %q: %w", kindName, name, err)
	}
	return found, nil
}

func (r *reader) kind(name string) (*kind, error) {
	if r.ended {
		return nil, errEnded
	}
	return r.kinds.get(name)
}

// Claimed implements [store.Reader].
func (r *reader) Claimed(index, value string) (string, error) {
	if r.ended {
		return "", errEnded
	}
	owner, found := "", false
	err := r.conn.query(func(row row) error {
		owner, found = row.ColumnText(0), true
		return nil
	}, "SELECT owner FROM claims WHERE field = ? AND value = ?", index, value)
	if err == nil && !found {
		err = store.ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("claim %s %q: %w", index, value, err)
	}
	return owner, nil
}

// Blob implements [store.Reader].
func (r *reader) Blob(name string) ([]byte, error) {
	if r.ended {
		return nil, errEnded
	}
	var data []byte
	err := r.conn.query(func(row row) error {
		data = columnBytes(row, 0)
		return nil
	}, "SELECT data FROM blobs WHERE name = ?", name)
	if err == nil && data == nil {
		err = store.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("blob %q: %w", name, err)
	}
	return data, nil
}

// Blobs implements [store.Reader].
func (r *reader) Blobs(prefix string) ([]store.BlobInfo, error) {
	if r.ended {
		return nil, errEnded
	}
	var infos []store.BlobInfo
	err := r.conn.query(func(row row) error {
		infos = append(infos, store.BlobInfo{
			Name:      row.ColumnText(0),
			Size:      row.ColumnInt64(1),
			CreatedAt: time.UnixMicro(row.ColumnInt64(2)).UTC(),
		})
		return nil
	}, "SELECT name, size, created FROM blobs WHERE name >= ? AND name < ? ORDER BY name", prefix, afterPrefix(prefix))
	if err != nil {
		return nil, fmt.Errorf("list blobs %q: %w", prefix, err)
	}
	return infos, nil
}

// Scan implements [store.Reader].
func (r *reader) Scan(table string, s store.Scan) ([]store.Entry, error) {
	if r.ended {
		return nil, errEnded
	}
	sql, args := "SELECT id, time, key, data FROM entries WHERE list = ?", []any{table}
	if s.Key != "" {
		sql, args = sql+" AND key = ?", append(args, s.Key)
	}
	if s.After > 0 {
		sql, args = sql+" AND id > ?", append(args, s.After)
	}
	if s.Before > 0 {
		sql, args = sql+" AND id < ?", append(args, s.Before)
	}
	sql += " ORDER BY id"
	if s.NewestFirst {
		sql += " DESC"
	}
	if s.Limit > 0 {
		sql, args = sql+limitSQL, append(args, s.Limit)
	}
	var entries []store.Entry
	err := r.conn.query(func(row row) error {
		entries = append(entries, store.Entry{
			ID:   row.ColumnInt64(0),
			Time: time.UnixMicro(row.ColumnInt64(1)).UTC(),
			Key:  row.ColumnText(2),
			Data: columnBytes(row, 3),
		})
		return nil
	}, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("scan table %q: %w", table, err)
	}
	return entries, nil
}
