package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

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
