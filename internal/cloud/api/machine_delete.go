package api

import (
	"context"
	"errors"
	"slices"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type tenantMachineDelete struct {
	TenantMachinePath
	Precondition
	ScaleDown bool `query:"scaleDown" doc:"Lower the node group's count with it, so that no replacement comes."`
}

// deleteTenantMachine asks for a machine's teardown. The node group's count stands, so a replacement comes, unless
// the count is lowered with it.
func (s *service) deleteTenantMachine(ctx context.Context, in *tenantMachineDelete) (*output[client.Machine], error) {
	var gone *cloud.Machine
	err := s.change(ctx, func(tx store.Tx, rules cloud.Rules) error {
		m, err := s.machine(tx, in.ID, in.Name)
		if err != nil {
			return err
		}
		if in.ResourceVersion != 0 && in.ResourceVersion != m.Revision {
			return rest.Modified()
		}
		if m.Deleting() {
			gone = m
			return nil
		}
		tenant, err := cloud.Tenants.Get(tx, in.Name)
		if err != nil {
			return named(err, "tenant", in.Name)
		}
		siblings, err := machinesOf(tx, "tenant", in.Name)
		if err != nil {
			return err
		}
		if err := cloud.MayDeleteMachine(m, tenant, siblings); err != nil {
			return refused(err)
		}
		if in.ScaleDown {
			if err := scaleDown(tx, rules, m, tenant); err != nil {
				return err
			}
		}
		gone, err = tearDown(tx, m, in.ScaleDown)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &output[client.Machine]{Body: wireMachine(gone)}, nil
}

// tearDown marks a machine as deleting, held by the teardown of its controller. One that is not to be replaced is
// the first that its node group lets go.
func tearDown(tx store.Tx, m *cloud.Machine, scaledDown bool) (*cloud.Machine, error) {
	changed := false
	if !slices.Contains(m.Finalizers, cloud.FinalizerTeardown) {
		m.Finalizers = append(m.Finalizers, cloud.FinalizerTeardown)
		changed = true
	}
	if scaledDown {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[cloud.AnnotationDeleteMachine] = "true"
		changed = true
	}
	if changed {
		if err := cloud.Machines.Update(tx, m); err != nil {
			return nil, err
		}
	}
	return deleteMachine(tx, m, 0)
}

// scaleDown lowers the count of the machine's node group by one.
func scaleDown(tx store.Tx, rules cloud.Rules, m *cloud.Machine, tenant *cloud.Tenant) error {
	name := m.Labels[cloud.LabelNodeGroup]
	old, err := cloud.NodeGroups.Get(tx, cloud.SubName(tenant.Name, name))
	if errors.Is(err, store.ErrNotFound) {
		return rest.Conflict("machine %s has no node group whose count could be lowered: delete it without scaleDown", m.Name)
	}
	if err != nil {
		return err
	}
	if old.Deleting() || tenant.Deleting() {
		return nil
	}
	g := *old
	g.Spec.Count--
	change, err := surround(tx, &g, old, tenant)
	if err != nil {
		return err
	}
	if faults := change.Validate(rules); len(faults) > 0 {
		return rest.Conflict("the count of node group %q cannot be lowered to %d: %s", name, g.Spec.Count, faults.ToAggregate().Error())
	}
	return cloud.NodeGroups.Update(tx, &g)
}

func body[R any](out *output[R], err error) (R, error) {
	if err != nil {
		var none R
		return none, err
	}
	return out.Body, nil
}
