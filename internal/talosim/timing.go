package talosim

import (
	"fmt"
	"time"
)

// Timing tells how long the parts of a machine's life take.
type Timing struct {
	// Boot: from power-on until Talos starts its services; no port is open meanwhile.
	Boot time.Duration
	// Install: writing Talos to the disk after a config was applied in maintenance mode.
	Install time.Duration
	// Service: the start of one service; a boot starts about ten of them, one after the other.
	Service time.Duration
	// Etcd: bootstrapping etcd, and joining it.
	Etcd time.Duration
	// APIServer: from etcd being up until the Kubernetes API serves.
	APIServer time.Duration
	// NodeRegister: from the kubelet and the Kubernetes API being up until the Node exists.
	NodeRegister time.Duration
	// NodeReady: from there until the Node is Ready.
	NodeReady time.Duration
	// NodeLost: how long a Node stays Ready after its machine went away.
	NodeLost time.Duration
	// Shutdown: stopping services before a reboot, shutdown, reset or upgrade.
	Shutdown time.Duration
	// Wipe: the disk, in a reset.
	Wipe time.Duration
	// Crash: how long a crash-looping machine lives after each boot.
	Crash time.Duration
}

// Fast is for tests: everything in a few milliseconds.
var Fast = Timing{
	Boot:         5 * time.Millisecond,
	Install:      5 * time.Millisecond,
	Service:      time.Millisecond,
	Etcd:         5 * time.Millisecond,
	APIServer:    2 * time.Millisecond,
	NodeRegister: 2 * time.Millisecond,
	NodeReady:    5 * time.Millisecond,
	NodeLost:     50 * time.Millisecond,
	Shutdown:     2 * time.Millisecond,
	Wipe:         2 * time.Millisecond,
	Crash:        50 * time.Millisecond,
}

// Demo is pleasant to watch: a machine is installed, booted and part of its cluster in about ten seconds.
var Demo = Timing{
	Boot:         1500 * time.Millisecond,
	Install:      2 * time.Second,
	Service:      150 * time.Millisecond,
	Etcd:         time.Second,
	APIServer:    time.Second,
	NodeRegister: 500 * time.Millisecond,
	NodeReady:    time.Second,
	NodeLost:     10 * time.Second,
	Shutdown:     700 * time.Millisecond,
	Wipe:         700 * time.Millisecond,
	Crash:        3 * time.Second,
}

// settle is how long to wait for more changes after one: they come in flocks.
func (t Timing) settle() time.Duration { return min(t.Service, 20*time.Millisecond) }

// ParseTiming returns the timing of a name: "fast" or "demo".
func ParseTiming(name string) (Timing, error) {
	switch name {
	case "fast":
		return Fast, nil
	case "demo":
		return Demo, nil
	}
	return Timing{}, fmt.Errorf("unknown timing %q; there are \"fast\" and \"demo\"", name)
}
