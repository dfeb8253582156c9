package benthos_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/supervise"
)

// The test program is also the supervisor and the host of streams.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(supervise.Main())
		case "stream-host":
			os.Exit(benthos.Host())
		}
	}
	os.Exit(m.Run())
}

const patience = 60 * time.Second

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited %s in vain for: %s", patience, what)
		case <-tick.C:
		}
	}
}

// runLog is what a run said.
type runLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *runLog) add(source, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, source+" "+line)
}

func (l *runLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// node is an agent's half of the engine.
type node struct {
	t       *testing.T
	engine  *benthos.Engine
	log     runLog
	secrets map[string]string
	runs    int
}

func newNode(t *testing.T) *node {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := supervise.New(supervise.Config{Command: []string{self, "supervise"}})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, secrets: map[string]string{}, engine: benthos.New(benthos.Config{
		Supervisor: s, Command: []string{self, "stream-host"}, Env: process.BaseEnv(os.Environ()),
	})}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the streams' log:\n" + n.log.String())
		}
	})
	return n
}

func (n *node) spec(content string) engine.Spec {
	n.runs++
	return engine.Spec{
		Stream: "orders", Token: strings.ReplaceAll(n.t.Name(), "/", ".") + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(n.runs),
		Content: content, Log: n.log.add,
		Secret: func(name string) (string, error) {
			if value, ok := n.secrets[name]; ok {
				return value, nil
			}
			return "", errors.New("no such secret")
		},
	}
}

func (n *node) start(content string) engine.Run {
	n.t.Helper()
	r, err := n.engine.Start(n.t.Context(), n.spec(content))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Stop(ctx)
	})
	return r
}

func (n *node) ready(r engine.Run) {
	n.t.Helper()
	select {
	case <-r.Ready():
	case <-r.Done():
		n.t.Fatalf("the stream ended: %+v", r.Err())
	case <-time.After(patience):
		n.t.Fatal("the stream does not get ready")
	}
}

func (n *node) ended(r engine.Run) {
	n.t.Helper()
	select {
	case <-r.Done():
	case <-time.After(patience):
		n.t.Fatal("the stream does not end")
	}
}

func (n *node) stop(r engine.Run) {
	n.t.Helper()
	if err := r.Stop(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	if f := r.Err(); f != nil {
		n.t.Errorf("a stopped stream failed: %+v", f)
	}
}

// kill ends the stream's process as a crash would.
func (n *node) kill(r engine.Run) {
	n.t.Helper()
	pid := benthos.Pid(r)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	n.ended(r)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startNATS runs a JetStream server in this process.
func startNATS(t *testing.T) jetstream.JetStream {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		Username: "freehold", Password: "a $ecret: \"x\"",
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
	nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("freehold", "a $ecret: \"x\""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// postgresFolder is where PostgreSQL's programs are; "" when this machine is to do without.
func postgresFolder(t *testing.T) string {
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

// database is a PostgreSQL server.
type database struct {
	t       *testing.T
	dsn     string
	command func() *exec.Cmd
	running *exec.Cmd
}

// startPostgres runs a server for this test, as another user where this is root: PostgreSQL refuses root.
func startPostgres(t *testing.T) *database {
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
		c := exec.Command(filepath.Join(programs, program), args...)
		c.Dir, c.SysProcAttr = folder, as
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + folder}
		return c
	}
	if out, err := run("initdb", "-D", data, "-U", "freehold", "--auth=trust", "--no-sync", "-E", "UTF8").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	db := &database{t: t, dsn: "host=" + folder + " user=freehold dbname=postgres", command: func() *exec.Cmd {
		return run("postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB")
	}}
	db.start()
	t.Cleanup(db.stop)
	return db
}

func (db *database) start() {
	db.t.Helper()
	db.running = db.command()
	if err := db.running.Start(); err != nil {
		db.t.Fatal(err)
	}
	eventually(db.t, "PostgreSQL", func() bool {
		c, err := pgx.Connect(db.t.Context(), db.dsn)
		if err != nil {
			return false
		}
		return c.Close(db.t.Context()) == nil
	})
}

// stop ends all sessions at once.
func (db *database) stop() {
	if db.running == nil {
		return
	}
	_ = db.running.Process.Signal(syscall.SIGINT)
	_ = db.running.Wait()
	db.running = nil
}

func (db *database) exec(statement string, args ...any) {
	db.t.Helper()
	c, err := pgx.Connect(db.t.Context(), db.dsn)
	if err != nil {
		db.t.Fatal(err)
	}
	defer c.Close(db.t.Context())
	if _, err := c.Exec(db.t.Context(), statement, args...); err != nil {
		db.t.Fatal(err)
	}
}

func (db *database) count(query string) (n int) {
	db.t.Helper()
	c, err := pgx.Connect(db.t.Context(), db.dsn)
	if err != nil {
		db.t.Fatal(err)
	}
	defer c.Close(db.t.Context())
	if err := c.QueryRow(db.t.Context(), query).Scan(&n); err != nil {
		db.t.Fatal(err)
	}
	return n
}
