package agent

import (
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/hub"
)

// Config of an agent. Data is required, and either the commands or Engines.
type Config struct {
	// Data is the folder that holds everything: the database, secrets, logs. It is its owner's alone.
	Data    string
	Version string
	Logger  *slog.Logger
	// LogLevel, when given, follows the node-wide configuration.
	LogLevel *slog.LevelVar
	// Enrolment is used when the data folder has no identity yet, or one that was made with another token.
	Enrolment *Enrolment
	// SuperviseCommand and HostCommand are the programs, with their first arguments, that are this agent's hidden
	// sub-commands "supervise" and "stream-host".
	SuperviseCommand, HostCommand []string
	// Environment looks up variables with secrets; nil: there are none.
	Environment func(name string) (string, bool)
	// BaseEnvironment is what streams may see of the agent's environment.
	BaseEnvironment []string
	// Engines replace the ones that the program has.
	Engines map[hub.Engine]engine.Engine
	// Capabilities are told to the hub beside the names of the engines.
	Capabilities []string

	Timing  Timing
	Network Network
}

// Network is the timing of the connection to the hub. The zero value of a field takes the default.
type Network struct {
	// Heartbeat is the time between reports when nothing changes (15 s).
	Heartbeat time.Duration
	// Poll is how long one question for commands may wait (30 s).
	Poll time.Duration
	// RetryMin and RetryMax bound the delay after a failed request (2 s, 30 s); it doubles, and is drawn at random from
	// zero on, so that a thousand agents do not come back at one moment.
	RetryMin, RetryMax time.Duration
	// RefusedRetry is the delay after a refusal that only an operator can end (1 min).
	RefusedRetry time.Duration
	// Request bounds one request, beside what a poll waits (30 s).
	Request time.Duration
	// Drain bounds the stop of all streams when the agent ends (30 s).
	Drain time.Duration
}

func (n Network) withDefaults() Network {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&n.Heartbeat, hub.HeartbeatEvery)
	def(&n.Poll, 30*time.Second)
	def(&n.RetryMin, 2*time.Second)
	def(&n.RetryMax, 30*time.Second)
	def(&n.RefusedRetry, time.Minute)
	def(&n.Request, 30*time.Second)
	def(&n.Drain, 30*time.Second)
	return n
}

func (c *Config) prepare() error {
	if c.Data == "" {
		return errors.New("the agent needs a data folder")
	}
	if c.Engines == nil && (len(c.SuperviseCommand) == 0 || len(c.HostCommand) == 0) {
		return errors.New("the agent needs the commands of its sub-processes")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Network = c.Network.withDefaults()
	return nil
}

func (c *Config) database() string { return filepath.Join(c.Data, "agent.db") }
func (c *Config) secrets() string  { return filepath.Join(c.Data, "secrets") }
func (c *Config) logs() string     { return filepath.Join(c.Data, "logs") }

// socketName is in the data folder.
const socketName = "agent.sock"
