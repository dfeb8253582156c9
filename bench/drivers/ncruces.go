package main

import (
	"errors"

	"github.com/ncruces/go-sqlite3"
)

type ncruces struct {
	conn       *sqlite3.Conn
	statements map[string]*sqlite3.Stmt
}

func openNcruces(path string) (driver, error) {
	c, err := sqlite3.Open(path)
	return &ncruces{c, map[string]*sqlite3.Stmt{}}, err
}

func (d *ncruces) exec(text string, args ...any) (n int64, err error) {
	s := d.statements[text]
	if s == nil {
		if s, _, err = d.conn.Prepare(text); err != nil {
			return 0, err
		}
		d.statements[text] = s
	}
	for i, a := range args {
		switch a := a.(type) {
		case string:
			err = s.BindText(i+1, a)
		case []byte:
			err = s.BindBlob(i+1, a)
		case int64:
			err = s.BindInt64(i+1, a)
		}
		if err != nil {
			return 0, err
		}
	}
	if s.Step() {
		n = s.ColumnInt64(0)
	}
	return n, errors.Join(s.Err(), s.Reset())
}

func (d *ncruces) close() error {
	for _, s := range d.statements {
		_ = s.Close()
	}
	return d.conn.Close()
}
