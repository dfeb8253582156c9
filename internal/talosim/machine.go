package talosim

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/google/uuid"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Machine is one simulated machine.
type Machine struct {
	sim       *Sim
	addr      netip.Addr
	log       *slog.Logger
	talosGate *gate
	kubeGate  *gate
	commands  chan command
	ctx       context.Context
	unplug    context.CancelFunc
	done      chan struct{}

	saveMu  sync.Mutex
	mu      sync.Mutex
	rec     *record
	faults  map[FaultKind]Fault
	reach   reach
	session *session
	removed bool
	notify  notifier
}

func newMachine(s *Sim, r *record) (*Machine, error) {
	m := &Machine{
		sim:       s,
		addr:      r.Address,
		log:       s.log.With("machine", r.Address.String()),
		talosGate: newGate(r.Address, TalosPort),
		kubeGate:  newGate(r.Address, KubernetesPort),
		commands:  make(chan command, 1),
		rec:       r,
		faults:    map[FaultKind]Fault{},
	}
	for _, port := range []uint16{TalosPort, KubernetesPort} {
		if !free(r.Address, port) {
			return nil, fmt.Errorf("%s:%d is in use; choose another address for the simulated machine", r.Address, port)
		}
	}
	m.ctx, m.unplug = context.WithCancel(s.ctx)
	m.done = make(chan struct{})
	return m, nil
}

// destroy ends the machine for good; nothing is saved any more.
func (m *Machine) destroy() {
	m.mu.Lock()
	m.removed = true
	m.mu.Unlock()
	m.unplug()
	<-m.done
}

// Address is the machine's own loopback address.
func (m *Machine) Address() netip.Addr { return m.addr }

// State is what an observer with X-ray eyes sees of a machine.
type State struct {
	Address netip.Addr `json:"address"`
	UUID    string     `json:"uuid"`
	// Stage is Talos' machine stage, or "off".
	Stage string `json:"stage"`
	Ready bool   `json:"ready"`
	// Role is "controlplane", "worker", or "" without a config.
	Role         string `json:"role,omitempty"`
	Hostname     string `json:"hostname"`
	TalosVersion string `json:"talosVersion"`
	Installed    bool   `json:"installed"`
	// Cluster is the fingerprint of the OS certificate authority; machines of one cluster share it.
	Cluster     string `json:"cluster,omitempty"`
	ClusterName string `json:"clusterName,omitempty"`
	// Endpoint of the cluster, from the config in force.
	Endpoint string `json:"endpoint,omitempty"`
	// EtcdMember is the id of the member whose data is on the disk, in hexadecimal.
	EtcdMember string  `json:"etcdMember,omitempty"`
	BootID     string  `json:"bootId,omitempty"`
	Boots      int     `json:"boots"`
	Applies    int     `json:"applies"`
	Resets     int     `json:"resets"`
	Faults     []Fault `json:"faults,omitempty"`
}

// State tells how the machine is right now.
func (m *Machine) State() State {
	faults := m.Faults()
	m.mu.Lock()
	defer m.mu.Unlock()
	st := State{
		Address: m.addr, UUID: m.rec.UUID, Stage: "off", TalosVersion: m.versionLocked(), Installed: m.rec.Disk != nil,
		Boots: m.rec.Boots, Applies: m.rec.Applies, Resets: m.rec.Resets, Faults: faults,
	}
	if m.rec.Disk != nil && m.rec.Disk.EtcdMember != 0 {
		st.EtcdMember = fmt.Sprintf("%016x", m.rec.Disk.EtcdMember)
	}
	if s := m.session; s != nil {
		st.Stage, st.Ready, st.BootID, st.Hostname = s.stage.String(), s.ready, s.bootID, s.hostname
		if s.cfg != nil && s.cluster != nil {
			st.Role = s.cfg.Machine().Type().String()
			st.Cluster, st.ClusterName, st.Endpoint = s.cluster.id, s.cfg.Cluster().Name(), s.cfg.Cluster().Endpoint().String()
		}
	}
	return st
}

func (m *Machine) versionLocked() string {
	if m.rec.Disk != nil {
		return m.rec.Disk.TalosVersion
	}
	return m.rec.TalosVersion
}

