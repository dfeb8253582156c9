// Package cloud holds the types and rules of the Cloud plane: tenants (Kubernetes clusters), their node groups and
// the machines that carry them. It does no I/O.
package cloud

import (
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Well-known labels. Clients set LabelRole on node groups; the others are the server's.
const (
	LabelTenant    = "rezuscloud.io/tenant"
	LabelRole      = "rezuscloud.io/role"
	LabelNodeGroup = "rezuscloud.io/node-group"
	LabelProvider  = "rezuscloud.io/provider"
)

// Well-known annotations.
const (
	// AnnotationDeleteMachine on a machine: a scale-down removes it first.
	AnnotationDeleteMachine = "rezuscloud.io/delete-machine"
	// AnnotationSlot on a machine: the index of the stable slot it fills in its node group ("0", "1", …).
	AnnotationSlot = "rezuscloud.io/slot"
)

// Finalizers, and who removes them: the controller that did the work.
const (
	FinalizerMachines = "rezuscloud.io/machines" // tenants, node groups: machines are deprovisioned
	FinalizerSecrets  = "rezuscloud.io/secrets"  // tenants: state, key and cached secrets are gone
	FinalizerTeardown = "rezuscloud.io/teardown" // machines: left etcd, reset, resource destroyed
)

// Role is a machine's role in its cluster, the value of LabelRole, and Talos' machine type.
type Role string

// The roles.
const (
	RoleControlPlane Role = "controlplane"
	RoleWorker       Role = "worker"
)

// Phase of a tenant or node group, derived from its machines.
type Phase string

// The phases.
const (
	PhaseForming   Phase = "forming"
	PhaseActive    Phase = "active"
	PhaseShrinking Phase = "shrinking"
	PhaseRemoving  Phase = "removing"
)

// ConditionStatus is True, False or Unknown.
type ConditionStatus string

// The condition statuses.
const (
	ConditionTrue    ConditionStatus = "True"
	ConditionFalse   ConditionStatus = "False"
	ConditionUnknown ConditionStatus = "Unknown"
)

// Condition types.
const (
	// ConditionApplied: the last apply made what is declared (False: reason and message of its first error).
	ConditionApplied = "Applied"
	// ConditionMachinesUnreachable: True names the machines that do not answer.
	ConditionMachinesUnreachable = "MachinesUnreachable"
	// ConditionMachinesMissing: True tells that fewer machines can be had than are declared.
	ConditionMachinesMissing = "MachinesMissing"
	// ConditionPluginsPending: True names the plugins that are declared and that this version does not install.
	ConditionPluginsPending = "PluginsPending"
	// ConditionAPINotReady: True tells why the Kubernetes API is not ready although control-plane machines are.
	ConditionAPINotReady = "APINotReady"
	// ConditionEtcdUnhealthy: True tells why etcd is not sound.
	ConditionEtcdUnhealthy = "EtcdUnhealthy"
)

// ClaimMachineAddress is the store's index of unique management addresses: a [MachineAddress] in its canonical
// form, owned by the machine's stored name. Whoever creates, readdresses or removes a machine claims and releases.
const ClaimMachineAddress = "machine-address"

// Condition is one aspect of an object's state, with its reason.
type Condition struct {
	Type               string          `json:"type"`
	Status             ConditionStatus `json:"status" enum:"True,False,Unknown"`
	Reason             string          `json:"reason,omitempty"`
	Message            string          `json:"message,omitempty"`
	LastTransitionTime time.Time       `json:"lastTransitionTime"`
}

// SetCondition sets a condition in place, keeping the transition time unless the status changes, and tells whether
// anything changed. The list stays ordered by type.
func SetCondition(list *[]Condition, c Condition, now time.Time) bool {
	for i := range *list {
		old := &(*list)[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
			return false
		}
		c.LastTransitionTime = old.LastTransitionTime
		if old.Status != c.Status {
			c.LastTransitionTime = now
		}
		*old = c
		return true
	}
	c.LastTransitionTime = now
	i := 0
	for i < len(*list) && (*list)[i].Type < c.Type {
		i++
	}
	*list = append((*list)[:i], append([]Condition{c}, (*list)[i:]...)...)
	return true
}

// InlinePatch is a Talos config patch (strategic merge or JSON6902, YAML) inside a spec.
type InlinePatch struct {
	Name  string `json:"name"`
	Patch string `json:"patch"`
}

// MachineCounts sums up the machines of a tenant or node group.
type MachineCounts struct {
	Total     int `json:"total"`
	Healthy   int `json:"healthy"`
	Connected int `json:"connected"`
}

// Kinds lists every kind of this plane, for opening a store.
func Kinds() []store.Kind {
	return []store.Kind{Tenants.Kind, NodeGroups.Kind, Machines.Kind, Providers.Kind}
}
