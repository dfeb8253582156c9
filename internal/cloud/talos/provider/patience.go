package provider

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	firstPause = 25 * time.Millisecond
	longPause  = time.Second
	// sureAfter is how often in a row a machine must say the same before it is believed.
	sureAfter = 3
)

// final stops the attempts: waiting longer changes nothing.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// errForeign: the machine answers to another cluster.
var errForeign = errors.New("the machine is configured already, by another cluster")

// errMaintenance: the machine has no configuration yet, and what was asked needs one.
var errMaintenance = errors.New("the machine is in maintenance mode: it has no configuration yet")

// errUnconfigured: the machine is in maintenance mode, and will stay there.
var errUnconfigured = errors.New("the machine was not configured")

// unconfigured remembers the machines whose configuration was not applied, so that nothing that needs it waits for the
// whole of its time: what bootstraps a cluster need not depend on the configurations of all its machines.
type unconfigured struct{ machines sync.Map }

func (u *unconfigured) key(m *machine) [2]string { return [2]string{m.address, string(m.creds.ca)} }

func (u *unconfigured) set(m *machine, failed bool) {
	if failed {
		u.machines.Store(u.key(m), true)
		return
	}
	u.machines.Delete(u.key(m))
}

func (u *unconfigured) has(m *machine) bool {
	_, ok := u.machines.Load(u.key(m))
	return ok
}

// gaveUpError: the deadline passed.
type gaveUpError struct {
	after    time.Duration
	attempts int
	last     error
}

func (g *gaveUpError) Error() string {
	return "gave up after " + g.after.String() + ": " + g.last.Error()
}
func (g *gaveUpError) Unwrap() error { return g.last }

// interrupted: the run was stopped.
type interrupted struct{ last error }

func (i *interrupted) Error() string { return "interrupted" }
func (i *interrupted) Unwrap() error { return i.last }

// attempts repeats attempt until it succeeds, fails finally, the time is over or the run is stopped.
func attempts(ctx context.Context, limit time.Duration, attempt func(context.Context) error) error {
	started := time.Now()
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := errors.New("nothing was tried")
	for n, pause := 1, firstPause; ; n++ {
		err := attempt(bounded)
		var stop final
		switch {
		case err == nil:
			return nil
		case errors.As(err, &stop):
			return stop.error
		case ctx.Err() != nil:
			return &interrupted{last: last}
		case bounded.Err() == nil || n == 1:
			// What an attempt says that the deadline cut short hides what the ones before it said.
			last = err
		}
		timer := time.NewTimer(pause + rand.N(pause/4+1))
		select {
		case <-bounded.Done():
			timer.Stop()
			if ctx.Err() != nil {
				return &interrupted{last: last}
			}
			return &gaveUpError{after: time.Since(started).Round(time.Second / 10), attempts: n, last: last}
		case <-timer.C:
		}
		pause = min(pause*8/5, longPause)
	}
}

// repeats believes a machine that says the same several times in a row.
type repeats struct {
	said  string
	times int
}

// judge makes an answer final when it is one that waiting does not change, or when it has been given often enough.
func (r *repeats) judge(err error) error {
	if err == nil {
		return nil
	}
	code := status.Code(err)
	switch {
	case errors.Is(err, errForeign), errors.Is(err, errUnconfigured):
	case code == codes.InvalidArgument:
		return final{err}
	case code == codes.Unknown, code == codes.Internal, code == codes.PermissionDenied, code == codes.Unauthenticated, code == codes.Unimplemented:
		if _, isStatus := status.FromError(err); !isStatus {
			r.times = 0
			return err
		}
	default:
		r.times = 0
		return err
	}
	if r.said != err.Error() {
		r.said, r.times = err.Error(), 0
	}
	if r.times++; r.times >= sureAfter {
		return final{err}
	}
	return err
}
