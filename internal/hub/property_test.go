package hub

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAnyOrderOfEventsKeepsThePromises drives one intent by whatever may happen to it, in any order.
func TestAnyOrderOfEventsKeepsThePromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i := fresh(rapid.SampledFrom([]string{"", "r1"}).Draw(t, "action"))
		now, boots, dispatches := noon, 1, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			was, before := *i, i.State
			boot := fmt.Sprint("boot-", rapid.IntRange(max(1, boots-1), boots).Draw(t, "boot"))
			proof := false
			switch event := rapid.SampledFrom(events).Draw(t, "event"); event {
			case "time":
				now = now.Add(time.Duration(rapid.IntRange(-5, 200).Draw(t, "seconds")) * time.Second)
			case "boot":
				boots++
			case "dispatch":
				if i.Dispatchable(now) {
					dispatches++
					i.Dispatch(now, fmt.Sprint("attempt-", dispatches), Boot{ID: fmt.Sprint("boot-", boots)})
				}
			case "acknowledge":
				i.Acknowledge(now)
			case "succeed":
				i.Succeed(now)
			case "fail":
				class := rapid.SampledFrom([]Class{NodeUnavailable, Timeout, Transient, Capacity, Permanent, Incompatible, ConfigRejected, ClassAmbiguous, "?"}).Draw(t, "class")
				i.Fail(now, Failure{Class: class, Code: "x"}, rapid.Float64Range(0, 1).Draw(t, "jitter"))
			case "expire":
				i.Expire(now)
			case "cancel":
				_ = i.Cancel(now)
			case "supersede":
				i.Supersede(now)
			case "enrol":
				i.LoseNode(now)
			case "report":
				o := drawObserved(t)
				full := rapid.Bool().Draw(t, "full")
				i.Observe(now, o, Evidence{Boot: boot, Full: full})
				proof = Proves(&i.Desired, o, i.ActionDone)
			}
			if i.State == Converged && before != Converged && !proof {
				t.Fatalf("it converged without a proof, from %s", before)
			}
			if (before == Superseded || before == Cancelled) && i.State != before {
				t.Fatalf("%s became %s", before, i.State)
			}
			if was.Attempt != nil && i.Attempt != nil && i.Attempt.ID != was.Attempt.ID && was.Attempt.Active() {
				t.Fatal("an active attempt was replaced")
			}
			if was.AwaitReport != nil && i.Attempts > was.Attempts {
				t.Fatal("something was sent while a full report was awaited")
			}
			if i.AwaitReport != nil && i.State != Converging {
				t.Fatalf("a report is awaited by an intent that is %s", i.State)
			}
			if i.Retry.Count > i.Retry.Budget {
				t.Fatal("the budget was overdrawn")
			}
			if i.Ended() != (i.FinishedAt != nil) {
				t.Fatalf("%s, finished at %v", i.State, i.FinishedAt)
			}
			if i.State == Converged && (i.Failure != nil || i.Attempt.Active()) {
				t.Fatalf("converged with failure %v, attempt %+v", i.Failure, i.Attempt)
			}
			if (i.State == Retrying || i.State == Blocked) && i.Failure == nil {
				t.Fatalf("%s for no reason", i.State)
			}
			if was.ActionDone && !i.ActionDone {
				t.Fatal("a proven action was forgotten")
			}
		}
	})
}

var events = []string{"time", "boot", "dispatch", "dispatch", "acknowledge", "succeed", "fail", "expire", "cancel", "supersede", "enrol", "report", "report", "report"}

func drawObserved(t *rapid.T) *Observed {
	o := &Observed{
		State:         rapid.SampledFrom([]State{Running, Running, Stopped, Absent, Starting, Failed}).Draw(t, "state"),
		Generation:    rapid.SampledFrom([]int64{0, 3, 4, 4, 4, 5}).Draw(t, "generation"),
		ConfigVersion: rapid.SampledFrom([]string{"", "cfg-1", "cfg-2", "cfg-2"}).Draw(t, "config"),
	}
	switch rapid.IntRange(0, 3).Draw(t, "actions") {
	case 0:
		o.CompletedActions = []string{"r1"}
	case 1:
		o.InterruptedActions = []string{"r1"}
	}
	if o.State == Failed {
		o.Failure = &Failure{Class: rapid.SampledFrom([]Class{Transient, Permanent}).Draw(t, "class"), Code: "x"}
	}
	return o
}
