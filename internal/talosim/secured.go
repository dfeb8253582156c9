package talosim

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// secured brings an installed machine up: its services, its API, its part in the cluster.
func (s *session) secured(cfg config.Provider) {
	c := s.m.sim.cluster(clusterID(cfg.Machine().Security().IssuingCA()))
	s.m.mu.Lock()
	s.cfg = cfg
	s.cluster = c
	s.nodeID = s.m.rec.Disk.NodeID
	s.hostname = hostnameOf(cfg, s.nodeID)
	s.m.mu.Unlock()
	s.putHardware()
	s.putConfig()
	s.setStage(runtime.MachineStageBooting)
	s.wg.Go(s.bringUp)
	s.wg.Go(s.sync)
}

// bringUp starts the services in Talos' order, and ends the booting stage when all of them are up.
func (s *session) bringUp() {
	controlPlane := s.machineType().IsControlPlane()
	for _, id := range []string{"machined", "auditd", "syslogd", "udevd", "containerd", "dashboard"} {
		s.runService(id)
	}
	if controlPlane {
		if !s.startService("trustd") {
			return
		}
		s.m.mu.Lock()
		s.trustd = true
		s.m.mu.Unlock()
		s.m.changed()
	}
	s.wg.Go(s.apidService)
	if !s.startService("cri") {
		return
	}
	if controlPlane {
		s.wg.Go(s.etcdService)
	}
	if !s.startService("kubelet") {
		return
	}
	s.m.mu.Lock()
	s.kubelet = true
	s.m.mu.Unlock()
	s.m.changed()
	for {
		changed := s.cluster.notify.wait()
		if s.booted() {
			s.setStage(runtime.MachineStageRunning)
			s.logf("machined", "boot sequence: done")
			return
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *session) booted() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.stage == runtime.MachineStageBooting && s.apid && s.kubelet &&
		(!s.cfg.Machine().Type().IsControlPlane() || (s.etcd != 0 && s.serviceLocked("etcd").healthy))
}

func (s *session) machineType() machine.Type {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.cfg.Machine().Type()
}

// apidService opens the secured API as soon as there is a certificate for it: at once on a control plane; on a
// worker when a control plane of the same cluster signs one.
func (s *session) apidService() {
	s.setService("apid", stateWaiting, "Waiting for API certificates")
	for {
		changed := s.cluster.notify.wait()
		tlsConfig, err := s.apidTLS()
		if err == nil {
			if err = s.openAPI(tlsConfig); err != nil {
				s.m.log.Error("cannot open the simulated API", "error", err)
				return
			}
			s.m.mu.Lock()
			s.apid = true
			s.m.mu.Unlock()
			s.runService("apid")
			return
		}
		if !errors.Is(err, errNoTrustd) {
			s.m.log.Error("cannot make the simulated API's certificate", "error", err)
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return
		}
	}
}

// startAPIServer opens the Kubernetes API, once in a boot.
func (s *session) startAPIServer() {
	s.kubeUp.Do(func() {
		s.wg.Go(func() {
			if !sleep(s.ctx, s.m.sim.timing.APIServer) {
				return
			}
			server, err := s.kubeServer()
			var listener net.Listener
			if err == nil {
				listener, err = s.m.kubeGate.listen()
			}
			if err != nil {
				s.m.log.Error("cannot open the simulated Kubernetes API", "error", err)
				return
			}
			s.m.mu.Lock()
			s.apiserver = true
			s.m.mu.Unlock()
			s.m.changed()
			s.logf("kubelet", "static pod kube-apiserver-%s is running", s.nodename())
			s.wg.Go(func() {
				<-s.ctx.Done()
				server.Close()
				listener.Close()
			})
			if err := server.ServeTLS(listener, "", ""); err != nil && !errors.Is(err, http.ErrServerClosed) {
				s.m.log.Error("the simulated Kubernetes API ended", "error", err)
			}
		})
	})
}

// sync keeps what the machine learns of its cluster: members, its own Node, readiness.
func (s *session) sync() {
	for {
		changed := s.cluster.notify.wait()
		s.putCluster()
		s.publishStatus("")
		select {
		case <-changed:
		case <-s.ctx.Done():
			return
		}
		if !sleep(s.ctx, s.m.sim.timing.settle()) {
			return
		}
	}
}

// unmetConditions tells what keeps the machine from being ready at its stage.
func (s *session) unmetConditions() []runtime.UnmetCondition {
	_, wrongClock := s.m.fault(WrongClock)
	node, nodeKnown := s.node()
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.stage != runtime.MachineStageBooting && s.stage != runtime.MachineStageRunning {
		return nil
	}
	var unmet []runtime.UnmetCondition
	if wrongClock {
		unmet = append(unmet, runtime.UnmetCondition{Name: "time", Reason: "time is not synced"})
	}
	if s.cfg == nil {
		return append(unmet, runtime.UnmetCondition{Name: "services", Reason: "apid not running, machined not running, kubelet not running"})
	}
	required := []string{"apid", "machined", "kubelet"}
	controlPlane := s.cfg.Machine().Type().IsControlPlane()
	if controlPlane {
		required = append(required, "etcd", "trustd")
	}
	var problems []string
	for _, svc := range s.services {
		if svc.running() && !svc.unwatched && svc.health != "" && !svc.healthy {
			problems = append(problems, svc.id+" not healthy")
		}
	}
	for _, id := range required {
		if !slices.ContainsFunc(s.services, func(svc *service) bool { return svc.id == id && svc.running() }) {
			problems = append(problems, id+" not running")
		}
	}
	if len(problems) > 0 {
		unmet = append(unmet, runtime.UnmetCondition{Name: "services", Reason: strings.Join(problems, ", ")})
	}
	if controlPlane && s.etcd != 0 && !s.apiserver {
		unmet = append(unmet, runtime.UnmetCondition{Name: "staticPods", Reason: fmt.Sprintf("kube-system/kube-apiserver-%s not ready", s.hostname)})
	}
	switch {
	case !nodeKnown:
		unmet = append(unmet, runtime.UnmetCondition{Name: "nodeReady", Reason: fmt.Sprintf("node %q status is not available yet", s.hostname)})
	case !node.ready:
		unmet = append(unmet, runtime.UnmetCondition{Name: "nodeReady", Reason: fmt.Sprintf("node %q is not ready", s.hostname)})
	}
	return unmet
}

func (s *session) nodename() string {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.hostname
}
