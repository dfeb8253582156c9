package controller

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/kubeprobe"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
)

// DefaultUnreachableAfter is how long a machine may be away before it is not counted on any more.
const DefaultUnreachableAfter = 60 * time.Second

// View is all that the status of a tenant and its node groups is derived from.
type View struct {
	Tenant   *cloud.Tenant
	Groups   []*cloud.NodeGroup
	Machines []*cloud.Machine
	Probe    Probe
	Now      time.Time
	// UnreachableAfter: see DefaultUnreachableAfter.
	UnreachableAfter time.Duration
}

// Probe is what the tenant's Kubernetes API and etcd said.
type Probe struct {
	// Unknown: they could not be asked for reasons of our own. What was known of them stays.
	Unknown bool
	API     kubeprobe.Result
	// Etcd lists the members as a control-plane machine answered; empty when none did.
	Etcd []machineapi.EtcdMember
}

// leaving: the machine is being removed and does not count as one of those that are wanted.
func leaving(m *cloud.Machine) bool { return m.Deleting() || m.Status.Stage == cloud.StageRemoving }

// unreachable: the machine has been away for so long that it is not counted on any more.
func (v *View) unreachable(m *cloud.Machine) bool {
	s := m.Status
	return !s.Connected && s.DisconnectedAt != nil && v.Now.Sub(*s.DisconnectedAt) >= v.UnreachableAfter
}

// healthy: the machine does what it is there for.
func (v *View) healthy(m *cloud.Machine) bool {
	return m.Status.Ready && m.Status.Stage == cloud.StageReady && !leaving(m) && !v.unreachable(m)
}

func (v *View) counts(machines []*cloud.Machine) cloud.MachineCounts {
	c := cloud.MachineCounts{Total: len(machines)}
	for _, m := range machines {
		if v.healthy(m) {
			c.Healthy++
		}
		if m.Status.Connected {
			c.Connected++
		}
	}
	return c
}

func (v *View) machinesOf(group string) []*cloud.Machine {
	var out []*cloud.Machine
	for _, m := range v.Machines {
		if m.Labels[cloud.LabelNodeGroup] == group {
			out = append(out, m)
		}
	}
	return out
}

// NodeGroup answers the group's status: its fields that the status controller writes are derived, the others are
// as they are.
func (v *View) NodeGroup(g *cloud.NodeGroup) cloud.NodeGroupStatus {
	_, name := cloud.SplitName(g.Name)
	machines := v.machinesOf(name)
	s := g.Status
	s.Conditions = slices.Clone(s.Conditions)
	s.Machines = v.counts(machines)
	s.Phase = v.groupPhase(g, machines)
	s.Ready = v.groupReady(g, machines)
	v.reportUnreachable(&s.Conditions, machines)
	return s
}

// groupPhase: what is wanted is compared with the machines that stay; those that leave hold the group back only
// when nothing else does.
func (v *View) groupPhase(g *cloud.NodeGroup, machines []*cloud.Machine) cloud.Phase {
	if g.Deleting() || v.Tenant.Deleting() {
		return cloud.PhaseRemoving
	}
	staying, healthy := 0, 0
	for _, m := range machines {
		if !leaving(m) {
			staying++
		}
		if v.healthy(m) {
			healthy++
		}
	}
	switch {
	case staying < g.Spec.Count:
		return cloud.PhaseForming
	case staying > g.Spec.Count, staying < len(machines):
		return cloud.PhaseShrinking
	case healthy < staying:
		return cloud.PhaseForming
	default:
		return cloud.PhaseActive
	}
}

// groupReady: every expected machine is healthy. Machines that leave, or are too many, do not matter.
func (v *View) groupReady(g *cloud.NodeGroup, machines []*cloud.Machine) bool {
	return !g.Deleting() && v.counts(machines).Healthy >= g.Spec.Count
}

// TenantStatus answers the tenant's status: its fields that the status controller writes are derived, the others
// are as they are.
func (v *View) TenantStatus() cloud.TenantStatus {
	s := v.Tenant.Status
	s.Conditions = slices.Clone(s.Conditions)
	s.Machines = v.counts(v.Machines)
	s.Phase = v.tenantPhase()
	if !v.Probe.Unknown {
		s.Available = v.Probe.API.Available
		s.APIReady = v.Probe.API.Ready
	}
	s.ControlPlaneReady = v.controlPlaneReady()
	s.Ready = !v.Tenant.Deleting() && s.Available && s.APIReady && s.ControlPlaneReady && v.everyGroupReady()
	s.TalosVersion = v.lowest(func(m *cloud.Machine) string { return m.Status.TalosVersion })
	s.KubernetesVersion = v.lowest(func(m *cloud.Machine) string { return m.Status.KubernetesVersion })
	v.reportUnreachable(&s.Conditions, v.Machines)
	if !v.Probe.Unknown {
		v.reportAPI(&s.Conditions)
		v.reportEtcd(&s.Conditions)
	}
	v.reportPlugins(&s.Conditions)
	return s
}

