package benthos_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/servertest"
)

func TestFileToFileFinishesWithEveryLine(t *testing.T) {
	n := newNode(t)
	folder := t.TempDir()
	from, to := filepath.Join(folder, "in"), filepath.Join(folder, "out")
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&lines, "line-%d\n", i)
	}
	if err := os.WriteFile(from, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := n.start(`
input:
  file: {paths: ["` + from + `"]}
pipeline:
  threads: 1
  processors:
    - mapping: root = content().uppercase() + " ${FREEHOLD_STREAM}"
output:
  file: {path: "` + to + `", codec: lines}
`)
	n.ended(r)
	if f := r.Err(); f != nil {
		t.Fatalf("failure = %+v", f)
	}
	got, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(strings.ToUpper(lines.String()), "\n", " orders\n")
	if string(got) != want {
		t.Errorf("%d bytes arrived, want %d", len(got), len(want))
	}
	if m := r.Metrics(); m.InputMessages != 1000 || m.OutputMessages != 1000 || m.Errors != 0 || m.LagMessages != -1 || m.CPUSeconds <= 0 {
		t.Errorf("metrics = %+v", m)
	}
}

// receiver is an HTTP server that counts what it gets, and refuses every third request at first.
type receiver struct {
	mu     sync.Mutex
	asked  int
	bodies map[string]int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.asked%3 == 0 {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	if r.bodies == nil {
		r.bodies = map[string]int{}
	}
	r.bodies[string(body)]++
}

func (r *receiver) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.bodies)
}

func httpPipeline(listen, to string) string {
	return `
input:
  http_server: {address: "` + listen + `", path: /post}
output:
  http_client: {url: "` + to + `", verb: POST, retry_period: 10ms, max_retry_backoff: 50ms, retries: 100}
`
}

func TestHTTPServerToHTTPClientAnswersWhenItIsDelivered(t *testing.T) {
	n := newNode(t)
	var got receiver
	target := httptest.NewServer(&got)
	defer target.Close()
	address := freeAddress(t)
	r := n.start(httpPipeline(address, target.URL))
	n.ready(r)
	delivered := 0
	eventually(t, "the server of the stream", func() bool {
		for delivered < 50 {
			response, err := http.Post("http://"+address+"/post", "text/plain", strings.NewReader("message "+strconv.Itoa(delivered)))
			if err != nil {
				return false
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return false
			}
			delivered++
			if got.distinct() != delivered {
				t.Fatalf("%d messages arrived when %d were confirmed", got.distinct(), delivered)
			}
		}
		return true
	})
	n.stop(r)
	if got.distinct() != 50 {
		t.Errorf("%d messages arrived, want 50", got.distinct())
	}
}

func TestServerThatCannotListenIsAFailure(t *testing.T) {
	n := newNode(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	r := n.start(httpPipeline(taken.Addr().String(), "http://127.0.0.1:1"))
	n.ended(r)
	select {
	case <-r.Ready():
		t.Error("it was ready")
	default:
	}
	if f := r.Err(); f == nil || f.Class != hub.Transient || f.Code != "listen_failed" || !strings.Contains(f.Message, "address already in use") {
		t.Errorf("failure = %+v", f)
	}
}

func natsToPostgres(n *node, js jetstream.JetStream, db *servertest.Database) string {
	n.secrets["nats"] = servertest.NATSPassword
	n.secrets["dsn"] = db.DSN
	return `
input:
  nats_jetstream:
    urls: ["` + js.Conn().ConnectedUrl() + `"]
    user: freehold
    password: "${secret:nats}"
    stream: ORDERS
    durable: orders
    ack_wait: 5s
output:
  postgres:
    dsn: ${secret:dsn}
    init_statement: CREATE TABLE IF NOT EXISTS orders (id bigint, at timestamptz DEFAULT now())
    query: INSERT INTO orders (id) VALUES ($1)
    args_mapping: root = [ this.id ]
    max_in_flight: 8
    batching: {count: 20, period: 20ms}
`
}

func createStream(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, js jetstream.JetStream, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if _, err := js.Publish(t.Context(), "orders.new", fmt.Appendf(nil, `{"id":%d}`, i)); err != nil {
			t.Fatal(err)
		}
	}
}

