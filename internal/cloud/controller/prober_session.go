package controller

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
)

// session is what the prober keeps of one machine between probes. Only one probe of a machine runs at once; its
// watch touches the link's flags alone.
type session struct {
	identity identity
	link     *link
	// seen is the last complete observation, made at fullAt, over the present link.
	seen   *machineapi.Observation
	fullAt time.Time
	// unreadySince is when the machine was first seen configured and not ready.
	unreadySince time.Time
	// changed is when the machine's status was last written.
	changed time.Time
	// revision is the machine's when the last probe was recorded, due when the next is.
	revision int64
	due      time.Time
}

// link is a connection to a machine, with its watch.
type link struct {
	client *machineapi.Client
	cancel context.CancelFunc
	// stale: the watch saw a change. broken: the watch ended.
	stale, broken atomic.Bool
}

func (s *session) disturbed() bool {
	return s.link != nil && (s.link.stale.Load() || s.link.broken.Load())
}

func (s *session) disconnect() {
	if s.link != nil {
		s.link.cancel()
		s.link.client.Close()
		s.link = nil
	}
	s.seen = nil
}

func (s *session) unreadyFor(now time.Time) time.Duration {
	if s.unreadySince.IsZero() {
		return 0
	}
	return now.Sub(s.unreadySince)
}

// note keeps track of how long the machine has been configured without being ready.
func (s *session) note(st machineapi.Status, now time.Time) {
	switch {
	case st.Ready || st.Maintenance:
		s.unreadySince = time.Time{}
	case s.unreadySince.IsZero():
		s.unreadySince = now
	}
}

// session answers the machine's session, made anew if it is another machine than before.
func (p *Prober) session(m *cloud.Machine) *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := identityOf(m)
	s := p.sessions[m.Name]
	if s == nil || s.identity != id {
		if s != nil {
			s.disconnect()
		}
		s = &session{identity: id}
		p.sessions[m.Name] = s
	}
	return s
}

func (p *Prober) forget(name string) {
	p.mu.Lock()
	s := p.sessions[name]
	delete(p.sessions, name)
	p.mu.Unlock()
	if s != nil {
		s.disconnect()
	}
}

// probe asks the machine over the link that there is, or else over a new one.
func (p *Prober) probe(ctx context.Context, m *cloud.Machine, s *session) outcome {
	if s.link != nil && !s.link.broken.Load() {
		if out := p.ask(ctx, m, s); out.err == nil {
			return out
		}
		// A link breaks with every reboot and with the end of maintenance mode: only a new one tells.
	}
	s.disconnect()
	client, err := p.connect(ctx, m)
	switch {
	case errors.Is(err, errLocked):
		return outcome{locked: true}
	case err != nil:
		return outcome{err: err}
	}
	p.watch(ctx, m.Name, s, client)
	out := p.ask(ctx, m, s)
	if out.err != nil {
		s.disconnect()
	}
	return out
}

// ask observes the machine completely if there is a reason to, and its status alone otherwise.
func (p *Prober) ask(ctx context.Context, m *cloud.Machine, s *session) outcome {
	full := s.link.stale.Swap(false) || s.seen == nil || time.Since(s.fullAt) >= p.cfg.FullInterval
	if !full {
		st, err := s.link.client.Status(ctx)
		if err != nil {
			return outcome{err: err}
		}
		if st.Stage == s.seen.Stage && st.Ready == s.seen.Ready && st.Maintenance == s.seen.Maintenance {
			s.seen.Status = st
			s.note(st, time.Now())
			return p.outcomeOf(ctx, m, s)
		}
	}
	o, err := s.link.client.Observe(ctx)
	if err != nil {
		s.link.stale.Store(true)
		return outcome{err: err}
	}
	s.seen, s.fullAt = &o, time.Now()
	s.note(o.Status, s.fullAt)
	return p.outcomeOf(ctx, m, s)
}

func (p *Prober) outcomeOf(ctx context.Context, m *cloud.Machine, s *session) outcome {
	out := outcome{seen: s.seen}
	if s.seen.ConfigDigest == "" {
		return out
	}
	wanted, err := p.cfg.Credentials.configDigest(ctx, p.cfg.Store, m)
	if err != nil {
		p.cfg.Logger.Debug("what the machine's configuration should be is not known", "machine", m.Name, "error", err)
		out.upToDate = m.Status.ConfigUpToDate
		return out
	}
	out.upToDate = wanted == s.seen.ConfigDigest
	return out
}

// errLocked: the machine demands a certificate which cannot be made yet.
var errLocked = errors.New("the tenant's secrets are not known yet")

// connect finds out how the machine can be talked to, and answers a client that has had an answer.
func (p *Prober) connect(ctx context.Context, m *cloud.Machine) (*machineapi.Client, error) {
	address, tenant := m.Spec.ManagementAddress, m.Labels[cloud.LabelTenant]
	if address == "" {
		return nil, errors.New("its management address is not known yet")
	}
	secured := func() (*machineapi.Client, error) {
		c, err := p.cfg.Credentials.talos(ctx, tenant)
		if err != nil {
			p.cfg.Logger.Debug("no credentials for the machine", "machine", m.Name, "tenant", tenant, "error", err)
			return nil, errLocked
		}
		return answered(ctx, func() (*machineapi.Client, error) { return machineapi.DialSecured(address, c) })
	}
	maintenance := func() (*machineapi.Client, error) {
		return answered(ctx, func() (*machineapi.Client, error) { return machineapi.DialMaintenance(address) })
	}
	switch {
	case tenant == "":
		c, err := maintenance()
		if errors.Is(err, machineapi.ErrUnauthorized) {
			return nil, errors.New("it is configured already, and belongs to a cluster that is not managed here: reset it to use it (talosctl reset)")
		}
		return c, err
	case m.Status.Role != "" || p.cfg.Credentials.known(tenant) && !m.Status.Maintenance:
		// It was configured when it was seen last. If it does not know us, it may have been reset.
		c, err := secured()
		if !errors.Is(err, machineapi.ErrUnauthorized) {
			return c, err
		}
		if c, merr := maintenance(); merr == nil {
			return c, nil
		}
		return nil, err
	default:
		c, err := maintenance()
		if !errors.Is(err, machineapi.ErrUnauthorized) {
			return c, err
		}
		return secured()
	}
}

// answered makes a client and waits for its first answer.
func answered(ctx context.Context, dial func() (*machineapi.Client, error)) (*machineapi.Client, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	if _, err := c.Status(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// minWatch is how long a watch has to have lived for its end to be news.
const minWatch = time.Second

// watch makes the client the session's link and follows the machine's changes on it. It answers when the watch
// stands, so that whatever is asked afterwards is not older than what the watch tells.
func (p *Prober) watch(ctx context.Context, name string, s *session, client *machineapi.Client) {
	watchCtx, cancel := context.WithCancel(p.ctx)
	l := &link{client: client, cancel: cancel}
	s.link = l
	stands, ended := make(chan struct{}), make(chan struct{})
	p.watches.Go(func() {
		defer close(ended)
		start := time.Now()
		err := client.Watch(watchCtx, func() { close(stands) }, func() {
			l.stale.Store(true)
			p.cfg.Wake(name)
		})
		if watchCtx.Err() != nil {
			return
		}
		p.cfg.Logger.Debug("the watch of a machine ended", "machine", name, "error", err)
		if time.Since(start) >= minWatch {
			// The machine reboots, or is gone: look at once. A machine that cannot be watched is polled.
			l.broken.Store(true)
			p.cfg.Wake(name)
		}
	})
	select {
	case <-stands:
	case <-ended:
	case <-ctx.Done():
	}
}
