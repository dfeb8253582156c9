package sqlite

import (
	"errors"
	"fmt"
	"strings"

	"zombiezen.com/go/sqlite"
)

// conn is one connection to the file. One goroutine at a time uses it.
type conn struct{ *sqlite.Conn }

// row is the present row of a query.
type row = *sqlite.Stmt

// connect opens a connection to an existing file.
func connect(path string, cacheKiB int) (*conn, error) {
	c, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{c}
	// The store's lock keeps other processes away, so that the file is busy only while its own
	// connections recover or check-point the write-ahead log.
	c.SetBlockOnBusy()
	err = wrapped.script(fmt.Sprintf(`
		PRAGMA journal_mode = WAL;
		PRAGMA synchronous = FULL;
		PRAGMA cache_size = -%d;
		PRAGMA temp_store = MEMORY;`, cacheKiB))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return wrapped, nil
}

// script runs several statements without arguments.
func (c *conn) script(sql string) error {
	for sql = strings.TrimSpace(sql); sql != ""; {
		s, trailing, err := c.PrepareTransient(sql)
		if err != nil {
			return err
		}
		if err := step(s, nil, nil); err != nil {
			_ = s.Finalize() // it repeats the error
			return err
		}
		if err := s.Finalize(); err != nil {
			return err
		}
		sql = strings.TrimSpace(sql[len(sql)-trailing:])
	}
	return nil
}

// exec runs a statement that answers no rows.
func (c *conn) exec(sql string, args ...any) error { return c.query(nil, sql, args...) }

// query runs a statement and calls each for its rows. The statement is compiled once per connection, so its text
// must be one of a few.
func (c *conn) query(each func(row) error, sql string, args ...any) error {
	s, err := c.Prepare(sql)
	if err != nil {
		return err
	}
	if err := step(s, each, args); err != nil {
		_ = s.Reset() // it repeats the error
		return err
	}
	return s.Reset()
}

// queryOnce is query for a statement whose text is made for the occasion.
func (c *conn) queryOnce(each func(row) error, sql string, args ...any) error {
	s, _, err := c.PrepareTransient(sql)
	if err != nil {
		return err
	}
	if err := step(s, each, args); err != nil {
		_ = s.Finalize() // it repeats the error
		return err
	}
	return s.Finalize()
}

// run is query for a statement of a common text, queryOnce for any other.
func (c *conn) run(common bool, each func(row) error, sql string, args ...any) error {
	if common {
		return c.query(each, sql, args...)
	}
	return c.queryOnce(each, sql, args...)
}

func step(s *sqlite.Stmt, each func(row) error, args []any) error {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			s.BindText(i+1, a)
		case []byte:
			s.BindBytes(i+1, a)
		case int64:
			s.BindInt64(i+1, a)
		case int:
			s.BindInt64(i+1, int64(a))
		default:
			return fmt.Errorf("argument %d has type %T, which no column has", i+1, a)
		}
	}
	for {
		more, err := s.Step()
		if err != nil || !more {
			return err
		}
		if each != nil {
			if err := each(s); err != nil {
				return err
			}
		}
	}
}

// int64 answers the number that a query yields, or 0 for no row.
func (c *conn) int64(sql string, args ...any) (n int64, err error) {
	err = c.query(func(r row) error {
		n = r.ColumnInt64(0)
		return nil
	}, sql, args...)
	return n, err
}

// transact runs f between BEGIN and COMMIT. When it answers an error, nothing of f was kept.
func (c *conn) transact(f func() error) error {
	if err := c.rollback(); err != nil {
		return err
	}
	if err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := f(); err != nil {
		_ = c.rollback() // tried again before the next transaction
		return err
	}
	if err := c.exec("COMMIT"); err != nil {
		_ = c.rollback()
		return err
	}
	return nil
}

// rollback ends the transaction, unless an error of SQLite's has ended it already.
func (c *conn) rollback() error {
	if c.AutocommitEnabled() {
		return nil
	}
	return c.exec("ROLLBACK")
}

// columnBytes copies a column.
func columnBytes(r row, column int) []byte {
	b := make([]byte, r.ColumnLen(column))
	r.ColumnBytes(column, b)
	return b
}
