package cloud

import (
	"errors"
	"fmt"
)

// ErrRefused is wrapped by refusals of a deletion that would take more away than what was asked. The text says what,
// and what to do instead.
var ErrRefused = errors.New("refused")

// MayDeleteNodeGroup refuses to take the control plane away from under workers. Others are the tenant's other node
// groups, workers the number of worker machines that are bound to it.
func MayDeleteNodeGroup(g *NodeGroup, tenant *Tenant, others []*NodeGroup, workers int) error {
	if tenant.Deleting() || g.Deleting() || GroupRole(g) != RoleControlPlane {
		return nil
	}
	var left string
	for _, o := range others {
		switch {
		case GroupRole(o) == RoleControlPlane && !o.Deleting():
			return nil
		case GroupRole(o) == RoleWorker:
			_, left = SplitName(o.Name)
		}
	}
	_, name := SplitName(g.Name)
	switch {
	case left != "":
		return fmt.Errorf("%w: %q is the last control-plane node group of tenant %q, and its worker node group %q would be left without one; delete the workers first, or the tenant",
			ErrRefused, name, tenant.Name, left)
	case workers > 0:
		return fmt.Errorf("%w: %q is the last control-plane node group of tenant %q, and %d of its workers are still being removed; wait for them, or delete the tenant",
			ErrRefused, name, tenant.Name, workers)
	}
	return nil
}

// MayDeleteMachine refuses to take away the only control-plane machine of a living tenant, whose etcd data would be
// lost with it. Siblings are the tenant's machines.
func MayDeleteMachine(m *Machine, tenant *Tenant, siblings []*Machine) error {
	if tenant == nil || tenant.Deleting() || m.Deleting() || Role(m.Labels[LabelRole]) != RoleControlPlane {
		return nil
	}
	for _, s := range siblings {
		if s.Name != m.Name && !s.Deleting() && Role(s.Labels[LabelRole]) == RoleControlPlane {
			return nil
		}
	}
	return fmt.Errorf("%w: machine %s is the only control-plane machine of tenant %q, and the cluster's data would be lost with it; raise the node group's count first, or delete the tenant",
		ErrRefused, m.Name, tenant.Name)
}
