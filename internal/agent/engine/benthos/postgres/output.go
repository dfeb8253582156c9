package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redpanda-data/benthos/v4/public/bloblang"
	"github.com/redpanda-data/benthos/v4/public/service"
)

func outputSpec() *service.ConfigSpec {
	return service.NewConfigSpec().Categories("Services").
		Summary("Runs a statement for each message, each batch in one transaction.").
		Description("A batch that the database refuses is tried message by message, so that only those at fault are refused. " +
			"Delivery is at least once: a statement such as INSERT … ON CONFLICT DO NOTHING makes repetitions harmless.").
		Field(dsnField()).
		Field(service.NewStringField("query").Example("INSERT INTO orders (id, amount) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING")).
		Field(mappingField()).
		Field(service.NewStringField("init_statement").Default("").
			Description("Runs on each connect, such as CREATE TABLE IF NOT EXISTS.")).
		Field(service.NewOutputMaxInFlightField()).
		Field(service.NewBatchPolicyField("batching"))
}

type output struct {
	dsn, query, init string
	mapping          *bloblang.Executor
	connections      int

	mu   sync.RWMutex
	pool *pgxpool.Pool
}

func newOutput(c *service.ParsedConfig, _ *service.Resources) (service.BatchOutput, service.BatchPolicy, int, error) {
	o := &output{}
	var errs [7]error
	var policy service.BatchPolicy
	o.dsn, errs[0] = c.FieldString("dsn")
	o.query, errs[1] = c.FieldString("query")
	o.init, errs[2] = c.FieldString("init_statement")
	o.mapping, errs[3] = c.FieldBloblang("args_mapping")
	o.connections, errs[4] = c.FieldMaxInFlight()
	policy, errs[5] = c.FieldBatchPolicy("batching")
	errs[6] = checkDSN(o.dsn)
	return o, policy, o.connections, errors.Join(errs[:]...)
}

func (o *output) Connect(ctx context.Context) error {
	_ = o.Close(ctx)
	pool, err := open(ctx, o.dsn, o.connections)
	if err != nil {
		return err
	}
	if o.init != "" {
		if _, err := pool.Exec(ctx, o.init); err != nil {
			pool.Close()
			return fmt.Errorf("init_statement: %w", err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pool = pool
	return nil
}

func (o *output) WriteBatch(ctx context.Context, batch service.MessageBatch) error {
	o.mu.RLock()
	pool := o.pool
	o.mu.RUnlock()
	if pool == nil {
		return service.ErrNotConnected
	}
	args := make([][]any, len(batch))
	var faulty *service.BatchError
	fault := func(i int, err error) {
		if faulty == nil {
			faulty = service.NewBatchError(batch, err)
		}
		faulty = faulty.Failed(i, err)
	}
	mapping := batch.BloblangExecutor(o.mapping)
	for i := range batch {
		var err error
		if args[i], err = arguments(mapping, i); err != nil {
			fault(i, err)
		}
	}
	if faulty == nil {
		switch err := o.write(ctx, pool, args...); {
		case err == nil:
			return nil
		case lost(err):
			return service.ErrNotConnected
		case len(batch) == 1:
			return err
		}
	}
	for i := range batch {
		if args[i] == nil {
			continue
		}
		if err := o.write(ctx, pool, args[i]); err != nil {
			if lost(err) {
				return service.ErrNotConnected
			}
			fault(i, err)
		}
	}
	if faulty != nil {
		return faulty
	}
	return nil
}

// write runs the statement for each set of arguments, in one transaction.
func (o *output) write(ctx context.Context, pool *pgxpool.Pool, args ...[]any) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		for _, a := range args {
			batch.Queue(o.query, a...)
		}
		return tx.SendBatch(ctx, &batch).Close()
	})
}

func (o *output) Close(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pool != nil {
		o.pool.Close()
		o.pool = nil
	}
	return nil
}
