// Package apply makes configurations true through OpenTofu: it keeps each tenant's state, key and run records in the
// store, starts runs and finds them again after a restart, and reads tenants' secrets and machines back from the
// state. What is to be applied is decided elsewhere.
//
// Everything that belongs to a tenant is kept under its UID. A tenant that is made again under an old name inherits
// nothing.
package apply

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
)

var (
	// ErrRunning means that a run of this tenant is alive, or has ended and was not settled yet.
	ErrRunning = errors.New("a run of this tenant is going on")
	// ErrSaturated means that as many runs as may be are going on. The tenant is woken when there is room.
	ErrSaturated = errors.New("too many runs are going on")
	// ErrNoSecrets means that no apply has made this tenant's secrets yet. It wraps store.ErrNotFound.
	ErrNoSecrets = fmt.Errorf("the tenant has no secrets yet, its first apply makes them: %w", store.ErrNotFound)
	// ErrDatabaseLost means that runs were made here which the database does not know.
	ErrDatabaseLost = errors.New("the database is another one than before")
	// ErrStateConflict means that a state is older than the stored one, or of another lineage.
	ErrStateConflict = errors.New("the state is not a successor of the stored one")
)

// Config of a Service. Store, Folder, Root, Tofu and Self are required.
type Config struct {
	Store store.Store
	// Folder holds the tenants' working folders; it belongs to the service alone (mode 0700).
	Folder string
	// Root wraps the tenants' passphrases.
	Root *secrets.Root
	Tofu tofu.Binary
	// Self is the command that runs [tofu.RunMain]: this program and its hidden subcommand.
	Self   []string
	Logger *slog.Logger
	// Wake is called with the name of a tenant that has something new: its run ended, or there is room for one.
	Wake func(tenant string)
	// Deadline of one run; default 30 min. Grace that it then has to save its state; default 1 min.
	Deadline, Grace time.Duration
	// MaxParallel runs at once; default twice the cores, at least 8: a run mostly waits for machines.
	MaxParallel int
	// BackoffMin and BackoffMax bound the delay after a failed run; defaults 10 s and 5 min.
	BackoffMin, BackoffMax time.Duration
	// KeepStates and KeepRuns bound what is kept of each tenant; defaults 50 state versions and 10 run folders.
	KeepStates, KeepRuns int
	Now                  func() time.Time
}

func (c *Config) complete() error {
	switch {
	case c.Store == nil:
		return errors.New("apply: a store is required")
	case c.Folder == "" || c.Root == nil:
		return errors.New("apply: a folder and a root secret are required")
	case c.Tofu.Path == "":
		return errors.New("apply: an OpenTofu program is required")
	case len(c.Self) == 0:
		return errors.New("apply: the command of the supervisor is required")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Wake == nil {
		c.Wake = func(string) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Deadline = orElse(c.Deadline, 30*time.Minute)
	c.Grace = orElse(c.Grace, time.Minute)
	c.BackoffMin = orElse(c.BackoffMin, 10*time.Second)
	c.BackoffMax = orElse(c.BackoffMax, 5*time.Minute)
	c.MaxParallel = orElse(c.MaxParallel, max(8, 2*runtime.NumCPU()))
	c.KeepStates = orElse(c.KeepStates, 50)
	c.KeepRuns = orElse(c.KeepRuns, 10)
	return nil
}

func orElse[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}
