package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
	"freehold.dev/freehold/internal/kernel/store"
)

// removalRetry is how often a removal that waits for something is looked at again.
const removalRetry = 5 * time.Second

// prepareRemovals makes the machines on the list ready to be taken away: a control-plane machine leaves etcd first,
// and only if the others keep quorum. It answers what is being waited for.
func (c *Tenant) prepareRemovals(ctx context.Context, w *world) (waits []string, err error) {
	ready := map[string]bool{} // by slot, where it is news
	for _, r := range w.record.Removing {
		m := w.machine(r.Machine)
		if m == nil || r.Ready && !c.mayReturn(w, m) {
			continue
		}
		why, err := c.prepareRemoval(ctx, w, m)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			why = err.Error()
		}
		if why != "" {
			waits = append(waits, fmt.Sprintf("removing %s (machine %s at %s) waits: %s", r.Slot, m.Name, m.Spec.ManagementAddress, why))
		}
		if r.Ready != (why == "") {
			ready[r.Slot] = why == ""
		}
	}
	if len(ready) == 0 {
		return waits, nil
	}
	return waits, c.updateRecord(ctx, w.tenant, func(rec *apply.Record) {
		for i := range rec.Removing {
			if v, ok := ready[rec.Removing[i].Slot]; ok {
				rec.Removing[i].Ready = v
			}
		}
	})
}

// mayReturn tells whether a machine could be in etcd again after it was made ready: it still has a configuration, as
// far as is known, and every boot makes it join. So it is looked at again before each run that takes it away.
func (c *Tenant) mayReturn(w *world, m *cloud.Machine) bool {
	return isControlPlane(m) && w.record.Bootstrapped && w.inState(m)
}

// prepareRemoval answers "" when the machine may be taken away, else what that waits for.
func (c *Tenant) prepareRemoval(ctx context.Context, w *world, m *cloud.Machine) (string, error) {
	heirs, why := w.heirs(m)
	if why != "" {
		return why, nil
	}
	if len(heirs) == 0 { // no other holds the cluster's data, or it never did
		return "", c.resetStray(ctx, w, m)
	}
	if why, err := c.leaveEtcd(ctx, w, m, heirs, away(m)); why != "" || err != nil {
		return why, err
	}
	err := c.resetStray(ctx, w, m)
	if w.inState(m) && !away(m) {
		// A boot would make it join again, and a member that is wiped then counts against quorum for ever.
		err = c.cfg.Members.Retire(ctx, w.tenant.Name, m)
	}
	if err != nil {
		return "", err
	}
	return c.leaveEtcd(ctx, w, m, heirs, true)
}

// heirs are the control-plane machines that keep the cluster's data when one is taken away: none for a worker, before
// etcd was started, and when the cluster ends with the machine. It answers why the machine has to wait for one.
func (w *world) heirs(m *cloud.Machine) (heirs []*cloud.Machine, why string) {
	if !isControlPlane(m) || !w.record.Bootstrapped {
		return nil, ""
	}
	var joins *cloud.Machine
	for _, o := range w.machines {
		switch {
		case !isControlPlane(o) || o.Name == m.Name:
		case w.inState(o):
			heirs = append(heirs, o)
		case w.stays(o):
			joins = o
		}
	}
	if len(heirs) == 0 && joins != nil {
		// etcd would end with it, and its successor start an empty one.
		return nil, fmt.Sprintf("it holds the cluster's data until machine %s at %s has joined", joins.Name, joins.Spec.ManagementAddress)
	}
	return heirs, ""
}

// leaveEtcd takes a machine out of etcd. It does nothing that would leave the other members without quorum. One that
// is silent or wiped cannot leave by itself; the others are told to forget it.
func (c *Tenant) leaveEtcd(ctx context.Context, w *world, m *cloud.Machine, heirs []*cloud.Machine, gone bool) (string, error) {
	seen := c.survey(ctx, w.tenant.Name, heirs)
	if seen.asked == nil {
		return "no other control-plane machine answers for etcd; bring one back first", nil
	}
	i := slices.IndexFunc(seen.members, func(e member) bool { return isMember(e, m) })
	if i < 0 {
		return "", nil
	}
	left := slices.Delete(slices.Clone(seen.members), i, i+1)
	voters, healthy := seen.quorum(left)
	switch {
	case voters == 0:
		return "no other control-plane machine has joined etcd yet", nil
	case healthy <= voters/2:
		return fmt.Sprintf("of the %d etcd members that would be left only %d are healthy, and that is no quorum; bring the others back first", voters, healthy), nil
	}
	if !gone {
		err := c.cfg.Members.Leave(ctx, w.tenant.Name, m)
		if !errors.Is(err, errSilent) && !errors.Is(err, machineapi.ErrUnauthorized) {
			return "", err
		}
	}
	return "", c.cfg.Members.Remove(ctx, w.tenant.Name, seen.asked, seen.members[i].ID)
}

// survey is what the control-plane machines say of etcd.
type survey struct {
	members []member
	asked   *cloud.Machine   // one that answered
	answer  []*cloud.Machine // those that answered, and so see quorum
}

// quorum counts the voting members, and how many of them are on machines that answered: one that has yet to join
// answers as well.
func (s survey) quorum(members []member) (voters, healthy int) {
	for _, e := range members {
		if e.Learner {
			continue
		}
		voters++
		if slices.ContainsFunc(s.answer, func(m *cloud.Machine) bool { return isMember(e, m) }) {
			healthy++
		}
	}
	return voters, healthy
}

