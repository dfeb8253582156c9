package agentapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/api"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// waiting polls beside the test and answers when the hub holds the poll.
func (a *agent) waiting(ctx context.Context, wait time.Duration) <-chan result[*protocol.Commands] {
	a.w.t.Helper()
	ch := later(func() (*protocol.Commands, error) { return a.client.Commands(ctx, wait) })
	eventually(a.w.t, "the poll to be held", func() bool { return a.w.presence.Polls() > 0 })
	return ch
}

func TestAPollWakesOnAWrite(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	version := w.publish(content(1))
	ch := a.waiting(t.Context(), time.Hour) // no longer than the server allows; this test ends before
	i := w.declare(mutation("node-a", "orders", hub.Running, version))
	got := soon(t, "the poll's answer", ch)
	if got.err != nil || len(got.v.Commands) != 1 {
		t.Fatalf("%+v, %v", got.v, got.err)
	}
	c := got.v.Commands[0]
	want := protocol.Command{
		AttemptID: c.AttemptID, IntentID: i.ID, StreamID: "orders", Generation: 1, State: hub.Running, ConfigVersion: version, Digest: c.Digest,
		ExpiresAt: w.clock.Now().Add(hub.DispatchLease), ExpiresInMS: hub.DispatchLease.Milliseconds(),
	}
	if c != want || c.AttemptID == "" || c.Digest == "" {
		t.Errorf("%+v, not %+v", c, want)
	}
	if got := w.intent(i.ID).Attempt.State; got != hub.Dispatched {
		t.Errorf("the attempt is %s", got)
	}
}

func TestAPollWithoutWorkEndsWithNothing(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	updates := w.store.updates.Load()
	out, err := a.client.Commands(t.Context(), 20*time.Millisecond)
	if err != nil || out.Commands == nil || len(out.Commands) != 0 || out.FullRequired || out.Requests != nil {
		t.Errorf("%+v, %v", out, err)
	}
	if u := w.store.updates.Load(); u != updates {
		t.Errorf("%d transactions", u-updates)
	}
	if n := w.presence.Polls(); n != 0 {
		t.Errorf("%d polls are held", n)
	}
}

func TestThePollEndsWithItsClient(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	ctx, cancel := context.WithCancel(t.Context())
	ch := a.waiting(ctx, time.Hour)
	cancel()
	if got := soon(t, "the client's end", ch); !errors.Is(got.err, context.Canceled) {
		t.Errorf("%v", got.err)
	}
	eventually(t, "the poll to be let go", func() bool { return w.presence.Polls() == 0 })
}

func TestALaterPollReplacesAnEarlier(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	first := a.waiting(t.Context(), time.Hour)
	second := later(func() (*protocol.Commands, error) { return a.client.Commands(t.Context(), time.Hour) })
	if got := soon(t, "the first poll's end", first); got.err != nil || len(got.v.Commands) != 0 {
		t.Fatalf("%+v, %v", got.v, got.err)
	}
	w.declare(mutation("node-a", "orders", hub.Running, w.publish(content(1))))
	if got := soon(t, "the second poll's answer", second); got.err != nil || len(got.v.Commands) != 1 {
		t.Errorf("%+v, %v", got.v, got.err)
	}
}

func TestAPollOfABootThatEndedIsTold(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	old := a.waiting(t.Context(), time.Hour)
	next := a.clone()
	next.reboot("boot-2")
	if err := next.renew(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, soon(t, "the old poll's end", old).err, http.StatusConflict, protocol.CodeSessionSuperseded)
}

func TestWhatIsNotAcknowledgedIsSentAgain(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	i := w.declare(mutation("node-a", "orders", hub.Running, w.publish(content(1))))
	first := a.poll().Commands
	if len(first) != 1 {
		t.Fatalf("%+v", first)
	}
	if again := a.poll().Commands; len(again) != 0 {
		t.Fatalf("sent again at once: %+v", again)
	}
	w.clock.advance(hub.RedeliverAfter)
	again := a.poll().Commands
	if len(again) != 1 || again[0].AttemptID != first[0].AttemptID || again[0].ExpiresInMS >= first[0].ExpiresInMS {
		t.Fatalf("%+v after %+v", again, first)
	}
	if more := a.poll().Commands; len(more) != 0 {
		t.Fatalf("a node that does not answer is sent the same in a loop: %+v", more)
	}
	r := a.next(false)
	r.Attempts = []protocol.AttemptReport{{AttemptID: first[0].AttemptID, State: hub.Acknowledged}}
	a.send(r)
	w.clock.advance(hub.RedeliverAfter)
	if more := a.poll().Commands; len(more) != 0 {
		t.Errorf("sent again after it was acknowledged: %+v", more)
	}
	if got := w.intent(i.ID); got.Attempts != 1 || got.Attempt.State != hub.Acknowledged {
		t.Errorf("%+v", got)
	}
}

