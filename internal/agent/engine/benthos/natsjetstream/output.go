package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redpanda-data/benthos/v4/public/service"
)

func outputSpec() *service.ConfigSpec {
	return service.NewConfigSpec().Categories("Services").
		Summary("Publishes to NATS JetStream; a message is delivered when a stream has stored it.").
		Fields(connectionFields()...).
		Field(service.NewInterpolatedStringField("subject").Example("orders.${! json(\"country\") }")).
		Field(service.NewInterpolatedStringMapField("headers").Default(map[string]any{})).
		Field(service.NewInterpolatedStringField("message_id").Default("").
			Description("The stream drops a message whose id it saw within its duplicate window.")).
		Field(service.NewOutputMaxInFlightField())
}

type output struct {
	connection
	subject, id *service.InterpolatedString
	headers     map[string]*service.InterpolatedString

	mu sync.RWMutex
	nc *nats.Conn
	js jetstream.JetStream
}

func newOutput(c *service.ParsedConfig, mgr *service.Resources) (service.Output, int, error) {
	o := &output{}
	var errs [5]error
	var inFlight int
	o.connection, errs[0] = parseConnection(c, mgr.Label())
	o.subject, errs[1] = c.FieldInterpolatedString("subject")
	o.id, errs[2] = c.FieldInterpolatedString("message_id")
	o.headers, errs[3] = c.FieldInterpolatedStringMap("headers")
	inFlight, errs[4] = c.FieldMaxInFlight()
	return o, inFlight, errors.Join(errs[:]...)
}

func (o *output) Connect(ctx context.Context) error {
	_ = o.Close(ctx)
	nc, js, err := o.dial()
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nc, o.js = nc, js
	return nil
}

func (o *output) Write(ctx context.Context, m *service.Message) error {
	o.mu.RLock()
	nc, js := o.nc, o.js
	o.mu.RUnlock()
	if nc == nil {
		return service.ErrNotConnected
	}
	msg, err := o.message(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err = js.PublishMsg(ctx, msg); err == nil {
		return nil
	}
	if nc.IsClosed() {
		return service.ErrNotConnected
	}
	return fmt.Errorf("publish to %s: %w", msg.Subject, err)
}

func (o *output) message(m *service.Message) (*nats.Msg, error) {
	subject, err := o.subject.TryString(m)
	if err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	msg := nats.NewMsg(subject)
	if msg.Data, err = m.AsBytes(); err != nil {
		return nil, err
	}
	for key, expression := range o.headers {
		value, err := expression.TryString(m)
		if err != nil {
			return nil, fmt.Errorf("header %s: %w", key, err)
		}
		msg.Header.Set(key, value)
	}
	id, err := o.id.TryString(m)
	if err != nil {
		return nil, fmt.Errorf("message_id: %w", err)
	}
	if id != "" {
		msg.Header.Set(jetstream.MsgIDHeader, id)
	}
	return msg, nil
}

func (o *output) Close(ctx context.Context) error {
	o.mu.Lock()
	nc := o.nc
	o.nc, o.js = nil, nil
	o.mu.Unlock()
	if nc != nil {
		closeConn(ctx, nc)
	}
	return nil
}
