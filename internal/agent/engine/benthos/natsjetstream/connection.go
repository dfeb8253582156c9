// Package natsjetstream has the Benthos input and output nats_jetstream.
package natsjetstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redpanda-data/benthos/v4/public/service"
)

// Register adds the input and the output to an environment.
func Register(env *service.Environment) error {
	return errors.Join(
		env.RegisterInput("nats_jetstream", inputSpec(), newInput),
		env.RegisterOutput("nats_jetstream", outputSpec(), newOutput),
	)
}

func connectionFields() []*service.ConfigField {
	return []*service.ConfigField{
		service.NewStringListField("urls").Description("The servers.").Example([]string{"nats://127.0.0.1:4222"}),
		service.NewStringField("user").Default(""),
		service.NewStringField("password").Default("").Secret(),
		service.NewStringField("token").Default("").Secret(),
		service.NewStringField("credentials").Default("").Secret().Description("The text of a credentials file: a JWT and its seed."),
		service.NewStringField("domain").Default("").Description("The JetStream domain."),
		service.NewTLSToggledField("tls"),
	}
}

type connection struct {
	urls                              []string
	user, password, token, creds, dom string
	tls                               *tls.Config
	name                              string
}

func parseConnection(c *service.ParsedConfig, name string) (connection, error) {
	x := connection{name: name}
	var err error
	if x.urls, err = c.FieldStringList("urls"); err != nil {
		return x, err
	}
	if len(x.urls) == 0 {
		return x, errors.New("urls is empty")
	}
	for field, into := range map[string]*string{
		"user": &x.user, "password": &x.password, "token": &x.token, "credentials": &x.creds, "domain": &x.dom,
	} {
		if *into, err = c.FieldString(field); err != nil {
			return x, err
		}
	}
	config, enabled, err := c.FieldTLSToggled("tls")
	if enabled {
		x.tls = config
	}
	return x, err
}

// dial connects. The library does not reconnect by itself: Benthos does, and so knows the connection's state.
func (x connection) dial() (*nats.Conn, jetstream.JetStream, error) {
	options := []nats.Option{
		nats.Name(x.name), nats.NoReconnect(), nats.Timeout(10 * time.Second),
		nats.PingInterval(20 * time.Second), nats.MaxPingsOutstanding(2),
	}
	if x.user != "" {
		options = append(options, nats.UserInfo(x.user, x.password))
	}
	if x.token != "" {
		options = append(options, nats.Token(x.token))
	}
	if x.creds != "" {
		options = append(options, nats.UserCredentialBytes([]byte(x.creds)))
	}
	if x.tls != nil {
		options = append(options, nats.Secure(x.tls))
	}
	nc, err := nats.Connect(strings.Join(x.urls, ","), options...)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to NATS: %w", err)
	}
	js, err := jetstream.New(nc)
	if x.dom != "" {
		js, err = jetstream.NewWithDomain(nc, x.dom)
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// closeConn sends what is buffered, acknowledgements above all.
func closeConn(ctx context.Context, nc *nats.Conn) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = nc.FlushWithContext(ctx)
	nc.Close()
}
