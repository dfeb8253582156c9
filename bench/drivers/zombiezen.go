package main

import "zombiezen.com/go/sqlite"

type zombiezen struct{ conn *sqlite.Conn }

func openZombiezen(path string) (driver, error) {
	c, err := sqlite.OpenConn(path, sqlite.OpenReadWrite, sqlite.OpenCreate)
	return zombiezen{c}, err
}

func (z zombiezen) exec(sql string, args ...any) (n int64, err error) {
	s, err := z.conn.Prepare(sql)
	if err != nil {
		return 0, err
	}
	for i, a := range args {
		switch a := a.(type) {
		case string:
			s.BindText(i+1, a)
		case []byte:
			s.BindBytes(i+1, a)
		case int64:
			s.BindInt64(i+1, a)
		}
	}
	row, err := s.Step()
	if err != nil {
		return 0, err
	}
	if row {
		n = s.ColumnInt64(0)
	}
	return n, s.Reset()
}

func (z zombiezen) close() error { return z.conn.Close() }
