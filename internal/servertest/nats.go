// Package servertest starts the real servers that streams speak to, for tests.
package servertest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// patience bounds every wait; nothing is expected to take this long.
const patience = 60 * time.Second

// The credentials of the NATS server: what quotes and expansions could get wrong is in the password.
const (
	NATSUser     = "freehold"
	NATSPassword = "a $ecret: \"x\""
)

// NATS runs a JetStream server in this process until the test ends, and answers a connection to it.
func NATS(t testing.TB) jetstream.JetStream {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		Username: NATSUser, Password: NATSPassword,
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
	nc, err := nats.Connect(s.ClientURL(), nats.UserInfo(NATSUser, NATSPassword))
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
