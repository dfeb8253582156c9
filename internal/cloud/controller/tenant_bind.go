package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/kernel/store"
)

// freeSlots answers the lowest indices that no machine of the group fills, as many as the group lacks.
func (w *world) freeSlots(name string, count int) []int {
	used := map[int]bool{}
	staying := 0
	for _, m := range w.members(name) {
		used[slotIndex(m)] = true
		if w.stays(m) {
			staying++
		}
	}
	var free []int
	for i := 0; len(free) < count-staying; i++ {
		if !used[i] {
			free = append(free, i)
		}
	}
	return free
}

// stays: the machine is not on its way out.
func (w *world) stays(m *cloud.Machine) bool {
	return !m.Deleting() && !w.record.IsRemoving(slotOf(m))
}

// openAddresses are those that a group fixes and that none of its staying machines has.
func (w *world) openAddresses(name string, claim provider.Claim) []string {
	return slices.DeleteFunc(slices.Clone(claim.Addresses), func(text string) bool {
		return slices.ContainsFunc(w.members(name), func(m *cloud.Machine) bool {
			return w.stays(m) && !misplaced(m, provider.Claim{Addresses: []string{text}})
		})
	})
}

// bindGroups binds machines to free slots, the control plane first.
func (c *Tenant) bindGroups(tx store.Tx, w *world) ([]shortage, error) {
	groups := slices.Clone(w.groups)
	slices.SortStableFunc(groups, func(a, b *cloud.NodeGroup) int {
		return cmp.Compare(cloud.GroupRole(a), cloud.GroupRole(b)) // "controlplane" < "worker"
	})
	claims := c.claims(w)
	var pool *pool
	var short []shortage
	for _, g := range groups {
		_, name := cloud.SplitName(g.Name)
		claim, ok := claims[name]
		if g.Deleting() || !ok {
			continue
		}
		free := w.freeSlots(name, g.Spec.Count)
		if len(free) == 0 {
			continue
		}
		var lack shortage
		var err error
		if len(claim.Addresses) > 0 {
			lack, err = c.bindByAddress(tx, w, g, claim, free)
		} else {
			if pool == nil {
				if pool, err = readPool(tx); err != nil {
					return nil, err
				}
			}
			lack, err = c.bindFromPool(tx, w, g, claim, free, pool)
		}
		if err != nil {
			return nil, err
		}
		if lack.have < lack.want {
			short = append(short, lack)
		}
	}
	slices.SortFunc(w.machines, func(a, b *cloud.Machine) int {
		return cmp.Or(cmp.Compare(a.Labels[cloud.LabelNodeGroup], b.Labels[cloud.LabelNodeGroup]), cmp.Compare(slotIndex(a), slotIndex(b)))
	})
	return short, nil
}

func (c *Tenant) bindFromPool(tx store.Tx, w *world, g *cloud.NodeGroup, claim provider.Claim, free []int, p *pool) (shortage, error) {
	_, name := cloud.SplitName(g.Name)
	lack := shortage{group: name, want: g.Spec.Count, have: g.Spec.Count - len(free)}
	for _, index := range free {
		m := p.take(claim)
		if m == nil {
			lack.why = "register more machines, or lower the count"
			if claim.Selector != nil && !claim.Selector.Empty() {
				lack.why = fmt.Sprintf("register more machines that match %q, or lower the count", claim.Selector)
			}
			if len(p.passed) > 0 {
				lack.why += "; not taken: " + list(p.passed)
			}
			return lack, nil
		}
		if err := c.bind(tx, w, g, m, index); err != nil {
			return lack, err
		}
		lack.have++
	}
	return lack, nil
}

func (c *Tenant) bindByAddress(tx store.Tx, w *world, g *cloud.NodeGroup, claim provider.Claim, free []int) (shortage, error) {
	_, name := cloud.SplitName(g.Name)
	lack := shortage{group: name, want: g.Spec.Count, have: g.Spec.Count - len(free)}
	var why []string
	open := w.openAddresses(name, claim)
	for i, index := range free[:min(len(free), len(open))] {
		m, problem, err := c.machineAt(tx, w, open[i], slotKey(name, index))
		if err != nil {
			return lack, err
		}
		if problem != "" {
			why = append(why, problem)
			continue
		}
		if err := c.bind(tx, w, g, m, index); err != nil {
			return lack, err
		}
		lack.have++
	}
	lack.why = strings.Join(why, "; ")
	return lack, nil
}

// machineAt answers the unassigned machine at an address, made if nobody has registered it. problem tells why it
// cannot be had.
func (c *Tenant) machineAt(tx store.Tx, w *world, text, slot string) (m *cloud.Machine, problem string, err error) {
	address, err := cloud.ParseMachineAddress(text)
	if err != nil {
		return nil, fmt.Sprintf("address %q: %v", text, err), nil
	}
	owner, err := tx.Claimed(cloud.ClaimMachineAddress, address.String())
	if errors.Is(err, store.ErrNotFound) {
		m = &cloud.Machine{Spec: cloud.MachineSpec{ManagementAddress: text}}
		m.Name = uuid.NewSHA1(uuid.NameSpaceOID, []byte(w.tenant.UID+"/"+slot+"/"+address.String())).String()
		m.Annotations = map[string]string{annotationOrigin: originConfig}
		m.Finalizers = []string{cloud.FinalizerTeardown}
		if err := tx.Claim(cloud.ClaimMachineAddress, address.String(), m.Name); err != nil {
			return nil, "", err
		}
		return m, "", cloud.Machines.Create(tx, m)
	}
	if err != nil {
		return nil, "", err
	}
	if m, err = cloud.Machines.Get(tx, owner); err != nil {
		return nil, "", err
	}
	switch {
	case m.Labels[cloud.LabelTenant] == w.tenant.Name:
		return nil, fmt.Sprintf("the machine at %s is still leaving node group %q", text, m.Labels[cloud.LabelNodeGroup]), nil
	case cloud.Assigned(m):
		return nil, fmt.Sprintf("the machine at %s belongs to tenant %q", text, m.Labels[cloud.LabelTenant]), nil
	case m.Deleting():
		return nil, fmt.Sprintf("the machine at %s is being deleted", text), nil
	}
	return m, "", nil
}

// bind gives a machine to a slot.
func (c *Tenant) bind(tx store.Tx, w *world, g *cloud.NodeGroup, m *cloud.Machine, index int) error {
	_, name := cloud.SplitName(g.Name)
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Labels[cloud.LabelTenant] = w.tenant.Name
	m.Labels[cloud.LabelNodeGroup] = name
	m.Labels[cloud.LabelRole] = string(cloud.GroupRole(g))
	m.Labels[cloud.LabelProvider] = g.Spec.ProviderClass
	m.Annotations[cloud.AnnotationSlot] = strconv.Itoa(index)
	if !slices.Contains(m.Finalizers, cloud.FinalizerTeardown) {
		m.Finalizers = append(m.Finalizers, cloud.FinalizerTeardown)
	}
	w.machines = append(w.machines, m)
	return cloud.Machines.Update(tx, m)
}
