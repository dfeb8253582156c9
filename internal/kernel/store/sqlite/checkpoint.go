package sqlite

import (
	"os"
	"time"
)

const (
	// walLimit is the size in bytes from which on the write-ahead log is cut back.
	walLimit = 64 << 20
	// walCheckEvery is the time between two looks at its size.
	walCheckEvery = time.Second
	// walPatience is how long a cut waits for views that still read the log.
	walPatience = 50 * time.Millisecond
)

// wal is the write-ahead log's file. SQLite moves its content into the database after every 1,000 pages, and then
// starts it over unless a view reads from it. Where views overlap without end it would grow without end.
type wal struct {
	path    string
	limit   int64
	checked time.Time
}

// tend cuts the log back if it is too long and no view lasts too long. It runs between transactions of c.
func (l *wal) tend(c *conn) error {
	if time.Since(l.checked) < walCheckEvery {
		return nil
	}
	l.checked = time.Now()
	if info, err := os.Stat(l.path); err != nil || info.Size() < l.limit {
		return err
	}
	// New views find all of the log in the database, once it has been moved there, and do not delay the cut.
	c.SetBusyTimeout(walPatience)
	defer c.SetBlockOnBusy()
	return c.exec("PRAGMA wal_checkpoint(TRUNCATE)")
}
