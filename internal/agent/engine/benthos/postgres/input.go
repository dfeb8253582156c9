package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redpanda-data/benthos/v4/public/bloblang"
	"github.com/redpanda-data/benthos/v4/public/service"
)

func inputSpec() *service.ConfigSpec {
	return service.NewConfigSpec().Categories("Services").
		Summary("Reads rows, each as an object.").
		Description("With acknowledge, a table is a queue: the rows of the query are one batch, read in a transaction that " +
			"stays open until the output took them; then acknowledge runs for each row, and the transaction is committed. " +
			"A query that ends in FOR UPDATE SKIP LOCKED can be run by several streams at once. Without acknowledge the " +
			"query runs once, and the stream ends with its rows.").
		Field(dsnField()).
		Field(service.NewStringField("query").Example("SELECT id, body FROM outbox ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED")).
		Field(service.NewStringField("acknowledge").Default("").Example("DELETE FROM outbox WHERE id = $1")).
		Field(mappingField().Default("root = [ this.id ]").Description("A mapping of a row to the values of acknowledge's placeholders.")).
		Field(service.NewDurationField("interval").Default("1s").Description("How long to wait when there was no row."))
}

type input struct {
	dsn, query, acknowledge string
	mapping                 *bloblang.Executor
	interval                time.Duration

	// turn is held from a read to its acknowledgement.
	turn chan struct{}

	mu   sync.Mutex
	pool *pgxpool.Pool
	tx   pgx.Tx
	idle bool
	done bool
}

func newInput(c *service.ParsedConfig, _ *service.Resources) (service.BatchInput, error) {
	i := &input{turn: make(chan struct{}, 1)}
	var errs [6]error
	i.dsn, errs[0] = c.FieldString("dsn")
	i.query, errs[1] = c.FieldString("query")
	i.acknowledge, errs[2] = c.FieldString("acknowledge")
	i.mapping, errs[3] = c.FieldBloblang("args_mapping")
	i.interval, errs[4] = c.FieldDuration("interval")
	errs[5] = checkDSN(i.dsn)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if i.acknowledge == "" {
		// There is no row to give back to: what the output refused is offered to it again.
		return service.AutoRetryNacksBatched(i), nil
	}
	return i, nil
}

func (i *input) Connect(ctx context.Context) error {
	_ = i.Close(ctx)
	pool, err := open(ctx, i.dsn, 1)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pool = pool
	return nil
}

func (i *input) ReadBatch(ctx context.Context) (service.MessageBatch, service.AckFunc, error) {
	select {
	case i.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	batch, tx, err := i.read(ctx)
	if err != nil {
		i.pass()
		return nil, nil, err
	}
	confirmation, err := i.confirmation(batch)
	if err != nil {
		return nil, nil, errors.Join(err, i.settle(ctx, tx, nil, err))
	}
	return batch, func(ctx context.Context, failed error) error {
		return i.settle(ctx, tx, confirmation, failed)
	}, nil
}

func (i *input) pass() {
	select {
	case <-i.turn:
	default:
	}
}

func (i *input) read(ctx context.Context) (service.MessageBatch, pgx.Tx, error) {
	i.mu.Lock()
	pool, idle, done := i.pool, i.idle, i.done
	i.mu.Unlock()
	switch {
	case done:
		return nil, nil, service.ErrEndOfInput
	case pool == nil:
		return nil, nil, service.ErrNotConnected
	case idle:
		if err := pause(ctx, i.interval); err != nil {
			return nil, nil, err
		}
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, nil, i.failed(ctx, err)
	}
	batch, err := rows(ctx, tx, i.query)
	if err != nil || len(batch) == 0 {
		_ = tx.Rollback(ctx)
	}
	once := i.acknowledge == ""
	i.mu.Lock()
	i.idle = err != nil || len(batch) == 0
	i.done = err == nil && once
	i.mu.Unlock()
	switch {
	case err != nil:
		return nil, nil, i.failed(ctx, err)
	case len(batch) == 0 && once:
		return nil, nil, service.ErrEndOfInput
	case len(batch) == 0:
		return nil, nil, context.Canceled // read again
	}
	i.mu.Lock()
	i.tx = tx
	i.mu.Unlock()
	return batch, tx, nil
}

func (i *input) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case lost(err):
		return service.ErrNotConnected
	}
	return fmt.Errorf("query: %w", err)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func rows(ctx context.Context, tx pgx.Tx, query string) (service.MessageBatch, error) {
	found, err := tx.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	maps, err := pgx.CollectRows(found, pgx.RowToMap)
	if err != nil {
		return nil, err
	}
	batch := make(service.MessageBatch, 0, len(maps))
	for _, row := range maps {
		// By way of JSON, in which times, numbers and UUIDs have a form that mappings understand.
		text, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		batch = append(batch, service.NewMessage(text))
	}
	return batch, nil
}

func (i *input) settle(ctx context.Context, tx pgx.Tx, confirmation *pgx.Batch, failed error) error {
	i.mu.Lock()
	mine := i.tx == tx
	if mine {
		i.tx = nil
	}
	i.mu.Unlock()
	if !mine {
		return nil // rolled back by a reconnect: the rows are read again
	}
	defer i.pass()
	if failed != nil {
		i.mu.Lock()
		i.idle = true
		i.mu.Unlock()
		return tx.Rollback(ctx)
	}
	if confirmation.Len() > 0 {
		if err := tx.SendBatch(ctx, confirmation).Close(); err != nil {
			return errors.Join(fmt.Errorf("acknowledge: %w", err), tx.Rollback(ctx))
		}
	}
	return tx.Commit(ctx)
}

// confirmation is what acknowledges a batch, made before processors change it.
func (i *input) confirmation(batch service.MessageBatch) (*pgx.Batch, error) {
	statements := &pgx.Batch{}
	if i.acknowledge == "" {
		return statements, nil
	}
	mapping := batch.BloblangExecutor(i.mapping)
	for n := range batch {
		args, err := arguments(mapping, n)
		if err != nil {
			return nil, err
		}
		statements.Queue(i.acknowledge, args...)
	}
	return statements, nil
}

// Close gives the rows back that were not settled.
func (i *input) Close(ctx context.Context) error {
	i.mu.Lock()
	pool, tx := i.pool, i.tx
	i.pool, i.tx = nil, nil
	i.mu.Unlock()
	if tx != nil {
		_ = tx.Rollback(ctx)
		i.pass()
	}
	if pool != nil {
		pool.Close()
	}
	return nil
}
