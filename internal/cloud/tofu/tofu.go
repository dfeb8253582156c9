// Package tofu runs OpenTofu so that a crash of anything, at any moment, leaves a run that can be found again and a
// state that can be delivered.
//
// Each tenant has one [Folder]. A run holds the folder's lock: a file lock whose descriptor the supervisor process
// and tofu inherit, so that holding it and being alive are the same thing. The supervisor (the hidden subcommand
// "tofu-run", see [RunMain]) starts tofu, serves the plane's own providers to it, keeps every state that tofu writes
// in the folder before passing it on, and leaves a durable [Outcome]. The plane that started it may die and return.
package tofu

import (
	"errors"
	"time"
)

var (
	// ErrBusy means that another run holds the folder's lock.
	ErrBusy = errors.New("another run is alive")
	// ErrNoOutcome means that the run ended without leaving an outcome; it was killed.
	ErrNoOutcome = errors.New("the run was killed before it could tell its outcome")
	// ErrNotEncrypted means that a body that should be an encrypted state is not one.
	ErrNotEncrypted = errors.New("the state is not encrypted")
	// ErrNoTofu means that no usable OpenTofu program was found.
	ErrNoTofu = errors.New("no usable OpenTofu")
	// ErrPassphrase means that a state or plan was encrypted with another passphrase.
	ErrPassphrase = errors.New("the state was encrypted with another passphrase")
)

// Request is all that a run needs. It reaches the supervisor on its standard input and is never written to disk: it
// holds secrets.
type Request struct {
	// Run identifies the run; it is the holder of the state lock.
	Run string `json:"run"`
	// Tenant is the tenant's name, for the state's URL and for messages.
	Tenant string `json:"tenant"`
	// Tofu is the program's path.
	Tofu string `json:"tofu"`
	// Template is a folder that was initialised for the bare http backend; see [Prepare].
	Template string  `json:"template"`
	Stages   []Stage `json:"stages"`
	Guard    Guard   `json:"guard"`
	// State is the encrypted state to start from; empty for none.
	State []byte `json:"state,omitempty"`
	// Passphrase of the state and of the saved plan.
	Passphrase string `json:"passphrase"`
	// Credential is the run's password at the plane's state backend.
	Credential string `json:"credential"`
	// Deadline after which tofu is asked to stop, and Grace that it then has to save its state.
	Deadline time.Time     `json:"deadline"`
	Grace    time.Duration `json:"grace"`
	// Parallelism of one tofu; 0: 32, since its work is mostly waiting for machines.
	Parallelism int `json:"parallelism,omitempty"`
}

// Stage is one plan and its apply. Stages run in order until one fails; the state is durable between them.
type Stage struct {
	Name string `json:"name"`
	// Config is the main.tf.json.
	Config []byte `json:"config"`
	// Destroy plans the destruction of all that the state holds.
	Destroy bool `json:"destroy,omitempty"`
	// Exclude are addresses of resources that stay as they are, and with them what depends on them.
	Exclude []string `json:"exclude,omitempty"`
}

// Result is how a run ended.
type Result string

// The results.
const (
	Succeeded   Result = "succeeded"
	Failed      Result = "failed"
	Blocked     Result = "blocked"     // the plan would destroy what nobody asked to remove
	Interrupted Result = "interrupted" // it was asked to stop
	TimedOut    Result = "timedOut"    // it was stopped at its deadline
	Killed      Result = "killed"      // it died without an outcome
)

// Outcome is how a run ended and what it did. It carries no secrets.
type Outcome struct {
	Run    string `json:"run"`
	Result Result `json:"result"`
	// Error is the first error, in plain words; nil when the run succeeded.
	Error *Failure `json:"error,omitempty"`
	// Blocked names the resources that the guard refused to let go.
	Blocked  []string  `json:"blocked,omitempty"`
	Progress Progress  `json:"progress"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
}

// Failure is an error of a run.
type Failure struct {
	// Phase in which it occurred.
	Phase   Phase  `json:"phase,omitempty"`
	Address string `json:"address,omitempty"`
	Summary string `json:"summary"`
	Detail  string `json:"detail,omitempty"`
	// WrongPassphrase: the state could not be decrypted.
	WrongPassphrase bool `json:"wrongPassphrase,omitempty"`
}

// String is the failure in one line.
func (f *Failure) String() string {
	s := f.Summary
	if f.Detail != "" {
		s += ": " + f.Detail
	}
	if f.Address != "" {
		s = f.Address + ": " + s
	}
	return s
}

// Phase of a run.
type Phase string

// The phases, in order. Planning, checking and applying repeat for each stage.
const (
	PhasePreparing Phase = "preparing"
	PhasePlanning  Phase = "planning"
	PhaseChecking  Phase = "checking"
	PhaseApplying  Phase = "applying"
	PhaseSaving    Phase = "saving"
	PhaseDone      Phase = "done"
)