func (v *View) tenantPhase() cloud.Phase {
	if v.Tenant.Deleting() {
		return cloud.PhaseRemoving
	}
	expected, shrinking := 0, v.orphans()
	for _, g := range v.Groups {
		_, name := cloud.SplitName(g.Name)
		switch v.groupPhase(g, v.machinesOf(name)) {
		case cloud.PhaseForming:
			return cloud.PhaseForming
		case cloud.PhaseShrinking, cloud.PhaseRemoving:
			shrinking = true
		}
		if !g.Deleting() {
			expected += g.Spec.Count
		}
	}
	switch {
	case shrinking:
		return cloud.PhaseShrinking
	case expected == 0:
		// Without a node group, or with none that wants a machine, there is no cluster yet.
		return cloud.PhaseForming
	default:
		return cloud.PhaseActive
	}
}

// orphans: there are machines whose node group is gone; they are on their way out.
func (v *View) orphans() bool {
	return slices.ContainsFunc(v.Machines, func(m *cloud.Machine) bool {
		return !slices.ContainsFunc(v.Groups, func(g *cloud.NodeGroup) bool {
			_, name := cloud.SplitName(g.Name)
			return name == m.Labels[cloud.LabelNodeGroup]
		})
	})
}

// everyGroupReady: there is a machine to expect, and all that are expected are healthy.
func (v *View) everyGroupReady() bool {
	expected := 0
	for _, g := range v.Groups {
		if g.Deleting() {
			continue
		}
		_, name := cloud.SplitName(g.Name)
		if !v.groupReady(g, v.machinesOf(name)) {
			return false
		}
		expected += g.Spec.Count
	}
	return expected > 0
}

// controlPlane lists the control-plane machines that stay.
func (v *View) controlPlane() []*cloud.Machine {
	var out []*cloud.Machine
	for _, m := range v.Machines {
		if cloud.Role(m.Labels[cloud.LabelRole]) == cloud.RoleControlPlane && !leaving(m) {
			out = append(out, m)
		}
	}
	return out
}

// controlPlaneReady: there is a control-plane machine, each is healthy, none is missing, and etcd has quorum.
func (v *View) controlPlaneReady() bool {
	machines, expected := v.controlPlane(), 0
	for _, g := range v.Groups {
		if cloud.GroupRole(g) == cloud.RoleControlPlane && !g.Deleting() {
			expected += g.Spec.Count
		}
	}
	if len(machines) == 0 || len(machines) < expected {
		return false
	}
	for _, m := range machines {
		if !v.healthy(m) {
			return false
		}
	}
	if v.Probe.Unknown {
		return v.Tenant.Status.ControlPlaneReady
	}
	return v.quorum(machines)
}

// quorum: more than half of etcd's voting members are healthy machines of ours.
func (v *View) quorum(machines []*cloud.Machine) bool {
	healthy, voters := 0, 0
	for _, e := range v.Probe.Etcd {
		if e.Learner {
			continue
		}
		voters++
		if slices.ContainsFunc(machines, func(m *cloud.Machine) bool { return v.healthy(m) && isMember(e, m) }) {
			healthy++
		}
	}
	return healthy > voters/2
}

// strangers names etcd's voting members that are no machines of the tenant's, not even ones that are leaving.
func (v *View) strangers() (names []string, voters int) {
	for _, e := range v.Probe.Etcd {
		if e.Learner {
			continue
		}
		voters++
		if !slices.ContainsFunc(v.Machines, func(m *cloud.Machine) bool { return isMember(e, m) }) {
			names = append(names, fmt.Sprintf("%s (%x)", e.Name, e.ID))
		}
	}
	return names, voters
}

// isMember: the etcd member runs on the machine.
func isMember(e machineapi.EtcdMember, m *cloud.Machine) bool {
	if e.Name != "" && e.Name == m.Status.Network.Hostname {
		return true
	}
	addresses := slices.Clone(m.Status.Network.Addresses)
	if a, err := cloud.ParseMachineAddress(m.Spec.ManagementAddress); err == nil {
		addresses = append(addresses, a.Host)
	}
	for _, raw := range slices.Concat(e.PeerURLs, e.ClientURLs) {
		if u, err := url.Parse(raw); err == nil && slices.Contains(addresses, u.Hostname()) {
			return true
		}
	}
	return false
}

// lowest answers the lowest version among the machines that stay: the version that the whole tenant has reached.
func (v *View) lowest(of func(*cloud.Machine) string) string {
	var text string
	var least *version.Version
	for _, m := range v.Machines {
		parsed, err := version.ParseSemantic(of(m))
		if err != nil || leaving(m) {
			continue
		}
		if least == nil || parsed.LessThan(least) {
			text, least = of(m), parsed
		}
	}
	return text
}

// Reasons of the conditions that the status controller writes.
const (
	reasonNoAnswer     = "NoAnswer"
	reasonAllAnswer    = "AllAnswer"
	reasonNotReady     = "NotReady"
	reasonReady        = "Ready"
	reasonMembers      = "MembersUnhealthy"
	reasonQuorum       = "Quorum"
	reasonNotInstalled = "NotInstalled"
	reasonNonePending  = "NonePending"
)

// maxNamed is how many machines a message names.
const maxNamed = 5