func TestARestartedServerSendsTheSameAttemptAgain(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	w.declare(mutation("node-a", "orders", hub.Running, w.publish(content(1))))
	first := a.poll().Commands
	w.restart()
	a.reconnect()
	w.clock.advance(hub.RedeliverAfter)
	if again := a.poll().Commands; len(again) != 1 || again[0].AttemptID != first[0].AttemptID {
		t.Errorf("%+v after %+v", again, first)
	}
}

func TestAfterALeaseRanOutAFullReportIsAskedForAndNothingIsSent(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	i := w.declare(mutation("node-a", "orders", hub.Running, w.publish(content(1))))
	a.poll()
	ch := a.waiting(t.Context(), time.Hour)
	w.clock.advance(hub.DispatchLease)
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.Advance(tx, i.ID)
		return err
	})
	w.presence.Wake("node-a")
	got := soon(t, "the poll's answer", ch)
	if got.err != nil || !got.v.FullRequired || len(got.v.Commands) != 0 {
		t.Fatalf("%+v, %v", got.v, got.err)
	}
	updates := w.store.updates.Load()
	if again := a.poll(); again.FullRequired || len(again.Commands) != 0 {
		t.Errorf("asked again at once, or sent blindly: %+v", again)
	}
	if u := w.store.updates.Load(); u != updates {
		t.Errorf("a poll that only owes a full report took %d transactions", u-updates)
	}
	w.clock.advance(5 * time.Second)
	if again := a.poll(); !again.FullRequired {
		t.Error("a full report that does not come is asked for again")
	}
	a.report(true) // the node does not know the stream: the command never came
	w.clock.advance(time.Minute)
	if again := a.poll().Commands; len(again) != 1 || again[0].IntentID != i.ID {
		t.Errorf("%+v", again)
	}
}

func TestManyNodesAreNotAskedForFullReportsAtOnce(t *testing.T) {
	w := newWorld(t)
	agents := []*agent{w.online("node-a"), w.online("node-b"), w.online("node-c")}
	w.restart()
	asked := func() (n int) {
		for _, a := range agents {
			if a.report(false).FullRequired {
				n++
			}
		}
		return n
	}
	for _, a := range agents {
		a.reconnect()
	}
	if n := asked(); n != 1 {
		t.Errorf("%d nodes were asked in one moment", n)
	}
	w.clock.advance(10 * time.Millisecond)
	if n := asked(); n != 1 {
		t.Errorf("%d nodes were asked in the next", n)
	}
}

func TestABadWaitIsRefused(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	for _, wait := range []string{"x", "-1s", "30"} {
		if status, body := w.raw("GET", "/agent/v1/commands?wait="+wait, w.tokenOf(a), ""); status != 400 || body["code"] != "bad_request" {
			t.Errorf("%s: %d %v", wait, status, body)
		}
	}
}

func TestHeldPollsDoNotHoldUpTheServersEnd(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() {
		stopped <- rest.Serve(ctx, l, w.handler, rest.Serving{Logger: w.config.Logger, Grace: patience})
	}()
	token := a.client.SessionToken()
	if a.client, err = protocol.New(protocol.Options{Server: "http://" + l.Addr().String(), Timeout: patience}); err != nil {
		t.Fatal(err)
	}
	defer a.client.Close()
	a.client.SetSessionToken(token)
	ch := a.waiting(t.Context(), time.Hour)
	stop()
	if got := soon(t, "the poll's answer", ch); got.err != nil || len(got.v.Commands) != 0 {
		t.Errorf("the poll ended with %+v, %v", got.v, got.err)
	}
	if err := soon(t, "the server's end", stopped); err != nil {
		t.Error(err)
	}
}

