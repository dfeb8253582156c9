package talosim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/cosi-project/runtime/pkg/state"
)

// Ports of a simulated machine; they are Talos' own.
const (
	TalosPort      = 50000
	KubernetesPort = 6443
)

// ErrExists is returned by Add for an address that has a machine already.
var ErrExists = errors.New("a machine with this address exists already")

// ErrClosed is returned once the Sim is closed.
var ErrClosed = errors.New("the simulation is closed")

// Options of a simulation.
type Options struct {
	// Folder keeps the disks of the machines and their clusters' etcd, so that a simulation opened on it again has
	// the same machines, each starting with a fresh boot. Empty: everything is in memory.
	Folder string
	// Logger gets the life of the machines at debug level; nil discards it.
	Logger *slog.Logger
	// Timing of the machines; the zero value is Demo.
	Timing Timing
}

// Sim is a set of simulated machines, and of the clusters that they form.
type Sim struct {
	log    *slog.Logger
	timing Timing
	disks  folder
	meta   state.CoreState
	api    *services

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	machines map[netip.Addr]*Machine
	clusters map[string]*cluster
}

// New starts a simulation. With Options.Folder the machines found there are switched on again, unless they were off.
func New(opts Options) (*Sim, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Timing == (Timing{}) {
		opts.Timing = Demo
	}
	meta, err := newMetaState()
	if err != nil {
		return nil, fmt.Errorf("register Talos resource types: %w", err)
	}
	s := &Sim{
		log:      opts.Logger,
		timing:   opts.Timing,
		disks:    folder(opts.Folder),
		meta:     meta,
		machines: map[netip.Addr]*Machine{},
		clusters: map[string]*cluster{},
	}
	s.api = newServices()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	records, clusters, err := s.disks.load()
	if err != nil {
		s.cancel()
		return nil, err
	}
	for _, c := range clusters {
		s.clusters[c.ID] = newCluster(s, c)
	}
	for _, r := range records {
		if _, err := s.start(r); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Add makes a machine and switches it on. Its API answers after Timing.Boot, in maintenance mode.
func (s *Sim) Add(spec MachineSpec) (*Machine, error) {
	r, err := newRecord(spec)
	if err != nil {
		return nil, err
	}
	return s.start(r)
}

func (s *Sim) start(r *record) (*Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if _, ok := s.machines[r.Address]; ok {
		return nil, fmt.Errorf("%s: %w", r.Address, ErrExists)
	}
	m, err := newMachine(s, r)
	if err != nil {
		return nil, err
	}
	if err := m.save(); err != nil {
		return nil, err
	}
	s.machines[r.Address] = m
	s.wg.Go(m.run)
	return m, nil
}

// Remove pulls a machine's plug and throws its disk away.
func (s *Sim) Remove(addr netip.Addr) error {
	s.mu.Lock()
	m, ok := s.machines[addr]
	delete(s.machines, addr)
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("there is no machine at %s", addr)
	}
	m.destroy()
	s.mu.Lock()
	clusters := slices.Collect(maps.Values(s.clusters))
	s.mu.Unlock()
	for _, c := range clusters {
		c.forget()
	}
	return s.disks.removeMachine(addr)
}

// Machine returns the machine at an address, nil when there is none.
func (s *Sim) Machine(addr netip.Addr) *Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machines[addr]
}

// Machines lists the machines, by address.
func (s *Sim) Machines() []*Machine {
	s.mu.Lock()
	list := make([]*Machine, 0, len(s.machines))
	for _, m := range s.machines {
		list = append(list, m)
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *Machine) int { return a.addr.Compare(b.addr) })
	return list
}

// Close pulls the plug of every machine and returns when nothing of them is left running. Disks stay in the folder.
func (s *Sim) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	return nil
}

// cluster returns the cluster of an OS certificate authority, made when it is seen first.
func (s *Sim) cluster(id string) *cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.clusters[id]
	if !ok {
		c = newCluster(s, &clusterRecord{ID: id})
		s.clusters[id] = c
	}
	return c
}
