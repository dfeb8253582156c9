package talosim

import (
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// run is the machine's life: one boot after the other.
func (m *Machine) run() {
	defer close(m.done)
	defer m.unplug()
	for m.ctx.Err() == nil {
		changed := m.notify.wait()
		m.mu.Lock()
		off := m.rec.Off
		m.mu.Unlock()
		if !off {
			m.boot()
			continue
		}
		select {
		case <-changed:
		case <-m.ctx.Done():
		}
	}
}

// boot lives from power-on to power-off.
func (m *Machine) boot() {
	m.mu.Lock()
	m.rec.Boots++
	m.mu.Unlock()
	m.saveLogged()
	select {
	case <-m.commands:
	default:
	}
	s, err := newSession(m)
	if err != nil {
		m.log.Error("cannot boot the simulated machine", "error", err)
		<-m.ctx.Done()
		return
	}
	defer s.end()
	slow, _ := m.fault(SlowBoot)
	if !sleep(s.ctx, m.sim.timing.Boot+slow.Delay) {
		return
	}
	s.emit("", &machineapi.SequenceEvent{Sequence: "boot", Action: machineapi.SequenceEvent_START})
	if config := m.Config(); config != nil {
		cfg, err := configloader.NewFromBytes(config)
		if err != nil {
			m.log.Error("the config on the simulated machine's disk cannot be read", "error", err)
			<-s.ctx.Done()
			return
		}
		s.secured(cfg)
	} else {
		s.maintain()
	}
	for {
		cmd, ok := s.await()
		if !ok {
			return
		}
		if s.execute(cmd) {
			return
		}
	}
}

// await waits for the command that ends this boot.
func (s *session) await() (command, bool) {
	crashAt := s.since.Add(s.m.sim.timing.Boot + s.m.sim.timing.Crash)
	for {
		changed := s.m.notify.wait()
		var crash <-chan time.Time
		if _, ok := s.m.fault(CrashLoop); ok {
			t := time.NewTimer(time.Until(crashAt))
			defer t.Stop()
			crash = t.C
		}
		select {
		case <-s.ctx.Done():
			return command{}, false
		case cmd := <-s.m.commands:
			return cmd, true
		case <-crash:
			return command{kind: commandCrash}, true
		case <-changed:
		}
	}
}

// execute runs the sequence of a command, and tells whether it ended the boot.
func (s *session) execute(cmd command) bool {
	switch cmd.kind {
	case commandCrash:
		s.logf("kernel", "Kernel panic - not syncing: Fatal exception in interrupt")
		return true
	case commandInstall:
		return s.install(cmd)
	case commandReboot:
		s.sequence(cmd, "reboot", runtime.MachineStageRebooting)
		s.stop(cmd, "reboot")
		return true
	case commandShutdown:
		s.sequence(cmd, "shutdown", runtime.MachineStageShuttingDown)
		s.stop(cmd, "shutdown")
		s.m.switchOff()
		return true
	case commandUpgrade:
		s.sequence(cmd, "upgrade", runtime.MachineStageUpgrading)
		s.phase(cmd, "upgrade", "upgrade", func() {
			sleep(s.ctx, s.m.sim.timing.Install)
			s.m.mu.Lock()
			if s.m.rec.Disk != nil {
				s.m.rec.Disk.TalosVersion = cmd.version
			}
			s.m.mu.Unlock()
			s.m.saveLogged()
		})
		s.stop(cmd, "upgrade")
		return true
	case commandReset:
		return s.reset(cmd)
	}
	return false
}

// install writes an applied config, and Talos if it is not there yet, to the disk, and reboots.
func (s *session) install(cmd command) bool {
	s.sequence(cmd, "install", runtime.MachineStageInstalling)
	s.closeAPI()
	s.m.mu.Lock()
	installed := s.m.rec.Disk != nil
	s.m.mu.Unlock()
	if !installed && !sleep(s.ctx, s.m.sim.timing.Install) {
		return true
	}
	s.m.mu.Lock()
	if s.m.rec.Disk == nil {
		s.m.rec.Disk = &disk{TalosVersion: cmd.version}
	}
	if s.m.rec.Disk.NodeID == "" {
		s.m.rec.Disk.NodeID = newNodeID()
	}
	s.m.rec.Disk.Config = cmd.config
	s.m.mu.Unlock()
	s.m.saveLogged()
	s.setStage(runtime.MachineStageRebooting)
	return true
}

// stop ends all services and tells that the machine goes down.
func (s *session) stop(cmd command, sequence string) {
	s.phase(cmd, "stopEverything", "stopAllServices", func() {
		s.stopServices()
		sleep(s.ctx, s.m.sim.timing.Shutdown)
	})
	s.emit(cmd.actor, &machineapi.SequenceEvent{Sequence: sequence, Action: machineapi.SequenceEvent_STOP})
	s.closeAPI()
}

// reset leaves etcd if asked, wipes the disk, and reboots into maintenance mode or switches off.
func (s *session) reset(cmd command) bool {
	before := s.currentStage()
	s.sequence(cmd, "reset", runtime.MachineStageResetting)
	if cmd.graceful && s.cluster != nil {
		var err error
		s.phase(cmd, "leave", "leaveEtcd", func() { err = s.leaveEtcd() })
		if err != nil {
			s.emit(cmd.actor, &machineapi.SequenceEvent{
				Sequence: "reset", Action: machineapi.SequenceEvent_NOOP,
				Error: &common.Error{Code: common.Code_FATAL, Message: err.Error()},
			})
			s.setStage(before)
			return false
		}
	}
	s.phase(cmd, "stopEverything", "stopAllServices", func() {
		s.stopServices()
		sleep(s.ctx, s.m.sim.timing.Shutdown)
	})
	s.phase(cmd, "reset", "resetSystemDisk", func() {
		sleep(s.ctx, s.m.sim.timing.Wipe)
	})
	s.wipe(cmd)
	if s.cluster != nil {
		s.cluster.forget()
	}
	s.emit(cmd.actor, &machineapi.SequenceEvent{Sequence: "reset", Action: machineapi.SequenceEvent_STOP})
	s.closeAPI()
	return true
}

// wipe empties the asked parts of the disk.
func (s *session) wipe(cmd command) {
	s.etcdMu.Lock()
	defer s.etcdMu.Unlock()
	s.m.mu.Lock()
	rec := s.m.rec
	rec.Resets++
	switch {
	case rec.Disk == nil:
	case cmd.wipeState && cmd.wipeEphemeral:
		rec.Disk = nil
	case cmd.wipeState:
		rec.Disk.Config, rec.Disk.NodeID = nil, ""
	case cmd.wipeEphemeral:
		rec.Disk.EtcdMember = 0
	}
	rec.Off = !cmd.reboot
	s.m.mu.Unlock()
	s.m.saveLogged()
}

func (m *Machine) switchOff() {
	m.mu.Lock()
	m.rec.Off = true
	m.mu.Unlock()
	m.saveLogged()
}

func (s *session) sequence(cmd command, name string, stage runtime.MachineStage) {
	s.logf("machined", "%s sequence: started", name)
	s.emit(cmd.actor, &machineapi.SequenceEvent{Sequence: name, Action: machineapi.SequenceEvent_START})
	s.setStageBy(cmd.actor, stage)
}

// phase runs one phase of a sequence, which has one task.
func (s *session) phase(cmd command, name, task string, do func()) {
	s.emit(cmd.actor, &machineapi.PhaseEvent{Phase: name, Action: machineapi.PhaseEvent_START})
	s.emit(cmd.actor, &machineapi.TaskEvent{Task: task, Action: machineapi.TaskEvent_START})
	do()
	s.emit(cmd.actor, &machineapi.TaskEvent{Task: task, Action: machineapi.TaskEvent_STOP})
	s.emit(cmd.actor, &machineapi.PhaseEvent{Phase: name, Action: machineapi.PhaseEvent_STOP})
}

func newBootID() string { return uuid.NewString() }
