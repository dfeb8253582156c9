package controller

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/kernel/store"
)

// Reasons of a removal.
const (
	removalScaleDown = "scale-down"
	removalDeleted   = "machine-deleted"
	removalGroup     = "group-deleted"
	removalAddress   = "address-changed"
)

// annotationOrigin marks a machine that exists only because a node group names its address.
const (
	annotationOrigin = "rezuscloud.io/origin"
	originConfig     = "provider-config"
)

// shortage is a node group that lacks machines.
type shortage struct {
	group      string
	have, want int
	why        string
}

// arrange brings the slots in line with what is declared: it puts machines that are too many on the list of removals,
// binds machines to the slots that lack one, and chooses where etcd starts. All of it is one transaction.
func (c *Tenant) arrange(ctx context.Context, name string) (w *world, short []shortage, err error) {
	err = c.cfg.Store.Update(ctx, func(tx store.Tx) (err error) {
		if w, err = readWorld(tx, name); err != nil {
			return err
		}
		if w.tenant.Deleting() {
			return nil
		}
		before := *w.record
		before.Removing = slices.Clone(before.Removing)
		if err := c.listRemovals(tx, w); err != nil {
			return err
		}
		if short, err = c.bindGroups(tx, w); err != nil {
			return err
		}
		if err := c.chooseBootstrap(tx, w); err != nil {
			return err
		}
		if err := c.writeShortage(tx, w, short); err != nil {
			return err
		}
		if before.Endpoint == w.record.Endpoint && before.Bootstrap == w.record.Bootstrap &&
			before.BootstrapNode == w.record.BootstrapNode && len(before.Removing) == len(w.record.Removing) {
			return nil
		}
		return w.record.Write(tx)
	})
	return w, short, err
}

// arranged tells whether arrange has nothing to do, so that the common case costs no transaction.
func (c *Tenant) arranged(w *world) bool {
	claims := c.claims(w)
	if len(w.removals(claims, time.Time{})) > 0 {
		return false
	}
	for _, g := range w.groups {
		_, name := cloud.SplitName(g.Name)
		if !g.Deleting() && len(w.freeSlots(name, g.Spec.Count)) > 0 {
			return false
		}
	}
	missing := slices.ContainsFunc(w.tenant.Status.Conditions, func(c cloud.Condition) bool {
		return c.Type == cloud.ConditionMachinesMissing && c.Status == cloud.ConditionTrue
	})
	chosen := w.record.Bootstrap != "" || w.record.Bootstrapped || w.bootstrapMachine() == nil
	return chosen && !missing && w.successor() == nil && w.tenant.Status.ControlPlaneEndpoint == cmp.Or(w.tenant.Spec.ControlPlaneEndpoint, w.record.Endpoint)
}

// listRemovals puts the machines to remove on the durable list and shows them as such.
func (c *Tenant) listRemovals(tx store.Tx, w *world) error {
	for _, r := range w.removals(c.claims(w), c.cfg.Now()) {
		w.record.Removing = append(w.record.Removing, r)
		m := w.machine(r.Machine)
		m.Status.Stage, m.Status.Ready, m.Status.LastError = cloud.StageRemoving, false, ""
		if err := cloud.Machines.Update(tx, m); err != nil {
			return err
		}
	}
	return nil
}

// claims are the addresses that each group fixes, by group; nil for one that takes any machine.
func (c *Tenant) claims(w *world) map[string]provider.Claim {
	out := map[string]provider.Claim{}
	for _, g := range w.groups {
		_, name := cloud.SplitName(g.Name)
		module, ok := c.cfg.Modules.Get(g.Spec.ProviderClass)
		if !ok {
			continue
		}
		if claim, err := module.Claim(g.Spec.ProviderConfig); err == nil {
			out[name] = claim
		}
	}
	return out
}

// removals decides which machines go next, beyond those that are on their way. Workers go together. Of the control
// plane one machine goes at a time, the next only when that one is gone.
func (w *world) removals(claims map[string]provider.Claim, now time.Time) []apply.Removal {
	var out []apply.Removal
	controlPlaneBusy := slices.ContainsFunc(w.record.Removing, func(r apply.Removal) bool {
		m := w.machine(r.Machine)
		return m != nil && isControlPlane(m)
	})
	for _, s := range w.surplus(claims) {
		if isControlPlane(s.machine) {
			if controlPlaneBusy {
				continue
			}
			controlPlaneBusy = true
		}
		out = append(out, apply.Removal{Slot: slotOf(s.machine), Machine: s.machine.Name, Reason: s.reason, Since: now})
	}
	return out
}

type surplus struct {
	machine *cloud.Machine
	reason  string
}

