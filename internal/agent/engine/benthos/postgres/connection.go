// Package postgres has the Benthos input and output postgres.
package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redpanda-data/benthos/v4/public/service"
)

// Register adds the input and the output to an environment.
func Register(env *service.Environment) error {
	return errors.Join(
		env.RegisterBatchInput("postgres", inputSpec(), newInput),
		env.RegisterBatchOutput("postgres", outputSpec(), newOutput),
	)
}

func dsnField() *service.ConfigField {
	return service.NewStringField("dsn").Secret().Description("How to reach the database, as a URL or as key=value pairs.").
		Example("postgres://user:${secret:password}@127.0.0.1:5432/orders")
}

func mappingField() *service.ConfigField {
	return service.NewBloblangField("args_mapping").Description("A mapping to an array with a value for each placeholder.").
		Example("root = [ this.id, this.amount ]")
}

func open(ctx context.Context, dsn string, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, redacted(err)
	}
	config.MaxConns = int32(max(1, min(connections, 64)))
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return pool, nil
}

// checkDSN reads it without connecting.
func checkDSN(dsn string) error {
	_, err := pgxpool.ParseConfig(dsn)
	return redacted(err)
}

// redacted keeps the text of a DSN, which may hold a password, out of the log.
func redacted(err error) error {
	if err == nil {
		return nil
	}
	return errors.New("dsn is malformed: postgres://user:password@host:port/database is expected")
}

// lost tells whether an error means that the database cannot be reached, rather than that it said no.
func lost(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		// 08: connection exception; 57P: the server shuts down or starts.
		return strings.HasPrefix(refused.Code, "08") || strings.HasPrefix(refused.Code, "57P")
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "unexpected EOF")
}

// arguments runs a mapping that has to give an array, on a message of a batch.
func arguments(mapping *service.MessageBatchBloblangExecutor, i int) ([]any, error) {
	result, err := mapping.Query(i)
	if err != nil {
		return nil, fmt.Errorf("args_mapping: %w", err)
	}
	if result == nil {
		return nil, errors.New("args_mapping deleted its root: it has to give an array")
	}
	value, err := result.AsStructuredMut()
	if err != nil {
		return nil, fmt.Errorf("args_mapping: %w", err)
	}
	args, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("args_mapping gave %T, not an array", value)
	}
	for n, arg := range args {
		args[n] = argument(arg)
	}
	return args, nil
}

// argument is what the driver understands of a mapping's value.
func argument(value any) any {
	number, ok := value.(json.Number)
	if !ok {
		return value
	}
	if n, err := number.Int64(); err == nil {
		return n
	}
	if f, err := number.Float64(); err == nil {
		return f
	}
	return number.String()
}
