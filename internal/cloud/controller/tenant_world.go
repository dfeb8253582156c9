package controller

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/store"
)

// world is all that a tenant's next step is decided from: one consistent view.
type world struct {
	tenant   *cloud.Tenant
	groups   []*cloud.NodeGroup // by name
	machines []*cloud.Machine   // bound to the tenant, by group and slot
	record   *apply.Record
}

func (c *Tenant) load(ctx context.Context, name string) (w *world, err error) {
	err = c.cfg.Store.View(ctx, func(r store.Reader) (err error) {
		w, err = readWorld(r, name)
		return err
	})
	return w, err
}

func readWorld(r store.Reader, name string) (*world, error) {
	w := &world{}
	var err error
	if w.tenant, err = cloud.Tenants.Get(r, name); err != nil {
		return nil, err
	}
	if w.groups, _, err = cloud.NodeGroups.List(r, store.Query{Prefix: name + "/"}); err != nil {
		return nil, err
	}
	if w.machines, _, err = cloud.Machines.List(r, store.Query{Index: "tenant", Value: name}); err != nil {
		return nil, err
	}
	slices.SortFunc(w.machines, func(a, b *cloud.Machine) int {
		return cmp.Or(cmp.Compare(a.Labels[cloud.LabelNodeGroup], b.Labels[cloud.LabelNodeGroup]), cmp.Compare(slotIndex(a), slotIndex(b)))
	})
	if w.record, err = apply.ReadRecord(r, w.tenant.UID); err != nil {
		return nil, err
	}
	w.record.Tenant = name
	return w, nil
}

// slotIndex of a bound machine; -1 without one.
func slotIndex(m *cloud.Machine) int {
	n, err := strconv.Atoi(m.Annotations[cloud.AnnotationSlot])
	if err != nil {
		return -1
	}
	return n
}

// slotOf is the key of the slot that a bound machine fills, "<group>-<index>".
func slotOf(m *cloud.Machine) string {
	return slotKey(m.Labels[cloud.LabelNodeGroup], slotIndex(m))
}

func slotKey(group string, index int) string { return group + "-" + strconv.Itoa(index) }

func isControlPlane(m *cloud.Machine) bool {
	return cloud.Role(m.Labels[cloud.LabelRole]) == cloud.RoleControlPlane
}

// group answers a node group by its own name, nil if it is gone.
func (w *world) group(name string) *cloud.NodeGroup {
	for _, g := range w.groups {
		if _, own := cloud.SplitName(g.Name); own == name {
			return g
		}
	}
	return nil
}

// members are the machines bound to a group.
func (w *world) members(group string) []*cloud.Machine {
	var out []*cloud.Machine
	for _, m := range w.machines {
		if m.Labels[cloud.LabelNodeGroup] == group {
			out = append(out, m)
		}
	}
	return out
}

func (w *world) machine(name string) *cloud.Machine {
	for _, m := range w.machines {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// inState tells whether the state holds the machine's slot.
func (w *world) inState(m *cloud.Machine) bool { return slices.Contains(w.record.Slots, slotOf(m)) }

// guard lets go what is on the durable list, and nothing else. With the last control-plane machine goes the note that
// etcd was started.
func (w *world) guard(p *plan) tofu.Guard {
	var g tofu.Guard
	if w.record.Bootstrapped && !p.bootstraps {
		g.Addresses = []string{bootstrapAddress}
	}
	for _, r := range w.record.Removing {
		if r.Ready {
			g.Slots = append(g.Slots, r.Slot)
		}
	}
	return g
}

// away: the prober has found that the machine does not answer.
func away(m *cloud.Machine) bool { return !m.Status.Connected && m.Status.DisconnectedAt != nil }