// surplus lists the machines that should go and are not on their way, in the order in which they go.
func (w *world) surplus(claims map[string]provider.Claim) []surplus {
	var out []surplus
	var groups []string
	for _, m := range w.machines {
		if g := m.Labels[cloud.LabelNodeGroup]; !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	for _, name := range groups {
		g := w.group(name)
		var stay []*cloud.Machine
		for _, m := range w.members(name) {
			switch {
			case w.record.IsRemoving(slotOf(m)):
			case m.Deleting():
				out = append(out, surplus{m, removalDeleted})
			case g == nil || g.Deleting():
				out = append(out, surplus{m, removalGroup})
			case misplaced(m, claims[name]):
				out = append(out, surplus{m, removalAddress})
			default:
				stay = append(stay, m)
			}
		}
		if g == nil || g.Deleting() || len(stay) <= g.Spec.Count {
			continue
		}
		slices.SortStableFunc(stay, func(a, b *cloud.Machine) int {
			return cmp.Or(cmp.Compare(unwanted(b), unwanted(a)), cmp.Compare(slotIndex(b), slotIndex(a)))
		})
		for _, m := range stay[:len(stay)-g.Spec.Count] {
			out = append(out, surplus{m, removalScaleDown})
		}
	}
	return out
}

// misplaced: the group fixes addresses, and the machine's is none of them. Which slot has which address does not
// matter: an address that is left out takes nobody else's machine away.
func misplaced(m *cloud.Machine, claim provider.Claim) bool {
	if len(claim.Addresses) == 0 {
		return false
	}
	is, err := cloud.ParseMachineAddress(m.Spec.ManagementAddress)
	return err != nil || !slices.ContainsFunc(claim.Addresses, func(text string) bool {
		a, err := cloud.ParseMachineAddress(text)
		return err == nil && a == is
	})
}

func unwanted(m *cloud.Machine) int {
	if v, ok := m.Annotations[cloud.AnnotationDeleteMachine]; ok && v != "false" {
		return 1
	}
	return 0
}

// chooseBootstrap fixes the machine that starts etcd, and with it the endpoint where none was declared. The choice
// stands until that machine is removed: starting etcd on a second one would make a second cluster. An endpoint whose
// machine is removed moves to another one.
func (c *Tenant) chooseBootstrap(tx store.Tx, w *world) error {
	rec := w.record
	if rec.Bootstrap == "" && !rec.Bootstrapped {
		if m := w.bootstrapMachine(); m != nil {
			rec.Bootstrap, rec.BootstrapNode = slotOf(m), m.Spec.ManagementAddress
			if rec.Endpoint == "" && w.tenant.Spec.ControlPlaneEndpoint == "" {
				rec.Endpoint = endpointAt(m)
			}
		}
	}
	if m := w.successor(); m != nil {
		rec.Endpoint = endpointAt(m)
	}
	endpoint := cmp.Or(w.tenant.Spec.ControlPlaneEndpoint, rec.Endpoint)
	if w.tenant.Status.ControlPlaneEndpoint == endpoint {
		return nil
	}
	w.tenant.Status.ControlPlaneEndpoint = endpoint
	return cloud.Tenants.Update(tx, w.tenant)
}

// endpointAt is the endpoint of a cluster at one of its machines; "" if its address is not usable.
func endpointAt(m *cloud.Machine) string {
	a, err := cloud.ParseMachineAddress(m.Spec.ManagementAddress)
	if err != nil {
		return ""
	}
	return "https://" + net.JoinHostPort(a.Host, "6443")
}

// successor is the control-plane machine that takes over the derived endpoint from one that is removed; nil while that
// one stays, or while no other could: in a cluster that lives, that is one which has joined it.
func (w *world) successor() *cloud.Machine {
	if w.record.Endpoint == "" || w.tenant.Spec.ControlPlaneEndpoint != "" {
		return nil
	}
	var best *cloud.Machine
	for _, m := range w.machines {
		switch {
		case !isControlPlane(m) || !w.stays(m):
		case endpointAt(m) == w.record.Endpoint:
			return nil
		case w.record.Bootstrapped && !w.inState(m):
		case best == nil || away(best) && !away(m):
			best = m
		}
	}
	return best
}

// bootstrapMachine is the control-plane machine with the lowest slot that answers.
func (w *world) bootstrapMachine() *cloud.Machine {
	for _, m := range w.machines {
		if isControlPlane(m) && m.Status.Connected && !m.Deleting() && !w.record.IsRemoving(slotOf(m)) {
			return m
		}
	}
	return nil
}

func list(s []string) string {
	const most = 5
	if len(s) <= most {
		return strings.Join(s, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(s[:most], ", "), len(s)-most)
}
