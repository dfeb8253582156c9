package supervise

import (
	"errors"
	"time"
)

// TokenVariable is the environment variable that every process of a run carries.
const TokenVariable = "FREEHOLD_RUN"

// orphanGrace is how long a program may drain when its agent has died: the next agent kills what is still there.
const orphanGrace = 10 * time.Second

// leftoverGrace is how long processes that outlive the program's first one may take to stop.
const leftoverGrace = 5 * time.Second

// order is a line that the agent writes to the shim.
type order struct {
	Start *startOrder `json:"start,omitempty"`
	// Stop asks the program to end, and kills it after StopTimeout.
	Stop bool `json:"stop,omitempty"`
	Kill bool `json:"kill,omitempty"`
}

type startOrder struct {
	Argv        []string      `json:"argv"`
	Env         []string      `json:"env"`
	Dir         string        `json:"dir,omitempty"`
	StopSignal  int           `json:"stop_signal"`
	StopTimeout time.Duration `json:"stop_timeout"`
	StopGroup   bool          `json:"stop_group"`
	// Status: descriptor 5 is to be the program's descriptor 3.
	Status bool `json:"status"`
	// Enter are the cgroup.procs files to enter before the program starts, Leave those to go back to after.
	Enter []string `json:"enter,omitempty"`
	Leave []string `json:"leave,omitempty"`
}

// event is a line that the shim writes to the agent.
type event struct {
	Started int `json:"started,omitempty"`
	// Failed tells why the program could not be started; Errno is the system's number for it, if any.
	Failed string `json:"failed,omitempty"`
	Errno  int    `json:"errno,omitempty"`
	Exited *Exit  `json:"exited,omitempty"`
	// Gone: no process is left.
	Gone bool `json:"gone,omitempty"`
}

// Exit is how a program's first process ended.
type Exit struct {
	Code int `json:"code"`
	// Signal that killed it, or 0.
	Signal int `json:"signal,omitempty"`
	// OutOfMemory: the kernel killed a process of the run because of its memory limit.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
	// Lost: the shim was killed, so how the program ended is not known.
	Lost bool `json:"lost,omitempty"`
	// Stopped: the end was asked for.
	Stopped bool `json:"stopped,omitempty"`
}

// StartError is why a program could not be started.
type StartError struct {
	Program string
	Err     error
}

func (e *StartError) Error() string { return "start " + e.Program + ": " + e.Err.Error() }

// Unwrap gives the system's error.
func (e *StartError) Unwrap() error { return e.Err }

// ErrShim says that the shim itself did not start or answer.
var ErrShim = errors.New("the supervisor of the run did not start")

// Limits of a run; zero values do not limit.
type Limits struct {
	CPUMillicores int
	MemoryMiB     int
}

// Usage of a run's processes.
type Usage struct {
	CPUSeconds  float64
	MemoryBytes int64
}