// Killed five times while it works, and the database away once: every message arrives, none is lost.
func TestJetStreamToPostgreSQLLosesNothing(t *testing.T) {
	n := newNode(t)
	js, db := servertest.NATS(t), servertest.Postgres(t)
	createStream(t, js)
	// Slowly, so that there is something to lose.
	content := strings.Replace(natsToPostgres(n, js, db), "VALUES ($1)", "SELECT $1::bigint FROM pg_sleep(0.02)", 1)
	const perRound, rounds = 400, 5
	published := 0
	for round := range rounds {
		r := n.start(content)
		n.ready(r)
		enough := db.Count("SELECT count(DISTINCT id) FROM orders") + perRound/4
		publish(t, js, published, published+perRound)
		published += perRound
		eventually(t, "work to be in progress", func() bool { return db.Count("SELECT count(DISTINCT id) FROM orders") >= enough })
		if round == 2 {
			db.Stop()
			db.Start()
		}
		n.kill(r)
		t.Logf("killed with %d of %d messages stored", db.Count("SELECT count(DISTINCT id) FROM orders"), published)
		if f := r.Err(); f == nil || f.Class != hub.Transient {
			t.Errorf("failure of a killed stream = %+v", f)
		}
	}
	r := n.start(content)
	n.ready(r)
	eventually(t, "every message", func() bool { return db.Count("SELECT count(DISTINCT id) FROM orders") == published })
	eventually(t, "every acknowledgement", func() bool {
		c, err := js.Consumer(t.Context(), "ORDERS", "orders")
		if err != nil {
			return false
		}
		info, err := c.Info(t.Context())
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0
	})
	n.stop(r)
	all := db.Count("SELECT count(*) FROM orders")
	t.Logf("%d messages, %d deliveries", published, all)
	if low, high := db.Count("SELECT min(id) FROM orders"), db.Count("SELECT max(id) FROM orders"); low != 0 || high != published-1 || all < published {
		t.Errorf("ids %d to %d, %d rows", low, high, all)
	}
}

// A stream that is stopped while messages are on their way delivers or returns them: the next run starts at once, though
// the broker would wait a minute for an acknowledgement.
func TestStoppedStreamGivesBackWhatItFetched(t *testing.T) {
	n := newNode(t)
	js, db := servertest.NATS(t), servertest.Postgres(t)
	createStream(t, js)
	content := strings.Replace(natsToPostgres(n, js, db), "ack_wait: 5s", "ack_wait: 1h", 1)
	publish(t, js, 0, 2000)
	r := n.start(content)
	n.ready(r)
	eventually(t, "work to be in progress", func() bool { return db.Count("SELECT count(*) FROM orders") > 0 })
	n.stop(r)
	r = n.start(content)
	n.ready(r)
	eventually(t, "every message", func() bool { return db.Count("SELECT count(DISTINCT id) FROM orders") == 2000 })
	n.stop(r)
	if m := r.Metrics(); m.LagMessages != 0 {
		t.Errorf("lag = %d at the end", m.LagMessages)
	}
}

func TestMessageThatTheDatabaseRefusesHoldsUpNoOther(t *testing.T) {
	n := newNode(t)
	js, db := servertest.NATS(t), servertest.Postgres(t)
	createStream(t, js)
	publish(t, js, 0, 10)
	if _, err := js.Publish(t.Context(), "orders.bad", []byte(`{"id":"no number"}`)); err != nil {
		t.Fatal(err)
	}
	publish(t, js, 10, 20)
	r := n.start(natsToPostgres(n, js, db))
	n.ready(r)
	eventually(t, "the good messages", func() bool { return db.Count("SELECT count(DISTINCT id) FROM orders") == 20 })
	eventually(t, "errors to be counted", func() bool { return r.Metrics().Errors > 0 })
	n.stop(r)
}

func TestPostgreSQLQueueToJetStream(t *testing.T) {
	n := newNode(t)
	js, db := servertest.NATS(t), servertest.Postgres(t)
	createStream(t, js)
	db.Exec("CREATE TABLE outbox (id bigserial PRIMARY KEY, body jsonb)")
	db.Exec("INSERT INTO outbox (body) SELECT jsonb_build_object('n', g) FROM generate_series(1, 500) g")
	n.secrets["nats"], n.secrets["dsn"] = servertest.NATSPassword, db.DSN
	content := `
input:
  postgres:
    dsn: ${secret:dsn}
    query: SELECT id, body FROM outbox ORDER BY id LIMIT 50 FOR UPDATE SKIP LOCKED
    acknowledge: DELETE FROM outbox WHERE id = $1
    interval: 50ms
output:
  nats_jetstream:
    urls: ["` + js.Conn().ConnectedUrl() + `"]
    user: freehold
    password: ${secret:nats}
    subject: orders.${! json("body.n") }
    message_id: ${! json("id") }
`
	first := n.start(content)
	n.ready(first)
	eventually(t, "work to be in progress", func() bool { return db.Count("SELECT count(*) FROM outbox") < 500 })
	n.kill(first)
	second := n.start(content)
	n.ready(second)
	eventually(t, "an empty outbox", func() bool { return db.Count("SELECT count(*) FROM outbox") == 0 })
	db.Exec(`INSERT INTO outbox (body) VALUES ('{"n": 501}')`)
	eventually(t, "an empty outbox", func() bool { return db.Count("SELECT count(*) FROM outbox") == 0 })
	n.stop(second)
	stream, err := js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("orders.>"))
	if err != nil {
		t.Fatal(err)
	}
	if len(info.State.Subjects) != 501 || info.State.Msgs != 501 {
		t.Errorf("%d subjects, %d messages, want 501 of each", len(info.State.Subjects), info.State.Msgs)
	}
}