// Config is the persistent machine config on the disk, nil without one.
func (m *Machine) Config() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rec.Disk == nil {
		return nil
	}
	return m.rec.Disk.Config
}

// PowerOn presses the button of a machine that is off.
func (m *Machine) PowerOn() {
	m.mu.Lock()
	m.rec.Off = false
	m.mu.Unlock()
	m.saveLogged()
	m.notify.broadcast()
}

// PowerCycle pulls the plug and puts it back: a boot without any shutdown before it.
func (m *Machine) PowerCycle() {
	m.mu.Lock()
	s := m.session
	m.mu.Unlock()
	if s != nil {
		s.cancel()
	}
}

// PowerOff pulls the plug. The machine stays off until PowerOn, over restarts of the simulation too.
func (m *Machine) PowerOff() {
	m.mu.Lock()
	m.rec.Off = true
	m.mu.Unlock()
	m.saveLogged()
	m.PowerCycle()
}

type commandKind int

const (
	commandCrash commandKind = iota
	commandInstall
	commandReboot
	commandShutdown
	commandReset
	commandUpgrade
)

// command ends the present boot.
type command struct {
	kind  commandKind
	actor string
	// install
	config []byte
	// reset
	graceful, reboot, wipeState, wipeEphemeral bool
	// upgrade
	version string
}

func newActor() string { return uuid.NewString() }

// submit hands a command to the machine; one at a time.
func (m *Machine) submit(c command) error {
	select {
	case m.commands <- c:
		return nil
	default:
		return status.Error(codes.FailedPrecondition, "locked: another sequence is in progress")
	}
}

// view is what a machine shows to the others of its cluster.
type view struct {
	m        *Machine
	cluster  *cluster
	addr     netip.Addr
	hostname string
	nodeID   string
	uuid     string
	role     machine.Type
	version  string
	// online: the others reach it.
	online bool
	// trustd signs certificates for workers with this authority, once it runs.
	trustd *x509.PEMEncodedCertificateAndKey
	token  string
	// etcd is the id of the member that runs, 0 when none does.
	etcd      uint64
	kubelet   bool
	apiserver bool
	session   *session
}

// view tells what the machine shows, if it is booted with a config.
func (m *Machine) view() (view, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.session
	if s == nil || s.cluster == nil {
		return view{}, false
	}
	v := view{
		m: m, cluster: s.cluster, addr: m.addr, hostname: s.hostname, nodeID: s.nodeID, uuid: m.rec.UUID,
		role: s.cfg.Machine().Type(), version: m.versionLocked(), online: m.reach == reachOpen && !s.ended,
		token: s.cfg.Machine().Security().Token(), etcd: s.etcd, kubelet: s.kubelet, apiserver: s.apiserver, session: s,
	}
	if s.trustd {
		v.trustd = s.cfg.Machine().Security().IssuingCA()
	}
	return v, true
}

// changed wakes who waits for this machine, or for anything in its cluster.
func (m *Machine) changed() {
	m.mu.Lock()
	var c *cluster
	if m.session != nil {
		c = m.session.cluster
	}
	m.mu.Unlock()
	m.notify.broadcast()
	if c != nil {
		c.notify.broadcast()
	}
}

func (m *Machine) etcdData() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rec.Disk == nil {
		return 0
	}
	return m.rec.Disk.EtcdMember
}

func (m *Machine) setEtcdData(id uint64) {
	m.mu.Lock()
	if m.rec.Disk != nil {
		m.rec.Disk.EtcdMember = id
	}
	m.mu.Unlock()
	m.saveLogged()
}

func (m *Machine) save() error {
	m.saveMu.Lock()
	defer m.saveMu.Unlock()
	m.mu.Lock()
	r := *m.rec
	if r.Disk != nil {
		d := *r.Disk
		r.Disk = &d
	}
	removed := m.removed
	m.mu.Unlock()
	if removed {
		return nil
	}
	return m.sim.disks.saveMachine(&r)
}

func (m *Machine) saveLogged() {
	if err := m.save(); err != nil {
		m.log.Error("cannot save the simulated machine's disk", "error", err)
	}
}
