package talosim

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// FaultKind names a fault.
type FaultKind string

// The faults.
const (
	// SlowBoot adds Fault.Delay to every boot.
	SlowBoot FaultKind = "slow-boot"
	// RefuseConfig makes ApplyConfiguration answer InvalidArgument with Fault.Reason.
	RefuseConfig FaultKind = "refuse-config"
	// NetworkRefuse cuts the machine off: connections are refused, living ones are reset.
	NetworkRefuse FaultKind = "network-refuse"
	// NetworkHang cuts the machine off silently: connections are made and nothing is ever answered.
	NetworkHang FaultKind = "network-hang"
	// CrashLoop reboots the machine Timing.Crash after each boot, for ever.
	CrashLoop FaultKind = "crash-loop"
	// CorruptEtcd keeps the machine's etcd member from starting.
	CorruptEtcd FaultKind = "corrupt-etcd"
	// WrongClock shifts the machine's clock by Fault.Delay: time is not synced, and certificates that it makes from
	// then on carry the shifted validity.
	WrongClock FaultKind = "wrong-clock"
)

// FaultKinds lists every kind of fault.
var FaultKinds = []FaultKind{SlowBoot, RefuseConfig, NetworkRefuse, NetworkHang, CrashLoop, CorruptEtcd, WrongClock}

// Fault is something wrong with a machine, until it is cleared. Faults are not kept over a restart of the simulation.
type Fault struct {
	Kind FaultKind `json:"kind"`
	// Delay of SlowBoot, shift of WrongClock; in nanoseconds on the wire.
	Delay time.Duration `json:"delay,omitempty"`
	// Reason that RefuseConfig gives.
	Reason string `json:"reason,omitempty"`
}

// Inject makes a fault act at once; one of the same kind is replaced.
func (m *Machine) Inject(f Fault) error {
	if !slices.Contains(FaultKinds, f.Kind) {
		return fmt.Errorf("unknown fault %q; there are %q", f.Kind, FaultKinds)
	}
	m.mu.Lock()
	m.faults[f.Kind] = f
	m.mu.Unlock()
	return m.faultsChanged()
}

// Clear ends a fault; an empty kind ends all of them.
func (m *Machine) Clear(kind FaultKind) error {
	m.mu.Lock()
	if kind == "" {
		clear(m.faults)
	} else {
		delete(m.faults, kind)
	}
	m.mu.Unlock()
	return m.faultsChanged()
}

// Faults lists what is wrong with the machine, by kind.
func (m *Machine) Faults() []Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Fault, 0, len(m.faults))
	for _, f := range m.faults {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Fault) int {
		return slices.Index(FaultKinds, a.Kind) - slices.Index(FaultKinds, b.Kind)
	})
	return list
}

func (m *Machine) fault(kind FaultKind) (Fault, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.faults[kind]
	return f, ok
}

func (m *Machine) faultsChanged() error {
	m.mu.Lock()
	r := reachOpen
	if _, ok := m.faults[NetworkHang]; ok {
		r = reachHang
	}
	if _, ok := m.faults[NetworkRefuse]; ok {
		r = reachRefuse
	}
	m.reach = r
	m.mu.Unlock()
	err := errors.Join(m.talosGate.set(r), m.kubeGate.set(r))
	if r == reachRefuse {
		m.talosGate.cut()
		m.kubeGate.cut()
	}
	m.changed()
	return err
}

// now is the machine's own clock.
func (m *Machine) now() time.Time {
	f, _ := m.fault(WrongClock)
	return time.Now().Add(f.Delay)
}
