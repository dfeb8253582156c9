package servertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgresFolder is where PostgreSQL's programs are; "" when this machine is to do without.
func postgresFolder(t testing.TB) string {
	t.Helper()
	folder := os.Getenv("FREEHOLD_POSTGRES")
	if folder == "none" {
		t.Skip("FREEHOLD_POSTGRES=none")
	}
	if folder == "" {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
		if len(found) > 0 {
			folder = found[len(found)-1]
		} else if path, err := exec.LookPath("initdb"); err == nil {
			folder = filepath.Dir(path)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "initdb")); folder == "" || err != nil {
		t.Fatal("PostgreSQL's programs are not here: install Debian's package postgresql, set FREEHOLD_POSTGRES to their folder, or to none to skip")
	}
	return folder
}

// Database is a PostgreSQL server.
type Database struct {
	// DSN to connect with, over a socket in a folder.
	DSN     string
	t       testing.TB
	command func() *exec.Cmd
	running *exec.Cmd
}

// Postgres runs a server until the test ends, as another user where this is root: PostgreSQL refuses root.
func Postgres(t testing.TB) *Database {
	t.Helper()
	programs := postgresFolder(t)
	folder, err := os.MkdirTemp("", "fh-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	data := filepath.Join(folder, "data")
	var as *syscall.SysProcAttr
	if os.Getuid() == 0 {
		const nobody = 65534
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := os.Chown(folder, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	run := func(program string, args ...string) *exec.Cmd {
		c := exec.CommandContext(context.Background(), filepath.Join(programs, program), args...)
		c.Dir, c.SysProcAttr = folder, as
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + folder}
		return c
	}
	if out, err := run("initdb", "-D", data, "-U", "freehold", "--auth=trust", "--no-sync", "-E", "UTF8").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	db := &Database{t: t, DSN: "host=" + folder + " user=freehold dbname=postgres", command: func() *exec.Cmd {
		return run("postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB")
	}}
	db.Start()
	t.Cleanup(db.Stop)
	return db
}

// Start runs it again after Stop, on the same data.
func (db *Database) Start() {
	db.t.Helper()
	db.running = db.command()
	if err := db.running.Start(); err != nil {
		db.t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !db.answers() {
		if time.Now().After(deadline) {
			db.t.Fatal("PostgreSQL does not start")
		}
		<-tick.C
	}
}

func (db *Database) answers() bool {
	c, err := pgx.Connect(db.t.Context(), db.DSN)
	return err == nil && c.Close(db.t.Context()) == nil
}

// Stop ends all sessions at once.
func (db *Database) Stop() {
	if db.running == nil {
		return
	}
	_ = db.running.Process.Signal(syscall.SIGINT)
	_ = db.running.Wait()
	db.running = nil
}

// Exec runs a statement.
func (db *Database) Exec(statement string, args ...any) {
	db.t.Helper()
	c, err := pgx.Connect(db.t.Context(), db.DSN)
	if err != nil {
		db.t.Fatal(err)
	}
	defer c.Close(db.t.Context())
	if _, err := c.Exec(db.t.Context(), statement, args...); err != nil {
		db.t.Fatal(err)
	}
}

// Count answers the number that a query selects.
func (db *Database) Count(query string) (n int) {
	db.t.Helper()
	c, err := pgx.Connect(db.t.Context(), db.DSN)
	if err != nil {
		db.t.Fatal(err)
	}
	defer c.Close(db.t.Context())
	if err := c.QueryRow(db.t.Context(), query).Scan(&n); err != nil {
		db.t.Fatal(err)
	}
	return n
}
