package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func want(t *testing.T, w *world, stream string, state hub.State, generation int64, version, code string) {
	t.Helper()
	got := w.state(stream)
	gotCode := ""
	if got.Error != nil {
		gotCode = got.Error.Code
	}
	if got.State != state || got.Generation != generation || got.ConfigVersion != version || gotCode != code {
		t.Fatalf("%s is %s, generation %d, %s, error %q; want %s, %d, %s, %q", stream,
			got.State, got.Generation, got.ConfigVersion, gotCode, state, generation, version, code)
	}
}

func wantAttempt(t *testing.T, w *world, stream string, state hub.AttemptState, code string) {
	t.Helper()
	a := w.attempt(stream)
	got := ""
	if a.Failure != nil {
		got = a.Failure.Code
	}
	if a.State != state || got != code {
		t.Fatalf("the attempt of %s is %s %q, want %s %q", stream, a.State, got, state, code)
	}
}

func mustAccept(t *testing.T, w *world, commands ...agentapi.Command) {
	t.Helper()
	if err := w.accept(commands...); err != nil {
		t.Fatal(err)
	}
}

func TestAStreamRunsStopsAndIsForgottenButForItsGeneration(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	want(t, w, "orders", hub.Running, 1, "cfg-1", "")
	wantAttempt(t, w, "orders", hub.Succeeded, "")
	mustAccept(t, w, command("orders", 2, hub.Stopped, "cfg-1", ""))
	w.settle()
	want(t, w, "orders", hub.Stopped, 2, "cfg-1", "")
	mustAccept(t, w, command("orders", 3, hub.Absent, "cfg-1", ""))
	w.settle()
	want(t, w, "orders", hub.Absent, 3, "cfg-1", "")
	w.boot()
	mustAccept(t, w, command("orders", 2, hub.Running, "cfg-1", ""))
	w.settle()
	want(t, w, "orders", hub.Absent, 3, "cfg-1", "")
	if len(w.runs) > 0 {
		t.Fatalf("a forgotten stream runs: %+v", w.runs)
	}
	if r := w.report(false, true); !r.Full || len(r.Streams) != 1 || r.Streams[0].State != hub.Absent {
		t.Fatalf("the first report of a boot is %+v, want a full one with the tombstone", r)
	}
}

func TestAnOlderGenerationIsRefusedAndSaidSo(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 5, hub.Running, "cfg-1", ""))
	w.settle()
	w.report(false, true)
	late := command("orders", 4, hub.Stopped, "cfg-1", "")
	mustAccept(t, w, late)
	other := command("orders", 5, hub.Stopped, "cfg-1", "")
	other.AttemptID = "other"
	mustAccept(t, w, other)
	w.settle()
	want(t, w, "orders", hub.Running, 5, "cfg-1", "")
	codes := map[string]string{}
	for _, a := range w.report(false, true).Attempts {
		codes[a.AttemptID] = a.Failure.Code
	}
	if codes[late.AttemptID] != "stale_generation" || codes["other"] != "generation_conflict" {
		t.Fatalf("refusals: %v", codes)
	}
}

func TestAnExpiredCommandIsNotRun(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	received := w.now
	w.now = w.now.Add(30 * time.Second)
	if err := w.core.Accept(ctx, []agentapi.Command{command("orders", 1, hub.Running, "cfg-1", "")}, received); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if len(w.core.Streams()) > 0 || len(w.runs) > 0 {
		t.Fatalf("streams %+v, runs %+v", w.core.Streams(), w.runs)
	}
}

func TestARedeliveredAttemptAnswersItsResultAndChangesNothing(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	cmd := command("orders", 1, hub.Running, "cfg-1", "act")
	mustAccept(t, w, cmd)
	w.settle()
	w.report(false, true)
	w.boot()
	w.clean()
	w.settle()
	w.report(false, true)
	runs := w.tokens()
	mustAccept(t, w, cmd)
	w.settle()
	if !slices.Equal(runs, w.tokens()) {
		t.Fatalf("runs were %v and are %v", runs, w.tokens())
	}
	if r := w.report(false, true); len(r.Attempts) != 1 || r.Attempts[0].State != hub.Succeeded {
		t.Fatalf("attempts: %+v", r.Attempts)
	}
}

func TestAChangeOfConfigDrainsTheOldRunBeforeTheNewOneStarts(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	mustAccept(t, w, command("orders", 2, hub.Running, "cfg-2", ""))
	w.settle() // the world fails the test when two runs of a stream meet
	want(t, w, "orders", hub.Running, 2, "cfg-2", "")
	if len(w.runs) != 1 {
		t.Fatalf("runs: %+v", w.runs)
	}
}

