package hub

import (
	"testing"
	"time"
)

var noon = time.Date(2026, 5, 28, 12, 0, 0, 0, time.UTC)

// want is a target of generation 4.
var want = Desired{State: Running, Generation: 4, ConfigVersion: "cfg-2"}

func seen(s State, generation int64, config string) *Observed {
	return &Observed{State: s, Generation: generation, ConfigVersion: config}
}

func TestConvergenceComparesDesiredAndObserved(t *testing.T) {
	reached, older := seen(Running, 4, "cfg-2"), seen(Running, 3, "cfg-1")
	broken := seen(Failed, 4, "cfg-2")
	broken.Failure = &Failure{Transient, "exit_status", "it ended with status 1"}
	rejected := seen(Running, 4, "cfg-1")
	rejected.Failure = &Failure{ConfigRejected, "invalid_config", "no such input"}
	finished := seen(Stopped, 4, "cfg-2")
	finished.Failure = &Failure{Permanent, "finished", "its input ended"}
	active := &Attempt{State: Dispatched}
	for _, c := range []struct {
		name     string
		observed *Observed
		intent   *Intent
		presence Presence
		state    ConvergenceState
		reason   string
	}{
		{"nothing is desired", older, nil, PresenceOnline, Unknown, ReasonNoDesired},
		{"never observed, never enrolled", nil, &Intent{State: Accepted}, PresencePending, Unknown, ReasonNeverObserved},
		{"never observed, offline", nil, &Intent{State: Accepted}, PresenceOffline, Unknown, ReasonNeverObserved},
		{"never observed, online", nil, &Intent{State: Accepted}, PresenceOnline, Pending, ""},
		{"accepted, offline", older, &Intent{State: Accepted}, PresenceOffline, Pending, ReasonNodeOffline},
		{"accepted, online", older, &Intent{State: Accepted}, PresenceOnline, Pending, ""},
		{"sent", older, &Intent{State: Converging, Attempt: active}, PresenceOnline, Applying, ""},
		{"sent for the first time", nil, &Intent{State: Converging, Attempt: active}, PresenceOnline, Applying, ""},
		{"sent, then offline", older, &Intent{State: Converging, Attempt: active}, PresenceOffline, Applying, ReasonNodeOffline},
		{"acknowledged", older, &Intent{State: Converging, Attempt: &Attempt{State: Acknowledged}}, PresenceOnline, Applying, ""},
		{"succeeded and not shown yet", older, &Intent{State: Converging, Attempt: &Attempt{State: Succeeded}}, PresenceOnline, Applying, ""},
		{"succeeded, and a report has to show it", older, &Intent{State: Converging, Attempt: &Attempt{State: Succeeded}, AwaitReport: &noon}, PresenceOnline, Applying, ""},
		{"taken over, fails", broken, &Intent{State: Converging, Attempt: &Attempt{State: Succeeded}}, PresenceOnline, Degraded, "exit_status"},
		{"the config version before runs on", rejected, &Intent{State: Converging, Attempt: &Attempt{State: Succeeded}}, PresenceOnline, Degraded, "invalid_config"},
		{"finished after it was reached", finished, &Intent{State: Converged}, PresenceOnline, Degraded, "finished"},
		{"ambiguous", older, &Intent{State: Converging, Attempt: &Attempt{State: Ambiguous}, AwaitReport: &noon}, PresenceOnline, Degraded, ReasonAmbiguous},
		{"retrying", older, &Intent{State: Retrying, Failure: &Failure{Code: "disk_full"}}, PresenceOnline, Degraded, "disk_full"},
		{"retrying, offline", older, &Intent{State: Retrying, Failure: &Failure{Code: "disk_full"}}, PresenceOffline, Degraded, "disk_full"},
		{"reached", reached, &Intent{State: Converged}, PresenceOnline, InSync, ""},
		{"reached while live", reached, &Intent{State: Retrying}, PresenceOnline, InSync, ""},
		{"reached, offline", reached, &Intent{State: Converged}, PresenceOffline, Unknown, ReasonNodeOffline},
		{"broken after it was reached", broken, &Intent{State: Converged}, PresenceOnline, Degraded, "exit_status"},
		{"starting again after it was reached", seen(Starting, 4, "cfg-2"), &Intent{State: Converged}, PresenceOnline, Degraded, "starting"},
		{"broken, then offline", broken, &Intent{State: Converged}, PresenceOffline, Degraded, "exit_status"},
		{"blocked", older, &Intent{State: Blocked, Failure: &Failure{Code: "invalid_config"}}, PresenceOnline, ConvergenceBlocked, "invalid_config"},
		{"blocked, offline", older, &Intent{State: Blocked, Failure: &Failure{Code: "invalid_config"}}, PresenceOffline, ConvergenceBlocked, "invalid_config"},
		{"cancelled", older, &Intent{State: Cancelled}, PresenceOnline, ConvergenceBlocked, ReasonCancelled},
		{"cancelled, and reached all the same", reached, &Intent{State: Cancelled}, PresenceOnline, InSync, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.intent != nil {
				c.intent.Desired, c.intent.Generation = want, want.Generation
			}
			got := Converge(c.observed, c.intent, c.presence, noon, Convergence{})
			if got.State != c.state || got.Reason != c.reason || !got.Since.Equal(noon) {
				t.Errorf("got %+v, want %s %q", got, c.state, c.reason)
			}
		})
	}
}

func TestSinceStaysWhileTheStateDoes(t *testing.T) {
	before := Convergence{State: Pending, Reason: ReasonNodeOffline, Since: noon}
	i := &Intent{State: Accepted, Desired: want}
	later := noon.Add(time.Minute)
	if got := Converge(seen(Running, 3, "cfg-1"), i, PresenceOnline, later, before); got.Since != noon || got.Reason != "" {
		t.Errorf("got %+v: the state is the same, its reason another", got)
	}
	i.Attempt = &Attempt{State: Dispatched}
	if got := Converge(seen(Running, 3, "cfg-1"), i, PresenceOnline, later, before); got.Since != later {
		t.Errorf("got %+v: another state began", got)
	}
}

func TestOnlyGenerationStateConfigAndActionTogetherAreProof(t *testing.T) {
	restart := want
	restart.ActionID = "restart-1"
	done := seen(Running, 4, "cfg-2")
	done.CompletedActions = []string{"restart-0", "restart-1"}
	absent := Desired{State: Absent, Generation: 4, ConfigVersion: "cfg-2"}
	for _, c := range []struct {
		name     string
		desired  *Desired
		observed *Observed
		done     bool
		proof    bool
	}{
		{"all as desired", &want, seen(Running, 4, "cfg-2"), false, true},
		{"nothing desired", nil, seen(Running, 4, "cfg-2"), false, false},
		{"nothing observed", &want, nil, false, false},
		{"older generation", &want, seen(Running, 3, "cfg-2"), false, false},
		{"newer generation", &want, seen(Running, 5, "cfg-2"), false, false},
		{"another state", &want, seen(Starting, 4, "cfg-2"), false, false},
		{"another config version", &want, seen(Running, 4, "cfg-1"), false, false},
		{"running without the restart", &restart, seen(Running, 4, "cfg-2"), false, false},
		{"running after the restart", &restart, done, false, true},
		{"the restart was proven before", &restart, seen(Running, 4, "cfg-2"), true, true},
		{"absent has no config version", &absent, seen(Absent, 4, ""), false, true},
		{"absent of an older generation", &absent, seen(Absent, 0, ""), false, false},
	} {
		if got := Proves(c.desired, c.observed, c.done); got != c.proof {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}