func (v *View) reportUnreachable(conditions *[]cloud.Condition, machines []*cloud.Machine) {
	var away []string
	for _, m := range machines {
		if v.unreachable(m) && !leaving(m) {
			away = append(away, fmt.Sprintf("%s (%s): %s", m.Name, m.Spec.ManagementAddress, cmp.Or(m.Status.LastError, "it does not answer")))
		}
	}
	slices.Sort(away)
	message := strings.Join(away, "; ")
	if len(away) > maxNamed {
		message = fmt.Sprintf("%s; and %d more", strings.Join(away[:maxNamed], "; "), len(away)-maxNamed)
	}
	v.report(conditions, cloud.ConditionMachinesUnreachable, len(away) > 0, reasonNoAnswer, message, reasonAllAnswer)
}

// reportAPI says why the API is not ready, once a control-plane machine is: before that nobody expects it to be.
func (v *View) reportAPI(conditions *[]cloud.Condition) {
	wrong := !v.Tenant.Deleting() && v.Probe.API.Message != "" && slices.ContainsFunc(v.controlPlane(), v.healthy)
	v.report(conditions, cloud.ConditionAPINotReady, wrong, reasonNotReady, v.Probe.API.Message, reasonReady)
}

// reportEtcd says what is wrong with etcd: members that are nobody's, or no answer where one is to be expected.
func (v *View) reportEtcd(conditions *[]cloud.Condition) {
	strangers, voters := v.strangers()
	var message string
	switch {
	case v.Tenant.Deleting():
	case len(v.Probe.Etcd) == 0 && v.etcdExpected():
		message = v.silentEtcd()
	case len(strangers) > 0:
		message = fmt.Sprintf("%d of etcd's %d voting members are not machines of this tenant: %s; if they are gone for good, remove them (talosctl etcd remove-member)",
			len(strangers), voters, strings.Join(strangers, ", "))
	}
	v.report(conditions, cloud.ConditionEtcdUnhealthy, message != "", reasonMembers, message, reasonQuorum)
}

// etcdExpected: a control-plane machine could answer for etcd, and it was started long enough ago. Machines that are not
// healthy are no excuse: it is etcd that makes them so.
func (v *View) etcdExpected() bool {
	machines := v.controlPlane()
	answers := slices.ContainsFunc(machines, func(m *cloud.Machine) bool {
		return m.Status.Connected && m.Status.Role == cloud.RoleControlPlane
	})
	if !answers || !slices.ContainsFunc(machines, func(m *cloud.Machine) bool { return !v.healthy(m) }) {
		return answers
	}
	return slices.ContainsFunc(v.Tenant.Status.Conditions, func(c cloud.Condition) bool {
		settled := c.Status == cloud.ConditionTrue || c.Reason == reasonRemovalWaits
		return c.Type == cloud.ConditionApplied && settled && v.Now.Sub(c.LastTransitionTime) >= v.UnreachableAfter
	})
}

// silentEtcd says that nobody lists etcd's members, and what to do.
func (v *View) silentEtcd() string {
	const silent = "no control-plane machine lists etcd's members: etcd has no quorum, or does not run"
	var away []string
	for _, m := range v.controlPlane() {
		if !m.Status.Connected {
			away = append(away, fmt.Sprintf("%s (%s)", m.Name, m.Spec.ManagementAddress))
		}
	}
	if len(away) > 0 {
		return silent + "; bring these back: " + list(away)
	}
	return silent + "; see talosctl service etcd on its machines. If its members are gone for good, it takes a snapshot to recover (talosctl bootstrap --recover-from)"
}

func (v *View) reportPlugins(conditions *[]cloud.Condition) {
	pending := cloud.PendingPlugins(&v.Tenant.Spec)
	message := "this version does not install " + strings.Join(pending, ", ") + ": install it yourself"
	v.report(conditions, cloud.ConditionPluginsPending, len(pending) > 0, reasonNotInstalled, message, reasonNonePending)
}

// report sets a condition that is True while something is wrong. One that never was True does not show.
func (v *View) report(conditions *[]cloud.Condition, kind string, wrong bool, reason, message, fine string) {
	known := slices.ContainsFunc(*conditions, func(c cloud.Condition) bool { return c.Type == kind })
	switch {
	case wrong:
		cloud.SetCondition(conditions, cloud.Condition{Type: kind, Status: cloud.ConditionTrue, Reason: reason, Message: message}, v.Now)
	case known:
		cloud.SetCondition(conditions, cloud.Condition{Type: kind, Status: cloud.ConditionFalse, Reason: fine}, v.Now)
	}
}

// nextDeadline is how long it takes until a machine that is away becomes unreachable; 0 if there is none.
func (v *View) nextDeadline() time.Duration {
	var next time.Duration
	for _, m := range v.Machines {
		if m.Status.Connected || m.Status.DisconnectedAt == nil || v.unreachable(m) {
			continue
		}
		left := max(v.UnreachableAfter-v.Now.Sub(*m.Status.DisconnectedAt), time.Millisecond)
		if next == 0 || left < next {
			next = left
		}
	}
	return next
}
