package talosim

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// session is one boot of a machine: everything that a power cut forgets.
type session struct {
	m      *Machine
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	boot   time.Time // by the machine's clock
	since  time.Time // by ours
	bootID string

	res   state.State
	cosi  *cosiserver.State
	putMu sync.Mutex
	// statusMu is held from reading the stage until it is published.
	statusMu sync.Mutex
	events   *eventLog
	logs     *logBook

	// streams ends before ctx, when the API is closed in order.
	streams    context.Context
	endStreams context.CancelFunc

	apiMu     sync.Mutex
	api       *grpc.Server
	apiClosed bool
	kubeUp    sync.Once
	// etcdMu is held while membership and data directory change together.
	etcdMu sync.Mutex

	// Guarded by Machine.mu.
	cluster   *cluster
	cfg       config.Provider
	cfgRev    int
	rollback  *time.Timer
	nodeID    string
	hostname  string
	stage     runtime.MachineStage
	ready     bool
	unmet     []runtime.UnmetCondition
	services  []*service
	trustd    bool
	apid      bool
	etcd      uint64
	kubelet   bool
	apiserver bool
	ended     bool
	stopping  bool
	etcdLeft  bool
}

func newSession(m *Machine) (*session, error) {
	s := &session{
		m: m, boot: m.now(), since: time.Now(), bootID: newBootID(), events: newEventLog(), logs: newLogBook(),
		stage: runtime.MachineStageBooting,
	}
	s.ctx, s.cancel = context.WithCancel(m.ctx)
	s.streams, s.endStreams = context.WithCancel(s.ctx)
	s.res, s.cosi = newResources(m.sim.meta)
	m.mu.Lock()
	s.hostname = maintenanceHostname(m.rec)
	m.session = s
	m.mu.Unlock()
	m.log.Debug("power on", "boot", s.bootID)
	return s, nil
}

// end is the power cut.
func (s *session) end() {
	s.m.mu.Lock()
	s.ended = true
	if s.rollback != nil {
		s.rollback.Stop()
	}
	s.m.mu.Unlock()
	s.cancel()
	s.events.close()
	s.logs.close()
	s.cutAPI()
	s.wg.Wait()
	s.m.mu.Lock()
	s.m.session = nil
	s.m.mu.Unlock()
	s.m.log.Debug("power off", "boot", s.bootID)
	if s.cluster != nil {
		s.cluster.notify.broadcast()
	}
	s.m.notify.broadcast()
}

func (s *session) currentStage() runtime.MachineStage {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.stage
}

func (s *session) setStage(stage runtime.MachineStage) { s.setStageBy("", stage) }

func (s *session) setStageBy(actor string, stage runtime.MachineStage) {
	s.m.mu.Lock()
	s.stage = stage
	s.m.mu.Unlock()
	s.publishStatus(actor)
	s.m.changed()
}

// publishStatus recomputes readiness and publishes the machine's status, if it changed.
func (s *session) publishStatus(actor string) {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	unmet := s.unmetConditions()
	s.m.mu.Lock()
	stage := s.stage
	s.ready, s.unmet = len(unmet) == 0, unmet
	s.m.mu.Unlock()
	r := runtime.NewMachineStatus()
	r.TypedSpec().Stage = stage
	r.TypedSpec().Status.Ready = len(unmet) == 0
	r.TypedSpec().Status.UnmetConditions = unmet
	if !s.put(r) {
		return
	}
	ev := &machineapi.MachineStatusEvent{
		Stage:  machineapi.MachineStatusEvent_MachineStage(stage),
		Status: &machineapi.MachineStatusEvent_MachineStatus{Ready: len(unmet) == 0},
	}
	for _, u := range unmet {
		ev.Status.UnmetConditions = append(ev.Status.UnmetConditions,
			&machineapi.MachineStatusEvent_MachineStatus_UnmetCondition{Name: u.Name, Reason: u.Reason})
	}
	s.emit(actor, ev)
}

func (s *session) emit(actor string, payload proto.Message) { s.events.publish(actor, payload) }

func (s *session) logf(service, format string, args ...any) {
	s.logs.add(service, s.m.now(), fmt.Sprintf(format, args...))
}

// put creates or updates a resource, and tells whether anything changed.
func (s *session) put(r resource.Resource) bool {
	s.putMu.Lock()
	defer s.putMu.Unlock()
	ctx := context.Background()
	old, err := s.res.Get(ctx, r.Metadata())
	if state.IsNotFoundError(err) {
		err = s.res.Create(ctx, r)
	} else if err == nil {
		if reflect.DeepEqual(old.Spec(), r.Spec()) {
			return false
		}
		r.Metadata().SetVersion(old.Metadata().Version())
		r.Metadata().SetCreated(old.Metadata().Created())
		err = s.res.Update(ctx, r)
	}
	if err != nil {
		s.m.log.Error("cannot publish a simulated resource", "resource", r.Metadata().String(), "error", err)
	}
	return err == nil
}

// drop removes a resource, if it is there.
func (s *session) drop(md resource.Pointer) {
	s.putMu.Lock()
	defer s.putMu.Unlock()
	if err := s.res.Destroy(context.Background(), md); err != nil && !state.IsNotFoundError(err) {
		s.m.log.Error("cannot remove a simulated resource", "resource", md.ID(), "error", err)
	}
}
