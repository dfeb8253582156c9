package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

// What a tenant is followed to.
const (
	activeTenant = "active" // its phase
	readyTenant  = "ready"  // the boolean of its status, and active
	goneTenant   = "delete"
)

// waitForTenant follows a tenant within a time.
func (a *app) waitForTenant(ctx context.Context, c *client.Client, name, goal string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &timeoutError{timeout})
	defer cancel()
	return a.followTenant(ctx, c, name, goal)
}

// followTenant shows a tenant's progress on the error output until it reached the goal.
func (a *app) followTenant(ctx context.Context, c *client.Client, name, goal string) error {
	p := newProgress(name, a.Now())
	err := (&follower{c: c, p: p, out: newLive(a.err, a.Getenv), now: a.Now}).run(ctx, goal)
	if errors.Is(err, context.Canceled) && !a.brief {
		a.notef("\nThe server goes on without you. To look again:\n  freehold wait tenant/%s --for=%s\n", name, goal)
	}
	var late *timeoutError
	if errors.As(err, &late) && p.tenant != nil {
		return fmt.Errorf("%w: %s", err, p.why())
	}
	return err
}

// why tells what a tenant that did not get there was waiting for.
func (p *progress) why() string {
	s := p.tenant.Status
	text := fmt.Sprintf("it is %s, with %d of %d machines healthy", s.Phase, s.Machines.Healthy, s.Machines.Total)
	for _, t := range troubles(s.Conditions, true) {
		text += "; " + t
	}
	return text
}

// follower keeps a progress up to date and on screen.
type follower struct {
	c   *client.Client
	p   *progress
	out *live
	now func() time.Time
}

// observation is something that was observed, or why no more can be.
type observation struct {
	apply func(now time.Time) []note
	err   error
}

// source tells what it observes until its context ends.
type source func(ctx context.Context, send func(observation))

// observe runs sources until stop is called, which waits for their end.
func observe(ctx context.Context, sources ...source) (updates <-chan observation, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ch := make(chan observation)
	var running sync.WaitGroup
	for _, s := range sources {
		running.Go(func() {
			s(ctx, func(u observation) {
				select {
				case ch <- u:
				case <-ctx.Done():
				}
			})
		})
	}
	return ch, func() { cancel(); running.Wait() }
}

// run shows the progress until the goal is reached or ctx ends.
func (f *follower) run(ctx context.Context, goal string) error {
	sources := []source{f.watchTenant, f.watchMachines, f.pollApplies}
	if goal != goneTenant {
		sources = append(sources, f.watchGroups)
	}
	updates, stop := observe(ctx, sources...)
	defer stop()
	return f.loop(ctx, goal, updates)
}

func (f *follower) loop(ctx context.Context, goal string, updates <-chan observation) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	defer f.out.keep()
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
				f.tell(n)
			}
		}
		if f.reached(goal) {
			f.settle(ctx, updates)
			f.out.draw(f.p.lines(f.out, f.now()))
			return nil
		}
		if f.p.gone {
			return fmt.Errorf("tenant %s was deleted meanwhile", f.p.name)
		}
	}
}

func (f *follower) reached(goal string) bool {
	t := f.p.tenant
	if goal == goneTenant || t == nil || f.p.gone {
		return goal == goneTenant && f.p.gone
	}
	return t.Status.Phase == cloud.PhaseActive && (goal == activeTenant || t.Status.Ready) && f.p.groups.uptodate()
}

// settle takes in for a moment what belongs to the goal but comes by other ways: the machines' own last changes, and
// the end of the apply.
func (f *follower) settle(ctx context.Context, updates <-chan observation) {
	late := time.NewTimer(time.Second)
	defer late.Stop()
	for !f.settled() {
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			return
		case u := <-updates:
			if u.err != nil {
				return
			}
			for _, n := range u.apply(f.now()) {
				f.tell(n)
			}
		}
	}
}

func (f *follower) settled() bool {
	if f.p.gone {
		return true
	}
	for _, m := range f.p.machines {
		if !m.ready {
			return false
		}
	}
	return f.p.apply == nil || f.p.apply.Result != client.ApplyRunning
}

func (f *follower) tell(n note) { f.out.tell(n, f.now().Sub(f.p.started)) }

// tell prints a note, with the time that passed; on a terminal, where the rest is seen in the area, important ones only.
func (l *live) tell(n note, after time.Duration) {
	switch {
	case !l.isTerminal():
		l.say(fmt.Sprintf("%7s  %s", seconds(after), n.text))
	case n.important:
		l.say(l.paint(red, n.text))
	}
}

// lost tells once, as an observation, that a connection was lost.
func lost(send func(observation)) func(error) {
	told := ""
	return func(err error) {
		if text := err.Error(); text != told {
			told = text
			send(observation{apply: func(time.Time) []note { return []note{{"! " + text + "; trying again", true}} }})
		}
	}
}

func (f *follower) watchTenant(ctx context.Context, send func(observation)) {
	for e, err := range client.Tenants(f.c).Watch(ctx, client.WatchOptions{Name: f.p.name, OnRetry: lost(send)}) {
		if err != nil {
			send(observation{err: err})
			return
		}
		t := &e.Object
		switch e.Type {
		case client.Bookmark:
			continue
		case client.Deleted:
			t = nil
		}
		send(observation{apply: func(now time.Time) []note { return f.p.sawTenant(t, now) }})
	}
}

// watchGroups follows what is declared of node groups: a tenant's status may be that of before it.
func (f *follower) watchGroups(ctx context.Context, send func(observation)) {
	for e, err := range client.NodeGroups(f.c, f.p.name).Watch(ctx, client.WatchOptions{}) {
		if err != nil {
			// A tenant that is gone has no groups, which its own watch tells.
			if ctx.Err() == nil && !client.IsNotFound(err) {
				send(observation{err: err})
			}
			return
		}
		send(observation{apply: func(time.Time) []note { f.p.groups.saw(e); return nil }})
	}
}

func (f *follower) watchMachines(ctx context.Context, send func(observation)) {
	for e, err := range client.Machines(f.c).Watch(ctx, client.WatchOptions{Selector: cloud.LabelTenant + "=" + f.p.name}) {
		if err != nil {
			if ctx.Err() == nil {
				send(observation{err: err})
			}
			return
		}
		m := &e.Object
		switch e.Type {
		case client.Bookmark:
		case client.Deleted:
			send(observation{apply: func(now time.Time) []note { return f.p.lostMachine(m.Metadata.Name, now) }})
		default:
			send(observation{apply: func(now time.Time) []note { return f.p.sawMachine(m, now) }})
		}
	}
}

// pollApplies shows applies where they can be had; without them the rest is shown all the same.
func (f *follower) pollApplies(ctx context.Context, send func(observation)) {
	t := time.NewTicker(400 * time.Millisecond)
	defer t.Stop()
	for {
		if list, err := f.c.Applies(ctx, f.p.name, 1); err == nil && len(list) > 0 {
			send(observation{apply: func(time.Time) []note { return f.p.sawApply(&list[0]) }})
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