func TestARejectedConfigLeavesTheOldRunGoing(t *testing.T) {
	for _, how := range []string{"rejected", "rejected late"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, openTestStore(t))
			mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
			w.settle()
			runs := w.tokens()
			w.engine["cfg-2"] = how
			mustAccept(t, w, command("orders", 2, hub.Running, "cfg-2", ""))
			w.settle()
			want(t, w, "orders", hub.Running, 2, "cfg-1", "invalid_config")
			wantAttempt(t, w, "orders", hub.AttemptFail, "invalid_config")
			if how == "rejected" && !slices.Equal(runs, w.tokens()) {
				t.Fatalf("the old run was touched: %v became %v", runs, w.tokens())
			}
			w.boot()
			w.clean()
			w.settle()
			want(t, w, "orders", hub.Running, 2, "cfg-1", "invalid_config")
			again := command("orders", 2, hub.Running, "cfg-2", "")
			again.AttemptID = "again"
			w.engine["cfg-2"] = "ok"
			mustAccept(t, w, again)
			w.settle()
			want(t, w, "orders", hub.Running, 2, "cfg-2", "")
			wantAttempt(t, w, "orders", hub.Succeeded, "")
		})
	}
}

func TestTheOldRunGoesOnWhileTheNewConfigWaitsForItsSecret(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	w.engine["cfg-2"] = "no secret"
	mustAccept(t, w, command("orders", 2, hub.Running, "cfg-2", ""))
	w.settle()
	want(t, w, "orders", hub.Running, 2, "cfg-1", "secret_missing")
	wantAttempt(t, w, "orders", hub.AttemptFail, "secret_missing")
	w.engine["cfg-2"] = "ok"
	_, wake := w.core.Effects(ctx)
	if w.now = wake; wake.IsZero() {
		t.Fatal("it is not asked again")
	}
	w.settle()
	want(t, w, "orders", hub.Running, 2, "cfg-2", "")
}

func TestARestartIsDoneOnceAndProved(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	before := w.tokens()
	mustAccept(t, w, command("orders", 2, hub.Running, "cfg-1", "act"))
	w.settle()
	if slices.Equal(before, w.tokens()) {
		t.Fatal("nothing was restarted")
	}
	if got := w.state("orders"); !slices.Equal(got.CompletedActions, []string{"act"}) {
		t.Fatalf("completed: %v", got.CompletedActions)
	}
	wantAttempt(t, w, "orders", hub.Succeeded, "")
}

func TestARestartThatACrashInterruptedIsNotRunAgain(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	mustAccept(t, w, command("orders", 2, hub.Running, "cfg-1", "act"))
	w.look() // the restart is recorded, and the old run is told to stop
	w.boot()
	w.clean()
	w.settle()
	want(t, w, "orders", hub.Running, 2, "cfg-1", "")
	wantAttempt(t, w, "orders", hub.AttemptFail, "action_interrupted")
	if got := w.state("orders"); len(got.CompletedActions) > 0 || !slices.Equal(got.InterruptedActions, []string{"act"}) {
		t.Fatalf("completed %v, interrupted %v", got.CompletedActions, got.InterruptedActions)
	}
	runs := w.tokens()
	again := command("orders", 2, hub.Running, "cfg-1", "act")
	again.AttemptID = "again"
	mustAccept(t, w, again)
	w.settle()
	wantAttempt(t, w, "orders", hub.AttemptFail, "action_interrupted")
	if !slices.Equal(runs, w.tokens()) {
		t.Fatal("it was run again")
	}
}

func TestAStreamThatFailsIsTriedAgainWithAGrowingDelay(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	w.engine["cfg-1"] = "fails"
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	want(t, w, "orders", hub.Failed, 1, "cfg-1", "exit_status")
	wantAttempt(t, w, "orders", hub.AttemptFail, "exit_status")
	var delays []time.Duration
	for range 8 {
		_, wake := w.core.Effects(ctx)
		delays = append(delays, wake.Sub(w.now))
		w.now = wake
		w.settle()
		want(t, w, "orders", hub.Failed, 1, "cfg-1", "exit_status")
	}
	wanted := []int{1, 2, 4, 8, 16, 32, 60, 60}
	for i := range wanted {
		if delays[i] != time.Duration(wanted[i])*time.Second {
			t.Fatalf("delays: %v", delays)
		}
	}
	w.engine["cfg-1"] = "ok"
	w.now = w.now.Add(time.Minute)
	w.settle()
	want(t, w, "orders", hub.Running, 1, "cfg-1", "")
	w.now = w.now.Add(time.Minute)
	w.engine["cfg-1"] = "fails"
	w.settle()
	if _, wake := w.core.Effects(ctx); wake.Sub(w.now) != time.Second {
		t.Fatalf("after a stable run the delay is %v, want it to start afresh", wake.Sub(w.now))
	}
}

