package talosim

import (
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// States of a service, in Talos' words.
const (
	stateWaiting   = "Waiting"
	statePreparing = "Preparing"
	stateRunning   = "Running"
	stateFinished  = "Finished"
	stateFailed    = "Failed"
)

// service is one of Talos' services on a machine.
type service struct {
	id        string
	state     string
	healthy   bool
	health    string
	healthAt  time.Time
	history   []*machineapi.ServiceEvent
	unwatched bool // has no health check
}

// noHealthCheck names the services whose health Talos does not know.
var noHealthCheck = []string{"auditd", "dashboard", "syslogd"}

// firstLines is what services say when they start.
var firstLines = map[string]string{
	"apid":       "started apid on :50000",
	"auditd":     "audit daemon started",
	"containerd": "containerd successfully booted in 0.052s",
	"cri":        "Start cri plugin; containerd successfully booted in 0.094s",
	"dashboard":  "dashboard started on tty2",
	"etcd":       "ready to serve client requests",
	"kubelet":    "Started kubelet",
	"syslogd":    "listening on /dev/log",
	"trustd":     "started trustd on :50001",
	"udevd":      "Starting systemd-udevd",
}

func (s *service) running() bool { return s.state == stateRunning }

func (s *service) info() *machineapi.ServiceInfo {
	info := &machineapi.ServiceInfo{
		Id:     s.id,
		State:  s.state,
		Events: &machineapi.ServiceEvents{Events: slices.Clone(s.history)},
		Health: &machineapi.ServiceHealth{Unknown: s.unwatched || s.health == "", Healthy: s.healthy, LastMessage: s.health},
	}
	if !s.healthAt.IsZero() {
		info.Health.LastChange = timestamppb.New(s.healthAt)
	}
	return info
}

// serviceInfos lists the services by name.
func (s *session) serviceInfos() []*machineapi.ServiceInfo {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	var list []*machineapi.ServiceInfo
	for _, svc := range s.services {
		list = append(list, svc.info())
	}
	slices.SortFunc(list, func(a, b *machineapi.ServiceInfo) int { return strings.Compare(a.Id, b.Id) })
	return list
}

func (s *session) serviceLocked(id string) *service {
	for _, svc := range s.services {
		if svc.id == id {
			return svc
		}
	}
	svc := &service{id: id, unwatched: slices.Contains(noHealthCheck, id)}
	s.services = append(s.services, svc)
	return svc
}

func (s *session) hasService(id string) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return slices.ContainsFunc(s.services, func(svc *service) bool { return svc.id == id })
}

var serviceActions = map[string]machineapi.ServiceStateEvent_Action{
	stateWaiting:   machineapi.ServiceStateEvent_WAITING,
	statePreparing: machineapi.ServiceStateEvent_PREPARING,
	stateRunning:   machineapi.ServiceStateEvent_RUNNING,
	stateFinished:  machineapi.ServiceStateEvent_FINISHED,
	stateFailed:    machineapi.ServiceStateEvent_FAILED,
}

// setService brings a service into a state and tells everyone.
func (s *session) setService(id, state, msg string) {
	now := s.m.now()
	s.m.mu.Lock()
	svc := s.serviceLocked(id)
	if svc.state == state || (s.stopping && state != stateFinished) {
		s.m.mu.Unlock()
		return
	}
	svc.state = state
	if state != stateRunning {
		svc.healthy, svc.health, svc.healthAt = false, "", time.Time{}
	}
	svc.history = append(svc.history, &machineapi.ServiceEvent{Msg: msg, State: state, Ts: timestamppb.New(now)})
	if len(svc.history) > 10 {
		svc.history = svc.history[1:]
	}
	health := svc.info().Health
	s.m.mu.Unlock()
	s.logf("machined", "service[%s](%s): %s", id, state, msg)
	if line, ok := firstLines[id]; ok && state == stateRunning {
		s.logf(id, "%s", line)
	}
	s.emit("", &machineapi.ServiceStateEvent{Service: id, Action: serviceActions[state], Message: msg, Health: health})
	s.putService(id)
	s.m.changed()
}

// setHealth records the outcome of a health check, if it is news.
func (s *session) setHealth(id string, healthy bool, msg string) {
	s.m.mu.Lock()
	svc := s.serviceLocked(id)
	if svc.unwatched || svc.state != stateRunning || (svc.health == msg && svc.healthy == healthy) {
		s.m.mu.Unlock()
		return
	}
	svc.healthy, svc.health, svc.healthAt = healthy, msg, s.m.timeLocked()
	s.m.mu.Unlock()
	s.logf("machined", "service[%s](%s): %s", id, stateRunning, msg)
	s.putService(id)
	s.m.changed()
}

func (m *Machine) timeLocked() time.Time { return time.Now().Add(m.faults[WrongClock].Delay) }

// putService publishes the resource of a service: it exists while the service runs.
func (s *session) putService(id string) {
	s.m.mu.Lock()
	svc := *s.serviceLocked(id)
	s.m.mu.Unlock()
	r := v1alpha1.NewService(id)
	if !svc.running() {
		s.drop(r.Metadata())
		return
	}
	r.TypedSpec().Running = true
	r.TypedSpec().Healthy = svc.healthy
	r.TypedSpec().Unknown = svc.unwatched || svc.health == ""
	s.put(r)
}

// startService starts a service that works, taking Timing.Service; false when the boot ended meanwhile.
func (s *session) startService(id string) bool {
	s.setService(id, statePreparing, "Running pre state")
	if !sleep(s.ctx, s.m.sim.timing.Service) {
		return false
	}
	s.runService(id)
	return true
}

func (s *session) runService(id string) {
	s.setService(id, stateRunning, "Started task "+id)
	s.setHealth(id, true, "Health check successful")
}

// stopServices ends all services but machined and those that the API needs to say good-bye.
func (s *session) stopServices() {
	s.m.mu.Lock()
	var ids []string
	for _, svc := range s.services {
		if svc.id != "machined" && svc.id != "apid" && svc.state != stateFinished {
			ids = append(ids, svc.id)
		}
	}
	s.stopping = true
	s.etcd, s.kubelet, s.apiserver, s.trustd = 0, false, false, false
	s.m.mu.Unlock()
	slices.Reverse(ids)
	for _, id := range ids {
		s.setService(id, stateFinished, "Service finished successfully")
	}
}