func TestQueryWithoutAcknowledgeRunsOnce(t *testing.T) {
	n := newNode(t)
	db := servertest.Postgres(t)
	n.secrets["dsn"] = db.DSN
	to := filepath.Join(t.TempDir(), "out")
	r := n.start(`
input:
  postgres: {dsn: "${secret:dsn}", query: "SELECT g AS id FROM generate_series(1, 3) g"}
output:
  file: {path: "` + to + `", codec: lines}
`)
	n.ended(r)
	if f := r.Err(); f != nil {
		t.Fatalf("failure = %+v", f)
	}
	if got, err := os.ReadFile(to); err != nil || string(got) != "{\"id\":1}\n{\"id\":2}\n{\"id\":3}\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestStreamIsNotReadyBeforeItIsConnected(t *testing.T) {
	n := newNode(t)
	r := n.start(`
input:
  nats_jetstream: {urls: ["nats://` + freeAddress(t) + `"], stream: ORDERS, durable: d}
output:
  drop: {}
`)
	eventually(t, "a failed connection", func() bool { return strings.Contains(n.log.String(), "Failed to connect") })
	select {
	case <-r.Ready():
		t.Error("ready without a server")
	default:
	}
	n.stop(r)
}

func TestCrashOfAStreamStaysItsOwn(t *testing.T) {
	n := newNode(t)
	r := n.start(`
input:
  generate: {mapping: "root = {}", interval: 10ms}
pipeline:
  processors:
    - crash: "oh no"
output:
  drop: {}
`)
	n.ended(r)
	if f := r.Err(); f == nil || f.Class != hub.Transient || f.Code != "crashed" {
		t.Errorf("failure = %+v", f)
	}
}

func TestProcessesOfAStreamEndWithIt(t *testing.T) {
	n := newNode(t)
	marker := filepath.Join(t.TempDir(), "pid")
	r := n.start(`
input:
  subprocess: {name: sh, args: [-c, "echo $$ > ` + marker + `; trap '' TERM HUP; while :; do sleep 0.1; done"]}
output:
  drop: {}
`)
	var pid string
	eventually(t, "the stream's process", func() bool {
		b, _ := os.ReadFile(marker)
		pid = strings.TrimSpace(string(b))
		return pid != ""
	})
	n.kill(r)
	if _, err := os.Stat("/proc/" + pid); !errors.Is(err, os.ErrNotExist) {
		t.Error("a process outlived its stream")
	}
}

func TestRejectedContentIsSaidAtOnce(t *testing.T) {
	n := newNode(t)
	for content, want := range map[string]hub.Failure{
		"input: {}": {Class: hub.ConfigRejected, Code: "invalid_config", Message: "line 1"},
		"input: {generate: {mapping: 'root = {}'}}\noutput: {postgres: {dsn: '${secret:none}', query: x, args_mapping: 'root = []'}}": {
			Class: hub.Transient, Code: "secret_missing", Message: "none"},
	} {
		for name, call := range map[string]func() error{
			"check": func() error { return n.engine.Check(context.Background(), n.spec(content)) },
			"start": func() error { _, err := n.engine.Start(context.Background(), n.spec(content)); return err },
		} {
			var failed *engine.Error
			if err := call(); !errors.As(err, &failed) || failed.Failure.Class != want.Class || failed.Failure.Code != want.Code ||
				!strings.Contains(failed.Failure.Message, want.Message) {
				t.Errorf("%s %s: %v", name, content, err)
			}
		}
	}
	// What only the components can tell comes from the run.
	n.secrets["dsn"] = "this is no dsn and has a password"
	r := n.start("input: {generate: {mapping: 'root = {}'}}\noutput: {postgres: {dsn: '${secret:dsn}', query: x, args_mapping: 'root = []'}}")
	n.ended(r)
	if f := r.Err(); f == nil || f.Class != hub.ConfigRejected || strings.Contains(f.Message+n.log.String(), "has a password") {
		t.Errorf("failure = %+v", f)
	}
}