func TestAStreamThatFailedForGoodWaitsForTheHubsWord(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	w.engine["cfg-1"] = "rejected late"
	w.settle()
	w.now = w.now.Add(time.Hour)
	w.settle()
	want(t, w, "orders", hub.Failed, 1, "cfg-1", "invalid_config")
	if w.core.starts() != 1 {
		t.Fatalf("it was started %d times", w.core.starts())
	}
	again := command("orders", 1, hub.Running, "cfg-1", "")
	again.AttemptID, w.engine["cfg-1"] = "again", "ok"
	mustAccept(t, w, again)
	w.settle()
	want(t, w, "orders", hub.Running, 1, "cfg-1", "")
}

func TestAStreamThatFinishedIsNotRunAgainUnlessAsked(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	w.engine["cfg-1"] = "finishes"
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	want(t, w, "orders", hub.Stopped, 1, "cfg-1", "finished")
	w.boot()
	w.clean()
	w.settle()
	again := command("orders", 1, hub.Running, "cfg-1", "")
	again.AttemptID = "again"
	mustAccept(t, w, again)
	w.settle()
	want(t, w, "orders", hub.Stopped, 1, "cfg-1", "finished")
	wantAttempt(t, w, "orders", hub.AttemptFail, "finished")
	w.engine["cfg-1"] = "ok"
	mustAccept(t, w, command("orders", 2, hub.Running, "cfg-1", "act"))
	w.settle()
	want(t, w, "orders", hub.Running, 2, "cfg-1", "")
	wantAttempt(t, w, "orders", hub.Succeeded, "")
}

func TestAStartThatTakesTooLongFailsItsAttemptAndGoesOn(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	w.engine["cfg-1"] = "slow"
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	want(t, w, "orders", hub.Starting, 1, "cfg-1", "")
	w.now = w.now.Add(30 * time.Second)
	w.settle()
	want(t, w, "orders", hub.Starting, 1, "cfg-1", "not_ready")
	wantAttempt(t, w, "orders", hub.AttemptFail, "not_ready")
	w.engine["cfg-1"] = "ok"
	w.settle()
	want(t, w, "orders", hub.Running, 1, "cfg-1", "")
	if w.core.starts() != 1 {
		t.Fatalf("it was started %d times", w.core.starts())
	}
}

func (c *Core) starts() (n int64) {
	for _, s := range c.streams {
		n += s.starts
	}
	return n
}

func TestANodeWithoutItsHubStartsWhatItHas(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	w.offline = true
	mustAccept(t, w, command("orders", 2, hub.Running, "cfg-2", "")) // the hub went away before the content came
	w.boot()
	w.clean()
	w.settle()
	want(t, w, "orders", hub.Running, 2, "cfg-1", "config_unavailable")
	w.offline = false
	w.now = w.now.Add(time.Minute)
	w.settle()
	want(t, w, "orders", hub.Running, 2, "cfg-2", "")
}

func TestAFullDiskRefusesCommandsAndRecovers(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	w.report(false, true)
	w.store.full = true
	if err := w.accept(command("orders", 2, hub.Stopped, "cfg-1", ""), command("new", 1, hub.Running, "cfg-1", "")); !errors.Is(err, store.ErrFull) {
		t.Fatalf("accepted with a full disk: %v", err)
	}
	w.settle()
	want(t, w, "orders", hub.Running, 1, "cfg-1", "")
	r := w.report(false, true)
	if len(r.Attempts) != 2 || r.Attempts[0].Failure.Class != hub.Capacity || r.Attempts[1].Failure.Code != "disk_full" {
		t.Fatalf("attempts: %+v", r.Attempts)
	}
	w.store.full = false
	again := command("orders", 2, hub.Stopped, "cfg-1", "")
	again.AttemptID = "again"
	mustAccept(t, w, again)
	w.settle()
	want(t, w, "orders", hub.Stopped, 2, "cfg-1", "")
	if n := len(w.core.Streams()); n != 1 {
		t.Fatalf("%d streams", n)
	}
}

func TestAFullDiskStopsNoRunAndStartsNone(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	w.engine["cfg-1"] = "fails"
	mustAccept(t, w, command("orders", 1, hub.Running, "cfg-1", ""))
	w.settle()
	w.store.full = true
	w.engine["cfg-1"] = "ok"
	w.now = w.now.Add(time.Minute)
	w.settle()
	if len(w.runs) > 0 {
		t.Fatal("a run was started that could not be recorded")
	}
	want(t, w, "orders", hub.Failed, 1, "cfg-1", "disk_full")
	w.store.full = false
	w.now = w.now.Add(time.Minute)
	w.settle()
	want(t, w, "orders", hub.Running, 1, "cfg-1", "")
}

func TestAContentThatIsNotWhatItsDigestSaysIsRefused(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	cmd := command("orders", 1, hub.Running, "cfg-1", "")
	cmd.Digest = digestOf("something else")
	mustAccept(t, w, cmd)
	w.settle()
	want(t, w, "orders", hub.Failed, 1, "cfg-1", "digest_mismatch")
	wantAttempt(t, w, "orders", hub.AttemptFail, "digest_mismatch")
}

