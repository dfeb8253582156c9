package agentapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// maxCommands of one answer; the next poll fetches the rest.
	maxCommands = 100
	// paceEvery is how often a poll looks whether it is its node's turn to be asked for a full report.
	paceEvery = time.Second
)

// registerCommands adds the poll as a plain handler: a thousand of them wait, and none should hold buffers.
func (s *service) registerCommands() {
	s.api.Handle(rest.Operation{
		Method: http.MethodGet, Path: Prefix + "/commands", ID: "poll-commands", Access: rest.Edit,
		Summary: "Wait for work", Tags: []string{"Commands"},
	}, http.HandlerFunc(s.pollCommands))
}

func (s *service) pollCommands(w http.ResponseWriter, r *http.Request) {
	wait, err := s.waitOf(r)
	if err != nil {
		s.api.Fail(w, r, err)
		return
	}
	out, err := s.commands(r.Context(), wait)
	if err != nil {
		s.api.Fail(w, r, err)
		return
	}
	body, err := json.Marshal(out)
	if err != nil {
		s.api.Fail(w, r, err)
		return
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body) // who has gone is sent the same again
}

// waitOf reads how long to wait: not at all when it is not said, and no longer than the server may.
func (s *service) waitOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 {
		return 0, rest.Invalid(rest.Cause{Field: "wait", Message: `must be a duration such as "30s"`})
	}
	return min(wait, s.MaxWait), nil
}

// commands answers as soon as there is something for the node, and without anything when the wait is over, another poll of
// the node has come, or the server wants to stop.
func (s *service) commands(ctx context.Context, wait time.Duration) (*protocol.Commands, error) {
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	c := sessionOf(ctx)
	// The poll is registered before the store is looked at: what is written in between wakes it.
	poll := s.Presence.Poll(c.Subject, c.NodeUID)
	defer poll.Close()
	out, owed, err := s.work(ctx, poll)
	if err != nil || wait == 0 || !idle(out) {
		return out, err
	}
	over := time.NewTimer(s.spread(wait))
	defer over.Stop()
	for {
		switch await(ctx, poll, over.C, owed) {
		case gone:
			return nil, context.Cause(ctx)
		case ended:
			return out, nil
		case paced:
			out.FullRequired = s.Presence.AskFull(c.Subject, c.NodeUID, owed)
		case woken:
			if poll.Replaced() {
				return out, nil
			}
			if out, owed, err = s.work(ctx, poll); err != nil {
				return nil, err
			}
		}
		if !idle(out) {
			return out, nil
		}
	}
}

func idle(c *protocol.Commands) bool {
	return len(c.Commands) == 0 && len(c.Requests) == 0 && !c.FullRequired
}

// work takes what there is for the node now. owed tells that it owes a full report and it is not its turn to be asked. It takes
// no transaction to find nothing, unless the poll was woken for work.
func (s *service) work(ctx context.Context, poll *presence.Poll) (out *protocol.Commands, owed bool, err error) {
	c := sessionOf(ctx)
	out = &protocol.Commands{Commands: []protocol.Command{}}
	due := poll.Expects()
	if !due {
		err = s.view(ctx, func(r store.Reader, n *hub.Node) (err error) {
			due, owed, err = s.Ledger.HasWork(r, n.Name, c.boot())
			return err
		})
		if err != nil {
			return nil, false, err
		}
	}
	if due {
		var commands []protocol.Command
		err = s.update(ctx, func(tx store.Tx, n *hub.Node) (err error) {
			commands, owed, err = s.Ledger.Dispatch(tx, n.Name, c.boot(), maxCommands)
			return err
		})
		if err != nil {
			return nil, false, err
		}
		out.Commands = poll.Deliver(commands)
		s.metrics.commands.Add(float64(len(out.Commands)))
	}
	out.Requests = poll.Requests()
	out.FullRequired = s.Presence.AskFull(c.Subject, c.NodeUID, owed)
	return out, owed && !out.FullRequired, nil
}

type event int

const (
	woken event = iota
	paced
	ended
	gone
)

// await waits for what may concern the poll.
func await(ctx context.Context, poll *presence.Poll, over <-chan time.Time, owed bool) event {
	var turn <-chan time.Time
	if owed {
		pace := time.NewTimer(paceEvery)
		defer pace.Stop()
		turn = pace.C
	}
	select {
	case <-poll.Wake():
		return woken
	case <-turn:
		return paced
	case <-over:
		return ended
	case <-rest.Draining(ctx):
		return ended
	case <-ctx.Done():
		return gone
	}
}