func TestLogsAreFetchedFromTheNode(t *testing.T) {
	w := newWorld(t)
	a, b := w.online("node-a"), w.online("node-b")
	var live api.Live = w.presence
	poll := a.waiting(t.Context(), time.Hour)
	logs := later(func() (protocol.LogAnswer, error) {
		return live.Logs(t.Context(), "node-a", "orders", api.LogQuery{After: 7, Limit: 10, Wait: time.Minute})
	})
	got := soon(t, "the request", poll)
	if got.err != nil || len(got.v.Requests) != 1 {
		t.Fatalf("%+v, %v", got.v, got.err)
	}
	q := got.v.Requests[0]
	if want := (protocol.Request{RequestID: q.RequestID, Kind: "logs", StreamID: "orders", After: 7, Limit: 10, WaitMS: 60_000}); q != want {
		t.Errorf("%+v", q)
	}
	answer := protocol.LogAnswer{Lines: []protocol.LogLine{{Time: w.clock.Now(), Source: "stdout", Text: "hello"}}, Next: 8}
	wantCode(t, b.client.AnswerRequest(t.Context(), q.RequestID, answer), http.StatusNotFound, protocol.CodeNotFound)
	wantCode(t, a.client.AnswerRequest(t.Context(), q.RequestID, protocol.LogAnswer{Next: -1}), http.StatusUnprocessableEntity, problem.CodeValidationFailed)
	if err := a.client.AnswerRequest(t.Context(), q.RequestID, answer); err != nil {
		t.Fatal(err)
	}
	if l := soon(t, "the log", logs); l.err != nil || len(l.v.Lines) != 1 || l.v.Lines[0].Text != "hello" || l.v.Next != 8 {
		t.Errorf("%+v, %v", l.v, l.err)
	}
	wantCode(t, a.client.AnswerRequest(t.Context(), q.RequestID, answer), http.StatusNotFound, protocol.CodeNotFound)
}

func TestLogsOfNodesThatCannotAnswer(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	if _, err := w.presence.Logs(t.Context(), "node-b", "orders", api.LogQuery{}); !errors.Is(err, api.ErrNodeUnavailable) {
		t.Errorf("an unknown node: %v", err)
	}
	poll := a.waiting(t.Context(), time.Hour)
	logs := later(func() (protocol.LogAnswer, error) {
		return w.presence.Logs(t.Context(), "node-a", "no", api.LogQuery{Wait: time.Minute})
	})
	id := soon(t, "the request", poll).v.Requests[0].RequestID
	if err := a.client.AnswerRequest(t.Context(), id, protocol.LogAnswer{Error: "there is no such stream"}); err != nil {
		t.Fatal(err)
	}
	if l := soon(t, "the refusal", logs); !errors.Is(l.err, api.ErrNoLog) {
		t.Errorf("an unknown stream: %v", l.err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	logs = later(func() (protocol.LogAnswer, error) {
		return w.presence.Logs(ctx, "node-a", "orders", api.LogQuery{Wait: time.Minute})
	})
	eventually(t, "the request", func() bool { return len(a.poll().Requests) == 1 })
	cancel() // who asked has gone
	if l := soon(t, "the end", logs); !errors.Is(l.err, context.Canceled) {
		t.Error(l.err)
	}

	w.clock.advance(hub.OfflineAfter)
	if _, err := w.presence.Logs(t.Context(), "node-a", "orders", api.LogQuery{}); !errors.Is(err, api.ErrNodeUnavailable) {
		t.Errorf("a silent node: %v", err)
	}
}

func TestQuestionsForANodeAreBounded(t *testing.T) {
	w := newWorld(t)
	w.online("node-a").poll()
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan error, 100)
	for range cap(refused) {
		go func() {
			_, err := w.presence.Logs(ctx, "node-a", "orders", api.LogQuery{Wait: time.Minute})
			refused <- err
		}()
	}
	for range cap(refused) - 32 {
		var p *rest.Problem
		if err := soon(t, "a refusal", refused); !errors.As(err, &p) || p.Status != http.StatusTooManyRequests {
			t.Error(err)
		}
	}
	cancel()
	for range 32 {
		if err := soon(t, "the end", refused); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestCommandsOfOneNodeComeTogether(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	version := w.publish(content(1))
	for i := range 130 {
		w.declare(mutation("node-a", fmt.Sprintf("s-%d", i), hub.Running, version))
	}
	if n, m := len(a.poll().Commands), len(a.poll().Commands); n != 100 || m != 30 {
		t.Errorf("%d and %d commands", n, m)
	}
}
