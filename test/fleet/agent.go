package fleet

import (
	"context"
	"crypto/ed25519"
	"errors"
	"math/rand/v2"
	"time"

	"freehold.dev/freehold/client/agentapi"
)

// agent speaks for a node, with the delays of the real one.
type agent struct {
	*node
	fleet   *Fleet
	client  *agentapi.Client
	key     ed25519.PrivateKey
	request agentapi.SessionRequest
}

// Delays of the real agent.
const (
	retryMin = 2 * time.Second
	retryMax = 30 * time.Second
	pollWait = 30 * time.Second
)

func (a *agent) reportLoop(ctx context.Context) {
	failures := 0
	beat := time.Now().Add(a.spread())
	for ctx.Err() == nil {
		due := !time.Now().Before(beat)
		if !due && !a.dirty() {
			a.awaitNews(ctx, beat)
			continue
		}
		if err := a.tellHub(ctx); err != nil {
			pause(ctx, backoff(failures))
			failures++
			continue
		}
		failures = 0
		if due {
			beat = time.Now().Add(a.spread())
		}
	}
}

func (a *agent) spread() time.Duration {
	return time.Duration(float64(a.fleet.options.Heartbeat) * (0.9 + 0.2*rand.Float64()))
}

func (a *agent) awaitNews(ctx context.Context, beat time.Time) {
	t := time.NewTimer(time.Until(beat))
	defer t.Stop()
	select {
	case <-a.wake:
	case <-t.C:
	case <-ctx.Done():
	}
}

func (a *agent) tellHub(ctx context.Context) error {
	r := a.report()
	answer, err := a.client.Report(ctx, r)
	var refused *agentapi.Error
	switch {
	case err == nil:
		a.taken(&r, answer.FullRequired)
	case agentapi.HasCode(err, agentapi.CodeStaleReport) && errors.As(err, &refused):
		a.lost(&r, refused.Cursor().ReportSeq, false)
		return nil // the next has a higher number
	default:
		a.lost(&r, 0, agentapi.HasCode(err, agentapi.CodeFullReportRequired))
		a.renew(ctx, err)
	}
	return err
}

// renew gets another session when that is what is missing.
func (a *agent) renew(ctx context.Context, err error) {
	if agentapi.HasCode(err, agentapi.CodeSessionExpired, agentapi.CodeUnauthorized) {
		_, err = a.client.Session(ctx, a.request, a.key)
	}
	var refused *agentapi.Error
	if errors.As(err, &refused) && refused.Status < 500 && !agentapi.HasCode(err, agentapi.CodeFullReportRequired) {
		a.fleet.fault("%s was refused: %s: %s", a.request.NodeID, refused.Code, refused.Message)
	}
}

func (a *agent) pollLoop(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		polls := a.fleet.polls(ctx)
		if polls == nil {
			return
		}
		got, err := a.client.Commands(polls, pollWait)
		switch {
		case err == nil:
			failures = 0
			a.take(ctx, got)
		case polls.Err() != nil:
		default:
			a.renew(ctx, err)
			pause(ctx, backoff(failures))
			failures++
		}
	}
}

// take takes commands over, and waits until the hub was told.
func (a *agent) take(ctx context.Context, got *agentapi.Commands) {
	told := a.next()
	news := a.accept(got.Commands)
	if got.FullRequired {
		a.requireFull()
	}
	if !news && !got.FullRequired {
		return
	}
	select {
	case <-told:
	case <-ctx.Done():
	}
}

// backoff is drawn from a range that doubles with each failure.
func backoff(failures int) time.Duration {
	return time.Duration(rand.Float64() * float64(min(retryMin<<min(failures, 8), retryMax)))
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