func (c *Tenant) survey(ctx context.Context, tenant string, machines []*cloud.Machine) survey {
	var s survey
	for _, o := range machines {
		if away(o) {
			continue
		}
		members, err := c.cfg.Members.List(ctx, tenant, o)
		if err != nil {
			continue
		}
		if s.answer = append(s.answer, o); s.asked == nil {
			s.asked, s.members = o, members
		}
	}
	return s
}

// resetStray resets a machine that a run may have configured without recording it: the run was killed in between. A
// machine in the state is none, and left to the apply.
func (c *Tenant) resetStray(ctx context.Context, w *world, m *cloud.Machine) error {
	if w.inState(m) || !slices.Contains(w.record.Touched, slotOf(m)) {
		return nil
	}
	if away(m) {
		return errSilent
	}
	if err := c.cfg.Members.ResetIfOurs(ctx, w.tenant.Name, m); err != nil {
		return fmt.Errorf("reset it: %w", err)
	}
	return nil
}

// release gives back the machines that were removed: their slots are in the state no longer.
func (c *Tenant) release(ctx context.Context, w *world) error {
	gone := func(rec *apply.Record, r apply.Removal) bool {
		return r.Ready && !slices.Contains(rec.Slots, r.Slot)
	}
	if !slices.ContainsFunc(w.record.Removing, func(r apply.Removal) bool { return gone(w.record, r) }) {
		return c.finishGroups(ctx, w)
	}
	err := c.cfg.Store.Update(ctx, func(tx store.Tx) (err error) {
		if w, err = readWorld(tx, w.tenant.Name); err != nil {
			return err
		}
		for _, r := range slices.Clone(w.record.Removing) {
			if !gone(w.record, r) {
				continue
			}
			if m := w.machine(r.Machine); m != nil && slotOf(m) == r.Slot {
				if err := unbind(tx, m); err != nil {
					return err
				}
			}
			w.record.Forget(r.Slot)
		}
		if err := w.record.Write(tx); err != nil {
			return err
		}
		w, err = readWorld(tx, w.tenant.Name)
		return err
	})
	if err != nil {
		return err
	}
	return c.finishGroups(ctx, w)
}

// unbind makes a machine an unassigned one again. One that is being deleted goes; so does one that was made only
// because a node group names its address.
func unbind(tx store.Tx, m *cloud.Machine) error {
	for _, l := range []string{cloud.LabelTenant, cloud.LabelNodeGroup, cloud.LabelRole, cloud.LabelProvider} {
		delete(m.Labels, l)
	}
	delete(m.Annotations, cloud.AnnotationSlot)
	delete(m.Annotations, cloud.AnnotationDeleteMachine)
	m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == cloud.FinalizerTeardown })
	goes := m.Deleting() && len(m.Finalizers) == 0
	if !goes {
		// What it was is over; what it is the prober finds out.
		s := &m.Status
		s.Stage, s.Ready, s.Role, s.KubernetesVersion, s.ConfigUpToDate, s.LastError = cloud.StageInitializing, false, "", "", false, ""
		s.Maintenance = false
	}
	if err := cloud.Machines.Update(tx, m); err != nil {
		return err
	}
	if !goes && m.Annotations[annotationOrigin] == originConfig {
		if _, err := tx.Delete(cloud.Machines.Kind.Name, m.Name, 0); err != nil {
			return err
		}
		goes = len(m.Finalizers) == 0
	}
	if !goes {
		return nil
	}
	if a, err := cloud.ParseMachineAddress(m.Spec.ManagementAddress); err == nil {
		return tx.Release(cloud.ClaimMachineAddress, a.String())
	}
	return nil
}

// finishGroups lets go of node groups that are being deleted and have no machines left.
func (c *Tenant) finishGroups(ctx context.Context, w *world) error {
	var done []string
	for _, g := range w.groups {
		_, name := cloud.SplitName(g.Name)
		if g.Deleting() && len(w.members(name)) == 0 && slices.Contains(g.Finalizers, cloud.FinalizerMachines) {
			done = append(done, g.Name)
		}
	}
	if len(done) == 0 {
		return nil
	}
	return c.cfg.Store.Update(ctx, func(tx store.Tx) error {
		for _, stored := range done {
			if err := dropGroupFinalizer(tx, stored); err != nil {
				return err
			}
		}
		return nil
	})
}

func dropGroupFinalizer(tx store.Tx, stored string) error {
	g, err := cloud.NodeGroups.Get(tx, stored)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	tenant, name := cloud.SplitName(stored)
	bound, err := tx.List(store.Query{Kind: cloud.Machines.Kind.Name, Index: "group", Value: cloud.SubName(tenant, name)})
	if err != nil || len(bound.Objects) > 0 {
		return err
	}
	g.Finalizers = slices.DeleteFunc(g.Finalizers, func(f string) bool { return f == cloud.FinalizerMachines })
	return cloud.NodeGroups.Update(tx, g)
}

// updateRecord changes the tenant's record, unless the tenant is another one by now.
func (c *Tenant) updateRecord(ctx context.Context, t *cloud.Tenant, f func(*apply.Record)) error {
	return c.cfg.Store.Update(ctx, func(tx store.Tx) error {
		now, err := cloud.Tenants.Get(tx, t.Name)
		if errors.Is(err, store.ErrNotFound) || err == nil && now.UID != t.UID {
			return nil
		}
		if err != nil {
			return err
		}
		rec, err := apply.ReadRecord(tx, t.UID)
		if err != nil {
			return err
		}
		rec.Tenant = t.Name
		f(rec)
		return rec.Write(tx)
	})
}

func joined(parts []string) string { return strings.Join(parts, "; ") }