func TestACommandThatCannotBeMeantIsRefused(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	for _, bad := range []agentapi.Command{
		command("../etc", 1, hub.Running, "cfg-1", ""), command(".x", 1, hub.Stopped, "", ""), command("__x", 1, hub.Stopped, "", ""),
		command(strings.Repeat("a", 129), 1, hub.Stopped, "", ""), command("a", 0, hub.Stopped, "", ""),
		command("a", 1, hub.Starting, "cfg-1", ""), command("a", 1, hub.Running, "", ""),
	} {
		mustAcceptNothing(t, w, bad)
	}
}

func mustAcceptNothing(t *testing.T, w *world, cmd agentapi.Command) {
	t.Helper()
	if err := w.core.Accept(ctx, []agentapi.Command{cmd}, w.now); err != nil {
		t.Fatal(err)
	}
	if n := len(w.core.Streams()); n > 0 {
		t.Fatalf("%+v was taken over", cmd)
	}
	r := w.report(false, true)
	if len(r.Attempts) != 1 || r.Attempts[0].Failure.Code != "invalid_command" {
		t.Fatalf("%+v: attempts %+v", cmd, r.Attempts)
	}
}

func TestReportsTellEachChangeUntilItIsAnswered(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	if !w.core.Dirty() {
		t.Fatal("the first report of a boot is due at once")
	}
	w.report(false, true)
	mustAccept(t, w, command("a", 1, hub.Running, "cfg-1", ""), command("b", 1, hub.Stopped, "", ""))
	w.settle()
	lost := w.report(false, false)
	if lost.Full || len(lost.Streams) != 2 || len(lost.Attempts) != 2 {
		t.Fatalf("report: %+v", lost)
	}
	if again := w.report(false, true); again.ReportSeq != lost.ReportSeq+1 || len(again.Streams) != 2 || len(again.Attempts) != 2 {
		t.Fatalf("after a lost answer: %+v", again)
	}
	if w.core.Dirty() {
		t.Fatal("there is nothing left to tell")
	}
	if beat := w.report(true, true); len(beat.Streams) != 1 || beat.Streams[0].Metrics == nil || len(beat.Attempts) > 0 {
		t.Fatalf("heartbeat: %+v", beat)
	}
	w.core.RequireFull()
	if full := w.report(false, true); !full.Full || len(full.Streams) != 2 {
		t.Fatalf("full report: %+v", full)
	}
}

func TestAHeartbeatRepeatsTheAcknowledgementsOfWhatGoesOn(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	w.engine["cfg-1"] = "slow"
	mustAccept(t, w, command("a", 1, hub.Running, "cfg-1", ""))
	w.settle()
	w.report(false, true)
	for range 2 {
		if r := w.report(true, true); len(r.Attempts) != 1 || r.Attempts[0].State != hub.Acknowledged {
			t.Fatalf("heartbeat: %+v", r.Attempts)
		}
	}
}

func TestAStaleReportIsGonePastUnlessANewerBootIsKnown(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	w.report(false, true)
	seq := w.core.Boot().Seq
	if w.core.Stale(seq, 41) {
		t.Fatal("the hub knows this boot")
	}
	if r := w.report(false, true); r.ReportSeq != 42 || !r.Full {
		t.Fatalf("report: %+v", r)
	}
	if !w.core.Stale(seq+1, 1) {
		t.Fatal("the hub knows a newer boot")
	}
}

func TestTheNodesConfigurationIsAppliedBeforeStreamsStart(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	mustAccept(t, w, command("Orders", 1, hub.Running, "cfg-1", ""), command(hub.NodeConfig, 1, hub.Running, "cfg-2", ""))
	w.settle()
	w.boot()
	w.clean()
	w.look()
	if len(w.pending) != 1 || w.pending[0].Stream != hub.NodeConfig {
		t.Fatalf("first: %+v", w.pending)
	}
	w.settle()
	want(t, w, "Orders", hub.Running, 1, "cfg-1", "")
}

func TestContentsThatNothingNamesAreForgotten(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	for i := range int64(spareContents + 20) {
		w.now = w.now.Add(time.Second)
		mustAccept(t, w, command("a", i+1, hub.Running, "cfg-"+string(rune('a'+i%26))+string(rune('a'+i/26)), ""))
		w.settle()
	}
	var kept int
	if err := w.store.View(ctx, func(r store.Reader) error {
		blobs, err := r.Blobs(contentPrefix)
		kept = len(blobs)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if kept > spareContents+2 || kept != len(w.core.contents) {
		t.Fatalf("%d contents are kept, %d known", kept, len(w.core.contents))
	}
}
