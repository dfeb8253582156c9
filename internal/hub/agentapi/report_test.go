package agentapi_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func TestAReportShowsWhatIs(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	version := w.publish(content(1))
	i := w.declare(mutation("node-a", "orders", hub.Running, version))
	c := a.poll().Commands[0]
	r := a.next(false, running("orders", i.Generation, version))
	r.Attempts = []protocol.AttemptReport{{AttemptID: c.AttemptID, State: hub.Succeeded}}
	answer := a.send(r)
	if answer.AcceptedSeq != r.ReportSeq || answer.FullRequired {
		t.Errorf("%+v", answer)
	}
	s := w.stream("node-a", "orders")
	if s.Status.Convergence.State != hub.InSync || s.Status.Observed.ConfigVersion != version {
		t.Errorf("%+v", s.Status)
	}
	if got := w.intent(i.ID).State; got != hub.Converged {
		t.Errorf("the intent is %s", got)
	}
}

func TestOldReportsAreRefusedWithTheCursor(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	late := a.next(false, running("late", 1, ""))
	a.report(false)
	newest := a.next(false)
	a.send(newest)
	for name, r := range map[string]protocol.Report{"delayed": late, "repeated": newest} {
		_, err := a.client.Report(t.Context(), r)
		e := wantCode(t, err, http.StatusConflict, protocol.CodeStaleReport)
		if e.Cursor() != (protocol.Cursor{BootSeq: 1, ReportSeq: newest.ReportSeq}) {
			t.Errorf("%s: the cursor is %+v", name, e.Cursor())
		}
	}
	err := w.store.View(t.Context(), func(r store.Reader) error {
		_, err := hub.Streams.Get(r, hub.StreamName("node-a", "late"))
		return err
	})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("what the delayed report said was stored: %v", err)
	}
	a.report(false)
}

