package agent

import (
	"regexp"
	"slices"
	"time"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Target is a generation that the node accepted.
type Target struct {
	Generation    int64     `json:"generation"`
	State         hub.State `json:"state"`
	ConfigVersion string    `json:"config_version,omitempty"`
	// Digest of the config version's content.
	Digest string `json:"digest,omitempty"`
	// ActionID is the restart that the generation asks for, or "".
	ActionID   string    `json:"action_id,omitempty"`
	AcceptedAt time.Time `json:"accepted_at"`
}

func (t *Target) sameVersion(o *Target) bool {
	return t.ConfigVersion == o.ConfigVersion && t.Digest == o.Digest
}

// Attempt is what the node knows of the hub's try to bring a generation here: acknowledged, succeeded or failed.
type Attempt struct {
	ID         string           `json:"id"`
	Generation int64            `json:"generation"`
	State      hub.AttemptState `json:"state"`
	Failure    *hub.Failure     `json:"failure,omitempty"`
}

func (a *Attempt) open() bool { return a != nil && a.State == hub.Acknowledged }

// ActionState is how far a restart got.
type ActionState string

// The states of a restart. It is begun in the record before anything is done for it.
const (
	ActionBegun       ActionState = "begun"
	ActionCompleted   ActionState = "completed"
	ActionInterrupted ActionState = "interrupted"
)

// Action is a restart that the node began. One that is in the record is not begun again.
type Action struct {
	ID    string      `json:"id"`
	State ActionState `json:"state"`
}

// Record is the durable truth of one stream.
type Record struct {
	// Target is the newest generation that was accepted. Its generation does not fall while the record exists, and the
	// record of an absent stream stays.
	Target Target `json:"target"`
	// Applied is the newest generation that was reached. It runs on, or again, when Target cannot.
	Applied *Target `json:"applied,omitempty"`
	// Failure is why Target was given up, before it was reached.
	Failure *hub.Failure `json:"failure,omitempty"`
	// Finished is the generation whose run came to its end by itself, as it was meant to; it is not run again.
	Finished int64 `json:"finished,omitempty"`
	// Attempts are the newest ones, latest last; the last is Target's.
	Attempts []Attempt `json:"attempts,omitempty"`
	// Actions are the newest ones, latest last.
	Actions []Action `json:"actions,omitempty"`
	// Runs are the tokens of runs that may have processes.
	Runs []string `json:"runs,omitempty"`
}

const (
	keptAttempts = 8
	keptActions  = 64
	// toldActions of each kind are in a report.
	toldActions = 16
)

// records are named by stream.
var records = store.Type[Record, struct{}]{Kind: store.Kind{Name: "agentstream", Version: 1}}

// Kinds are the kinds of the agent's store.
func Kinds() []store.Kind { return []store.Kind{records.Kind, identities.Kind} }

func (r *Record) clone() Record {
	c := *r
	if r.Applied != nil {
		applied := *r.Applied
		c.Applied = &applied
	}
	c.Failure = cloneFailure(r.Failure)
	c.Attempts, c.Actions, c.Runs = slices.Clone(r.Attempts), slices.Clone(r.Actions), slices.Clone(r.Runs)
	return c
}

func cloneFailure(f *hub.Failure) *hub.Failure {
	if f == nil {
		return nil
	}
	c := *f
	return &c
}

// wanted is the generation to work for: the target, or what was reached before when the target was given up. nil:
// nothing was ever reached.
func (r *Record) wanted() *Target {
	if r.Failure == nil {
		return &r.Target
	}
	return r.Applied
}

// finished tells whether what is wanted has run to its end.
func (r *Record) finished() bool {
	want := r.wanted()
	return want != nil && want.State == hub.Running && r.Finished == want.Generation
}

// reached tells whether the target was reached once.
func (r *Record) reached() bool {
	return r.Applied != nil && r.Applied.Generation == r.Target.Generation
}

// attempt is the newest one, or nil.
func (r *Record) attempt() *Attempt {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

func (r *Record) knownAttempt(id string) *Attempt {
	for i := range r.Attempts {
		if r.Attempts[i].ID == id {
			return &r.Attempts[i]
		}
	}
	return nil
}

func (r *Record) addAttempt(id string, generation int64) {
	r.Attempts = append(r.Attempts, Attempt{ID: id, Generation: generation, State: hub.Acknowledged})
	r.Attempts = r.Attempts[max(0, len(r.Attempts)-keptAttempts):]
}

func (r *Record) action(id string) *Action {
	for i := range r.Actions {
		if r.Actions[i].ID == id {
			return &r.Actions[i]
		}
	}
	return nil
}

// actionDue tells whether the target asks for a restart that was not begun.
func (r *Record) actionDue() bool {
	return r.Failure == nil && r.Target.State == hub.Running && r.Target.ActionID != "" && r.action(r.Target.ActionID) == nil
}

func (r *Record) beginAction() {
	r.Actions = append(r.Actions, Action{ID: r.Target.ActionID, State: ActionBegun})
	r.Actions = r.Actions[max(0, len(r.Actions)-keptActions):]
}

// interruptActions gives up the restarts that were begun, but those that still go on.
func (r *Record) interruptActions(but ...string) (changed bool) {
	for i := range r.Actions {
		if a := &r.Actions[i]; a.State == ActionBegun && !slices.Contains(but, a.ID) {
			a.State, changed = ActionInterrupted, true
		}
	}
	return changed
}

func (r *Record) actions(state ActionState) []string {
	var ids []string
	for _, a := range r.Actions {
		if a.State == state {
			ids = append(ids, a.ID)
		}
	}
	return ids[max(0, len(ids)-toldActions):]
}

func (r *Record) forgetRun(token string) {
	r.Runs = slices.DeleteFunc(r.Runs, func(t string) bool { return t == token })
}

// validStream is the form of a stream's id. It is also a file's name.
var validStream = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$`)

func failure(class hub.Class, code, message string) *hub.Failure {
	return &hub.Failure{Class: class, Code: code, Message: message}
}
