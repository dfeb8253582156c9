package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redpanda-data/benthos/v4/public/service"
)

// LagGauge is the metric of how many messages the consumer has yet to deliver.
const LagGauge = "freehold_input_lag"

func inputSpec() *service.ConfigSpec {
	return service.NewConfigSpec().Categories("Services").
		Summary("Reads from a NATS JetStream stream through a durable consumer.").
		Description("A message is acknowledged after the output took it. One that the output refused is delivered again, " +
			"after a delay that grows. Metadata: nats_subject, nats_sequence_stream, nats_num_delivered, and the headers.").
		Fields(connectionFields()...).
		Field(service.NewStringField("stream").Default("").Description("The stream; found by the subject if empty.")).
		Field(service.NewStringField("subject").Default("").Description("Reads only what matches, wildcards allowed.")).
		Field(service.NewStringField("durable").Description("The name of the consumer: runs of one name share its place in the stream.")).
		Field(service.NewBoolField("bind").Default(false).Description("Use the consumer as it is, and do not create or change it.")).
		Field(service.NewStringEnumField("deliver", "all", "new", "last").Default("all").Description("Where a new consumer begins.")).
		Field(service.NewDurationField("ack_wait").Default("30s").Description("What is not acknowledged for so long is delivered again.")).
		Field(service.NewIntField("max_ack_pending").Default(1024).Description("The most messages in flight."))
}

type input struct {
	connection
	stream, subject, durable, deliver string
	bind                              bool
	ackWait                           time.Duration
	maxPending                        int
	lag                               *service.MetricGauge

	mu       sync.Mutex
	nc       *nats.Conn
	messages jetstream.MessagesContext
	// open are the messages that were handed on and not settled.
	open map[jetstream.Msg]struct{}
}

func newInput(c *service.ParsedConfig, mgr *service.Resources) (service.Input, error) {
	i := &input{lag: mgr.Metrics().NewGauge(LagGauge), open: map[jetstream.Msg]struct{}{}}
	var errs [8]error
	i.connection, errs[0] = parseConnection(c, mgr.Label())
	i.stream, errs[1] = c.FieldString("stream")
	i.subject, errs[2] = c.FieldString("subject")
	i.durable, errs[3] = c.FieldString("durable")
	i.bind, errs[4] = c.FieldBool("bind")
	i.deliver, errs[5] = c.FieldString("deliver")
	i.ackWait, errs[6] = c.FieldDuration("ack_wait")
	i.maxPending, errs[7] = c.FieldInt("max_ack_pending")
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	switch {
	case i.durable == "":
		return nil, errors.New("durable is empty")
	case i.stream == "" && i.subject == "":
		return nil, errors.New("stream or subject is required")
	case i.maxPending < 1:
		return nil, errors.New("max_ack_pending must be at least 1")
	}
	return i, nil
}

func (i *input) Connect(ctx context.Context) error {
	i.disconnect(ctx)
	nc, js, err := i.dial()
	if err != nil {
		return err
	}
	messages, err := i.consume(ctx, js)
	if err != nil {
		nc.Close()
		return err
	}
	i.mu.Lock()
	i.nc, i.messages = nc, messages
	i.mu.Unlock()
	return nil
}

func (i *input) consume(ctx context.Context, js jetstream.JetStream) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	stream := i.stream
	if stream == "" {
		var err error
		if stream, err = js.StreamNameBySubject(ctx, i.subject); err != nil {
			return nil, fmt.Errorf("find the stream of subject %s: %w", i.subject, err)
		}
	}
	consumer, err := i.consumer(ctx, js, stream)
	if err != nil {
		return nil, fmt.Errorf("consumer %s of stream %s: %w", i.durable, stream, err)
	}
	return consumer.Messages(jetstream.PullMaxMessages(min(i.maxPending, 500)), jetstream.PullHeartbeat(5*time.Second))
}

func (i *input) consumer(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.Consumer, error) {
	if i.bind {
		return js.Consumer(ctx, stream, i.durable)
	}
	policy := map[string]jetstream.DeliverPolicy{
		"all": jetstream.DeliverAllPolicy, "new": jetstream.DeliverNewPolicy, "last": jetstream.DeliverLastPolicy,
	}
	return js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: i.durable, FilterSubject: i.subject, DeliverPolicy: policy[i.deliver],
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: i.ackWait, MaxAckPending: i.maxPending,
	})
}

func (i *input) Read(ctx context.Context) (*service.Message, service.AckFunc, error) {
	i.mu.Lock()
	messages, nc := i.messages, i.nc
	i.mu.Unlock()
	if messages == nil {
		return nil, nil, service.ErrNotConnected
	}
	m, err := messages.Next(jetstream.NextContext(ctx))
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, nil, ctx.Err()
	case errors.Is(err, jetstream.ErrNoHeartbeat) && !nc.IsClosed():
		// The server did not speak for two heartbeats; the next pull tells.
		return nil, nil, err
	case err != nil:
		return nil, nil, service.ErrNotConnected
	}
	i.mu.Lock()
	i.open[m] = struct{}{}
	i.mu.Unlock()
	return i.message(m), i.settle(m), nil
}

func (i *input) message(m jetstream.Msg) *service.Message {
	out := service.NewMessage(m.Data())
	for key := range m.Headers() {
		out.MetaSetMut(key, m.Headers().Get(key))
	}
	out.MetaSetMut("nats_subject", m.Subject())
	if meta, err := m.Metadata(); err == nil {
		out.MetaSetMut("nats_sequence_stream", strconv.FormatUint(meta.Sequence.Stream, 10))
		out.MetaSetMut("nats_num_delivered", strconv.FormatUint(meta.NumDelivered, 10))
		i.lag.Set(int64(meta.NumPending))
	}
	return out
}

func (i *input) settle(m jetstream.Msg) service.AckFunc {
	return func(_ context.Context, failed error) error {
		i.mu.Lock()
		delete(i.open, m)
		i.mu.Unlock()
		if failed == nil {
			return m.Ack()
		}
		return m.NakWithDelay(redeliveryDelay(m))
	}
}

// redeliveryDelay grows with each delivery, from 0.1 to 30 seconds.
func redeliveryDelay(m jetstream.Msg) time.Duration {
	tries := uint64(1)
	if meta, err := m.Metadata(); err == nil {
		tries = min(max(meta.NumDelivered, 1), 10)
	}
	return min(50*time.Millisecond<<tries, 30*time.Second)
}

func (i *input) Close(ctx context.Context) error {
	i.disconnect(ctx)
	return nil
}

// disconnect gives back what was fetched and not settled, so that it is delivered again at once.
func (i *input) disconnect(ctx context.Context) {
	i.mu.Lock()
	nc, messages, open := i.nc, i.messages, i.open
	i.nc, i.messages, i.open = nil, nil, map[jetstream.Msg]struct{}{}
	i.mu.Unlock()
	if nc == nil {
		return
	}
	if !nc.IsClosed() {
		for m := range open {
			_ = m.Nak()
		}
		i.giveBack(ctx, messages)
	}
	messages.Stop()
	closeConn(ctx, nc)
}

func (i *input) giveBack(ctx context.Context, messages jetstream.MessagesContext) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	messages.Drain()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return
		}
		_ = m.Nak()
	}
}
