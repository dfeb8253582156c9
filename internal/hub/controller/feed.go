package controller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Pauses before a watch that failed is tried again.
const (
	rewatchMin = 100 * time.Millisecond
	rewatchMax = 10 * time.Second
)

// feed follows the intents that are not through. It wakes the poll of a node as soon as there is something to send to it,
// and counts how intents and attempts end. What it misses while a watch fails, the polls find by themselves.
type feed struct {
	Config
	metrics *metrics
}

// Run follows the intents until ctx ends (nil) or the store is closed.
func (p *Plane) Run(ctx context.Context) error { return p.feed.run(ctx) }

func (f *feed) run(ctx context.Context) error {
	var revision int64
	pause := rewatchMin
	for ctx.Err() == nil {
		next, err := f.follow(ctx, revision)
		if next > revision {
			pause = rewatchMin
		}
		revision = next
		switch {
		case ctx.Err() != nil:
			continue
		case errors.Is(err, store.ErrClosed):
			return err
		case errors.Is(err, store.ErrCompacted):
			revision = 0
			continue
		}
		f.Logger.WarnContext(ctx, "the watch of operations failed; it will be resumed", slog.Any("error", err), slog.Duration("after", pause))
		retry := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			retry.Stop()
		case <-retry.C:
		}
		pause = min(2*pause, rewatchMax)
	}
	return nil
}

func (f *feed) follow(ctx context.Context, revision int64) (int64, error) {
	w, err := f.Store.Watch(ctx, revision, openOperations())
	if err != nil {
		return revision, err
	}
	defer w.Close()
	for {
		b, err := w.Next(ctx)
		if err != nil {
			return revision, err
		}
		if b.Initial {
			f.metrics.begin()
		}
		for _, e := range b.Events {
			f.event(e)
		}
		revision = b.Revision
	}
}

// event looks at the labels first: most changes of an intent need no more.
func (f *feed) event(e store.Event) {
	l := e.Object.Labels
	switch {
	case e.Type == store.Deleted:
		f.metrics.ended(e.Object)
	case l[hub.LabelState] == string(hub.Accepted):
		f.metrics.open(e.Object)
		f.Presence.Wake(l[hub.LabelOpen])
	default:
		f.metrics.open(e.Object)
	}
}
