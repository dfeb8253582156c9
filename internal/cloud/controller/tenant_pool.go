package controller

import (
	"cmp"
	"fmt"
	"slices"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/kernel/store"
)

// pool holds the unassigned machines, best first.
type pool struct {
	machines []*cloud.Machine
	passed   []string // why others cannot be taken
}

func readPool(r store.Reader) (*pool, error) {
	all, _, err := cloud.Machines.List(r, store.Query{})
	if err != nil {
		return nil, err
	}
	return newPool(all), nil
}

// newPool is the pool among all machines.
func newPool(all []*cloud.Machine) *pool {
	p := &pool{}
	for i, m := range all {
		if cloud.Assigned(m) {
			continue
		}
		pass := func(why string) {
			p.passed = append(p.passed, fmt.Sprintf("%s (%s) %s", m.Name, m.Spec.ManagementAddress, why))
		}
		if rank(m) == unfit {
			pass(whyUnfit(m))
			continue
		}
		if o := twin(all, i); o != nil {
			pass(fmt.Sprintf("is the same machine as %s (%s)", o.Name, o.Spec.ManagementAddress))
			continue
		}
		p.machines = append(p.machines, m)
	}
	slices.SortStableFunc(p.machines, func(a, b *cloud.Machine) int { return cmp.Compare(rank(a), rank(b)) })
	return p
}

// Ranks of unassigned machines.
const (
	waiting  = iota // answers, in maintenance mode
	unproven        // was not asked yet
	unfit           // does not answer, or is in use
)

func rank(m *cloud.Machine) int {
	s := m.Status
	switch {
	case m.Deleting():
		return unfit
	case s.Connected && s.Maintenance:
		return waiting
	case !s.Connected && s.DisconnectedAt == nil && s.LastError == "" && s.Stage == "":
		return unproven
	}
	return unfit
}

// twin is another registration of the i-th machine that comes before it: an assigned one, or an earlier one.
func twin(all []*cloud.Machine, i int) *cloud.Machine {
	for j, o := range all {
		if j != i && (j < i || cloud.Assigned(o)) && sameMachine(o, all[i]) {
			return o
		}
	}
	return nil
}

// sameMachine tells whether two registrations are of one machine, which was found at two of its addresses. Vendors give
// the same hardware UUID to many machines, but no two machines have the same addresses besides.
func sameMachine(a, b *cloud.Machine) bool {
	one, two := a.Status, b.Status
	return one.Connected && two.Connected && one.Hardware.UUID != "" && one.Hardware.UUID == two.Hardware.UUID &&
		len(one.Network.Addresses) > 0 && sameSet(one.Network.Addresses, two.Network.Addresses)
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func whyUnfit(m *cloud.Machine) string {
	switch {
	case m.Deleting():
		return "is being deleted"
	case !m.Status.Connected:
		return "cannot be used: " + cmp.Or(m.Status.LastError, "it does not answer")
	}
	return "is not in maintenance mode"
}

// take removes the best machine that the claim selects from the pool.
func (p *pool) take(claim provider.Claim) *cloud.Machine {
	for i, m := range p.machines {
		if claim.Selector == nil || claim.Selector.Matches(labelSet(m.Labels)) {
			p.machines = slices.Delete(p.machines, i, i+1)
			return m
		}
	}
	return nil
}
