package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

// refresh is how often a followed operation is read when no change of its stream says that it should be.
const refresh = time.Second

// converger keeps a convergence up to date and on screen.
type converger struct {
	h    client.Hub
	p    *convergence
	out  *live
	now  func() time.Time
	poke chan struct{}
}

// converge shows, on the error output, how what was accepted comes true. It fails when it cannot, or not in time.
func (a *app) converge(ctx context.Context, h client.Hub, what string, asked *client.StreamAccepted, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &timeoutError{timeout})
	defer cancel()
	p := newConvergence(what, asked, a.Now())
	f := &converger{h: h, p: p, out: newLive(a.err, a.Getenv), now: a.Now, poke: make(chan struct{}, 1)}
	err := f.run(ctx)
	var late *timeoutError
	switch {
	case errors.Is(err, context.Canceled):
		a.notef("\nThe server goes on without you. To look again:\n  freehold operation show %s\n", asked.IntentID)
	case errors.As(err, &late):
		return fmt.Errorf("%s: %w: %s", what, err, p.why())
	}
	return err
}

func (f *converger) run(ctx context.Context) error {
	updates, stop := observe(ctx, f.watchStream, f.readOperation)
	defer stop()
	defer f.out.keep()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			f.out.draw(f.p.lines(f.out, f.now()))
			continue
		case u := <-updates:
			if u.err != nil {
				return u.err
			}
			for _, n := range u.apply(f.now()) {
				f.out.tell(n, f.now().Sub(f.p.started))
			}
		}
		if done, err := f.p.ended(); done {
			f.out.draw(f.p.lines(f.out, f.now()))
			return err
		}
	}
}

func (f *converger) watchStream(ctx context.Context, send func(observation)) {
	o := client.StreamWatch{Node: f.p.asked.NodeID, Stream: first(f.p.asked.StreamID, hub.NodeConfig), OnRetry: lost(send)}
	for e, err := range f.h.Watch(ctx, o) {
		if err != nil {
			send(observation{err: err})
			return
		}
		if e.Type == client.Added || e.Type == client.Modified {
			send(observation{apply: func(time.Time) []note { return f.p.sawStream(&e.Object) }})
		}
		select {
		case f.poke <- struct{}{}:
		default: // it is about to be read anyway
		}
	}
}

// readOperation reads the operation whenever its stream changes, and once in a while.
func (f *converger) readOperation(ctx context.Context, send func(observation)) {
	every := time.NewTicker(refresh)
	defer every.Stop()
	unread := lost(send)
	for {
		o, err := f.h.Operation(ctx, f.p.asked.IntentID)
		switch {
		case err == nil:
			send(observation{apply: func(time.Time) []note { return f.p.sawOperation(o) }})
		case mayRecover(err):
			unread(err)
		case ctx.Err() == nil:
			send(observation{err: err})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-f.poke:
		case <-every.C:
		}
	}
}
