package main

import (
	"context"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite"
)

type modernc struct {
	db         *sql.DB
	conn       *sql.Conn
	statements map[string]*sql.Stmt
}

func openModernc(path string) (driver, error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, err
	}
	c, err := db.Conn(context.Background())
	return &modernc{db, c, map[string]*sql.Stmt{}}, err
}

func (m *modernc) exec(text string, args ...any) (n int64, err error) {
	ctx := context.Background()
	s := m.statements[text]
	if s == nil {
		if s, err = m.conn.PrepareContext(ctx, text); err != nil {
			return 0, err
		}
		m.statements[text] = s
	}
	if text[0] != 'S' || text[1] != 'E' {
		_, err := s.ExecContext(ctx, args...)
		return 0, err
	}
	err = s.QueryRowContext(ctx, args...).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return n, err
}

func (m *modernc) close() error {
	for _, s := range m.statements {
		_ = s.Close()
	}
	return errors.Join(m.conn.Close(), m.db.Close())
}
