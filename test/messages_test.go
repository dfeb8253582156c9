package test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"freehold.dev/freehold/internal/servertest"
)

// TestMessagesSurviveTheAgentsDeath moves messages from JetStream to PostgreSQL, and kills the agent while they are on
// their way: each of them arrives, at least once.
func TestMessagesSurviveTheAgentsDeath(t *testing.T) {
	js, db := servertest.NATS(t), servertest.Postgres(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	db.Exec("CREATE TABLE orders (id bigint)")
	published := 0
	publish := func(n int) {
		t.Helper()
		for range n {
			if _, err := js.Publish(t.Context(), "orders.new", fmt.Appendf(nil, `{"id":%d}`, published)); err != nil {
				t.Fatal(err)
			}
			published++
		}
	}
	arrived := func() int { return db.Count("SELECT count(DISTINCT id) FROM orders") }

	p := startPlane(t, t.TempDir())
	n := p.join(t, openRoad(t, p), "edge-1")
	if err := os.MkdirAll(filepath.Join(n.data, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"dsn": db.DSN, "nats": servertest.NATSPassword} {
		if err := os.WriteFile(filepath.Join(n.data, "secrets", name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Slowly, so that there is something on its way.
	version := p.publish(t, "benthos", `
input:
  nats_jetstream:
    urls: ["`+js.Conn().ConnectedUrl()+`"]
    user: `+servertest.NATSUser+`
    password: "${secret:nats}"
    stream: ORDERS
    durable: orders
    ack_wait: 3s
output:
  postgres:
    dsn: ${secret:dsn}
    query: INSERT INTO orders (id) SELECT $1::bigint FROM pg_sleep(0.02)
    args_mapping: root = [ this.id ]
    max_in_flight: 4
    batching: {count: 10, period: 20ms}
`)
	p.declare("edge-1", "orders", "running", version)
	p.untilInSync(t, "edge-1", "orders", 1)
	for range kills(3, 10) {
		before := arrived()
		publish(200)
		eventually(t, "messages on their way", func() string {
			if got := arrived(); got < before+20 {
				return fmt.Sprintf("%d arrived, %d before", got, before)
			}
			return ""
		})
		n.kill()
		n.run()
	}
	eventually(t, "every message", func() string {
		if got := arrived(); got != published {
			return fmt.Sprintf("%d of %d arrived", got, published)
		}
		return ""
	})
	t.Logf("%d messages, %d deliveries", published, db.Count("SELECT count(*) FROM orders"))
}