func TestReportsInAnyOrderNeverTakeAnOlderStateForANewer(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	const n = 24
	reports := make([]protocol.Report, n)
	for i := range reports {
		reports[i] = a.next(false, running("orders", int64(i+1), ""))
	}
	var wg sync.WaitGroup
	for _, r := range reports {
		wg.Go(func() {
			if _, err := a.client.Report(t.Context(), r); err != nil && !protocol.HasCode(err, protocol.CodeStaleReport) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := w.stream("node-a", "orders").Status.Observed.Generation; got != n {
		t.Errorf("after all reports the hub believes generation %d, not %d", got, n)
	}
}

func TestABootBeginsWithAFullReport(t *testing.T) {
	w := newWorld(t)
	a := w.enrolled("node-a")
	_, err := a.client.Report(t.Context(), a.next(false))
	wantCode(t, err, http.StatusConflict, protocol.CodeFullReportRequired)
	a.report(true)
	a.reboot("boot-2")
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	_, err = a.client.Report(t.Context(), a.next(false))
	wantCode(t, err, http.StatusConflict, protocol.CodeFullReportRequired)
	a.report(true)
}

func TestAReportIsOfTheSessionsBoot(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	r := a.next(true)
	r.BootSeq++
	_, err := a.client.Report(t.Context(), r)
	wantCode(t, err, http.StatusUnprocessableEntity, protocol.CodeValidationFailed)
}

func TestHeartbeatsWriteNothing(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	a.report(false, running("orders", 1, "cfg-1"))
	revision, updates := w.revision(), w.store.updates.Load()
	for i := range 30 {
		w.clock.advance(hub.HeartbeatEvery)
		s := running("orders", 1, "cfg-1")
		s.Metrics = &protocol.Metrics{InputMessages: int64(i), LagMessages: -1}
		switch i % 3 {
		case 0:
			a.report(false)
		case 1:
			a.report(false, s)
		default:
			a.report(true, s)
		}
	}
	if r, u := w.revision(), w.store.updates.Load(); r != revision || u != updates {
		t.Errorf("heartbeats made %d revisions in %d transactions", r-revision, u-updates)
	}
	m, ok := w.presence.Metrics("node-a", "orders")
	if !ok || m.Counters.InputMessages != 29 || m.Before.InputMessages != 28 || m.ReportedAt.Sub(m.BeforeAt) != hub.HeartbeatEvery {
		t.Errorf("the counters are %+v", m)
	}
	if last, ok := w.presence.LastReport("node-a"); !ok || !last.Equal(w.clock.Now()) {
		t.Errorf("the last report was at %v", last)
	}
}

func TestAfterARestartHeartbeatsWriteNothingAndOldReportsStayOld(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	old := a.next(false, running("orders", 1, ""))
	a.report(false, running("orders", 2, ""))
	a.report(false)
	w.restart()
	a.reconnect()
	updates := w.store.updates.Load()
	_, err := a.client.Report(t.Context(), old)
	wantCode(t, err, http.StatusConflict, protocol.CodeStaleReport)
	if answer := a.report(false); !answer.FullRequired {
		t.Error("a new server asks each node for a full report")
	}
	a.report(true, running("orders", 2, ""))
	if answer := a.report(false); answer.FullRequired {
		t.Error("it asks once")
	}
	if u := w.store.updates.Load(); u != updates {
		t.Errorf("%d transactions", u-updates)
	}
}

func TestAReportThatWasMissingIsOldAfterARestart(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	a.report(false, running("orders", 1, ""))
	failed := running("orders", 1, "")
	failed.State = hub.Failed
	late := a.next(false, failed)
	a.report(false, running("orders", 1, ""))
	w.restart()
	a.reconnect()
	_, err := a.client.Report(t.Context(), late)
	wantCode(t, err, http.StatusConflict, protocol.CodeStaleReport)
	if got := w.stream("node-a", "orders").Status.Observed.State; got != hub.Running {
		t.Errorf("the stream is shown as %s", got)
	}
	a.report(false)
}

func TestAFullStoreRefusesChangesAndRecovers(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	w.store.full.Store(true)
	r := a.next(false, running("orders", 1, ""))
	_, err := a.client.Report(t.Context(), r)
	wantCode(t, err, http.StatusServiceUnavailable, protocol.CodeRepositoryUnavailable)
	w.store.full.Store(false)
	a.send(r) // the same report, again: it was not taken for an old one
	if got := w.stream("node-a", "orders").Status.Observed.Generation; got != 1 {
		t.Errorf("observed generation %d", got)
	}
}

func TestReportsAreChecked(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	long := strings.Repeat("x", 1000)
	for field, change := range map[string]func(*protocol.Report){
		"boot_id":                         func(r *protocol.Report) { r.BootID = long },
		"boot_seq":                        func(r *protocol.Report) { r.BootSeq = -1 },
		"report_seq":                      func(r *protocol.Report) { r.ReportSeq = 0 },
		"streams[0].stream_id":            func(r *protocol.Report) { r.Streams[0].StreamID = "__secret" },
		"streams[1].stream_id":            func(r *protocol.Report) { r.Streams[1].StreamID = "a" },
		"streams[0].state":                func(r *protocol.Report) { r.Streams[0].State = "sleeping" },
		"streams[0].generation":           func(r *protocol.Report) { r.Streams[0].Generation = -4 },
		"streams[1].generation":           func(r *protocol.Report) { r.Streams[1].Generation = math.MaxInt64 },
		"streams[0].config_version":       func(r *protocol.Report) { r.Streams[0].ConfigVersion = long },
		"streams[0].completed_actions":    func(r *protocol.Report) { r.Streams[0].CompletedActions = make([]string, 1000) },
		"streams[0].interrupted_actions[": func(r *protocol.Report) { r.Streams[0].InterruptedActions = []string{"a b"} },
		"streams[0].error.class":          func(r *protocol.Report) { r.Streams[0].Error = &hub.Failure{Class: "bad", Code: "x"} },
		"streams[0].metrics":              func(r *protocol.Report) { r.Streams[0].Metrics = &protocol.Metrics{Errors: -1} },
		"streams":                         func(r *protocol.Report) { r.Streams = make([]protocol.StreamReport, 6000) },
		"attempts[0].state": func(r *protocol.Report) {
			r.Attempts = []protocol.AttemptReport{{AttemptID: "x", State: hub.Claimed}}
		},
		"attempts[0].failure": func(r *protocol.Report) {
			r.Attempts = []protocol.AttemptReport{{AttemptID: "x", State: hub.AttemptFail}}
		},
		"attempts[0].attempt_id": func(r *protocol.Report) { r.Attempts = []protocol.AttemptReport{{State: hub.Succeeded}} },
	} {
		r := a.next(true, running("a", 1, ""), running("b", 1, ""))
		change(&r)
		_, err := a.client.Report(t.Context(), r)
		if e := wantCode(t, err, http.StatusUnprocessableEntity, protocol.CodeValidationFailed); !strings.Contains(e.Message, field) {
			t.Errorf("%s: the message is %q", field, e.Message)
		}
	}
	for name, body := range map[string]string{
		"unknown field": `{"boot_id":"b","boot_seq":1,"report_seq":1,"colour":"red"}`,
		"not JSON":      `{"boot_id"`,
		"two values":    `{"boot_id":"b","boot_seq":1,"report_seq":1} {}`,
		"wrong type":    `{"boot_id":"b","boot_seq":"1","report_seq":1}`,
		"nothing":       ``,
	} {
		if status, got := w.raw("POST", "/agent/v1/reports", w.tokenOf(a), body); status != 400 || got["code"] != "bad_request" {
			t.Errorf("%s: %d %v", name, status, got)
		}
	}
	if status, got := w.raw("POST", "/agent/v1/reports", w.tokenOf(a), `{"boot_id":"`+strings.Repeat("x", 5<<20)+`"}`); status != 413 {
		t.Errorf("too large: %d %v", status, got)
	}
}

func TestLongTextsAreCut(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	s := running("orders", 1, "")
	s.State, s.Error = hub.Failed, &hub.Failure{Class: hub.Transient, Code: "exit_status", Message: strings.Repeat("é", 100_000)}
	a.report(false, s)
	if got := w.stream("node-a", "orders").Status.Observed.Failure.Message; len(got) > 3<<10 || !strings.HasPrefix(got, "éé") {
		t.Errorf("%d bytes were kept", len(got))
	}
}

func TestUnknownPathsAnswerInTheHubsEnvelope(t *testing.T) {
	w := newWorld(t)
	for path, status := range map[string]int{"/agent/v1/nothing": 404, "/agent/v1": 404, "/agent/v1/reports": 405} {
		got, body := w.raw("GET", path, "", "")
		if got != status || body["code"] == "" || body["message"] == "" || body["correlation_id"] == "" {
			t.Errorf("%s: %d %v", path, got, body)
		}
	}
}

func TestManyNodesReportAtOnce(t *testing.T) {
	w := newWorld(t)
	const n = 20
	agents := make([]*agent, n)
	for i := range agents {
		agents[i] = w.enrolled(fmt.Sprintf("node-%d", i))
	}
	var wg sync.WaitGroup
	for _, a := range agents {
		wg.Go(func() {
			if _, err := a.client.Report(t.Context(), a.next(true, running("orders", 1, ""))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ages := w.presence.ReportAges(); len(ages) != n {
		t.Errorf("%d nodes reported", len(ages))
	}
}
