//go:build deps

// Package deps pins modules while the code that uses them is being written.
package deps

import (
	_ "github.com/jackc/pgx/v5"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/redpanda-data/benthos/v4/public/components/io"
	_ "github.com/redpanda-data/benthos/v4/public/components/pure"
	_ "github.com/redpanda-data/benthos/v4/public/service"
)
