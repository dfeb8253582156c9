// Command drivers compares the SQLite drivers for Go that need no C compiler, by what Freehold's store asks of one:
// durable creates of 1 KiB objects, committed in groups as 64 concurrent writers make them.
//
// Each round runs every driver for a while, in turn, so that a change in the machine's mood hits all of them.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// driver is one open database.
type driver interface {
	// exec runs a statement, compiled once, and answers the first column of its first row, 0 for none.
	exec(sql string, args ...any) (int64, error)
	close() error
}

var drivers = []struct {
	name string
	open func(path string) (driver, error)
}{
	{"zombiezen.com/go/sqlite", openZombiezen},
	{"modernc.org/sqlite (database/sql)", openModernc},
	{"github.com/ncruces/go-sqlite3", openNcruces},
}

var setUp = []string{
	"PRAGMA journal_mode = WAL",
	"PRAGMA synchronous = FULL",
	"PRAGMA cache_size = -8192",
	"CREATE TABLE objects (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (kind, name))",
	"CREATE TABLE terms (kind TEXT, field TEXT, value TEXT, name TEXT, id INTEGER NOT NULL, PRIMARY KEY (kind, field, value, name)) WITHOUT ROWID",
	"CREATE TABLE log (revision INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, changes BLOB NOT NULL)",
}

const batch = 64

func main() {
	rounds := flag.Int("rounds", 5, "rounds to run")
	seconds := flag.Float64("seconds", 2, "seconds of each driver in a round")
	folder := flag.String("dir", ".", "folder for the databases: on the disk to be measured")
	flag.Parse()
	if err := run(*folder, *rounds, time.Duration(*seconds*float64(time.Second))); err != nil {
		fmt.Fprintln(os.Stderr, "drivers:", err)
		os.Exit(1)
	}
}

func run(folder string, rounds int, span time.Duration) error {
	dir, err := os.MkdirTemp(folder, "drivers-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rates := make([][]float64, len(drivers))
	for round := range rounds {
		for i, d := range drivers {
			rate, err := measure(d.open, filepath.Join(dir, fmt.Sprintf("%d-%d.db", round, i)), span)
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	best := 0.0
	for i := range rates {
		slices.Sort(rates[i])
		best = max(best, rates[i][rounds/2])
	}
	fmt.Printf("%-36s %14s %8s\n", "driver", "creates/s", "ratio")
	for i, d := range drivers {
		median := rates[i][rounds/2]
		fmt.Printf("%-36s %14.0f %8.2f\n", d.name, median, median/best)
	}
	return nil
}

// measure answers creates per second.
func measure(open func(string) (driver, error), path string, span time.Duration) (rate float64, err error) {
	d, err := open(path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if closed := d.close(); err == nil {
			err = closed
		}
	}()
	for _, sql := range setUp {
		if _, err := d.exec(sql); err != nil {
			return 0, fmt.Errorf("%s: %w", sql, err)
		}
	}
	n := 0
	start := time.Now()
	for time.Since(start) < span {
		if err := commit(d, n); err != nil {
			return 0, err
		}
		n += batch
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

var body = bytes.Repeat([]byte("x"), 1024)

// commit creates a batch of objects in one transaction, each in its savepoint.
func commit(d driver, first int) error {
	type statement struct {
		sql  string
		args []any
	}
	if _, err := d.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for i := first; i < first+batch; i++ {
		name := fmt.Sprintf("tenant-%d/machine-%d", i%100, i)
		for _, s := range []statement{
			{"SAVEPOINT request", nil},
			{"SELECT id FROM objects WHERE kind = ? AND name = ?", []any{"machine", name}},
			{"INSERT INTO objects (kind, name, data) VALUES (?, ?, ?)", []any{"machine", name, body}},
			{"INSERT INTO terms (kind, field, value, name, id) VALUES (?, ?, ?, ?, ?)", []any{"machine", "label:tenant", fmt.Sprint(i % 100), name, int64(i)}},
			{"INSERT INTO log (time, changes) VALUES (?, ?)", []any{int64(i), body}},
			{"RELEASE request", nil},
		} {
			if _, err := d.exec(s.sql, s.args...); err != nil {
				return fmt.Errorf("%s: %w", s.sql, err)
			}
		}
	}
	_, err := d.exec("COMMIT")
	return err
}
