package controller

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
)

// complainAfter is how long a configured machine may take to become ready before what it waits for is shown as its
// last error.
const complainAfter = 60 * time.Second

// identity is what makes the answer of a probe the machine's own.
type identity struct{ uid, tenant, address string }

func identityOf(m *cloud.Machine) identity {
	return identity{m.UID, m.Labels[cloud.LabelTenant], m.Spec.ManagementAddress}
}

// outcome of a probe; one of the fields is set.
type outcome struct {
	seen *machineapi.Observation
	// upToDate goes with seen: the machine's configuration is the generated one.
	upToDate bool
	// locked: the machine demands a client certificate, and its tenant's secrets are not known yet.
	locked bool
	err    error
}

// owned: the machine's stage, ready and last error are those of the controller that removes or upgrades it.
func owned(m *cloud.Machine) bool {
	if m.Labels[cloud.LabelTenant] == "" && !m.Deleting() {
		return false
	}
	return m.Status.Stage == cloud.StageRemoving || m.Status.Stage == cloud.StageUpdating
}

// nextStatus is the machine's status after a probe. Unready is how long the machine has been configured without
// being ready.
func nextStatus(m *cloud.Machine, out outcome, now time.Time, unreachableAfter, unready time.Duration) cloud.MachineStatus {
	s := m.Status
	switch {
	case out.err != nil:
		s.Connected = false
		if s.DisconnectedAt == nil {
			at := now.UTC().Truncate(time.Second)
			s.DisconnectedAt = &at
		}
		s.LastError = plain(out.err)
		if now.Sub(*s.DisconnectedAt) >= unreachableAfter {
			s.Ready = false
		}
	case out.locked:
		s.Connected, s.DisconnectedAt, s.LastError = true, nil, ""
		s.Stage, s.Ready, s.Maintenance = cloud.StageConfiguring, false, false
	default:
		s = observed(s, out, unready)
		if relapsed(m, s) {
			s.LastError = relapse
		}
	}
	if owned(m) {
		s.Stage, s.Ready, s.LastError = m.Status.Stage, m.Status.Ready, m.Status.LastError
	}
	return s
}

// relapse is what is told of a machine that lost its configuration.
const relapse = "it is in maintenance mode, though it was configured: it was reset, or replaced by another; delete it to have another machine in its place"

// relapsed: the machine was configured for its tenant, and then in maintenance mode.
func relapsed(m *cloud.Machine, now cloud.MachineStatus) bool {
	if !now.Maintenance || !cloud.Assigned(m) {
		return false
	}
	return m.Status.LastError == relapse || !m.Status.Maintenance && m.Status.Role != ""
}

// observed is the status that a machine's own answer leads to.
func observed(s cloud.MachineStatus, out outcome, unready time.Duration) cloud.MachineStatus {
	o := out.seen
	s.Connected, s.DisconnectedAt, s.LastError = true, nil, ""
	s.Stage, s.Ready, s.Maintenance = o.Stage, o.Ready, o.Maintenance
	s.Role, s.KubernetesVersion = o.Role, o.KubernetesVersion
	s.TalosVersion = o.TalosVersion
	s.ConfigUpToDate = out.upToDate
	s.Hardware, s.Network, s.Schematic = o.Hardware, o.Network, o.Schematic
	s.BootID = o.BootID
	if !o.Ready && !o.Maintenance && unready >= complainAfter && len(o.Unmet) > 0 {
		s.LastError = "not ready: " + strings.Join(o.Unmet, "; ")
	}
	return s
}

// plain is an error's text for a machine's own status: it needs no address and no verb.
func plain(err error) string {
	if e, ok := errors.AsType[*machineapi.Error](err); ok {
		return cmp.Or(e.Message, e.Error())
	}
	return err.Error()
}
