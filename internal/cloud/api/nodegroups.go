package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const nodeGroupsPath = tenantsPath + "/{name}/node-groups"

// NodeGroupInput is a node group as a client sends it. A count that was left out is not taken for zero.
type NodeGroupInput struct {
	Metadata client.Metadata       `json:"metadata"`
	Spec     NodeGroupInputSpec    `json:"spec"`
	Status   cloud.NodeGroupStatus `json:"status" required:"false" readOnly:"true"`
}

// NodeGroupInputSpec is a [cloud.NodeGroupSpec] whose count can be missing.
type NodeGroupInputSpec struct {
	Count          *int                `json:"count" nullable:"false"`
	ProviderClass  string              `json:"providerClass"`
	ProviderConfig json.RawMessage     `json:"providerConfig,omitempty"`
	TalosVersion   string              `json:"talosVersion,omitempty"`
	ConfigPatches  []cloud.InlinePatch `json:"configPatches,omitempty"`
}

// spec answers the declared spec, with its providerConfig in canonical form where it has one.
func (b *NodeGroupInputSpec) spec() (cloud.NodeGroupSpec, error) {
	if b.Count == nil {
		return cloud.NodeGroupSpec{}, fault("spec.count", "Required value: say how many machines the node group has")
	}
	s := cloud.NodeGroupSpec{
		Count: *b.Count, ProviderClass: b.ProviderClass, ProviderConfig: b.ProviderConfig,
		TalosVersion: b.TalosVersion, ConfigPatches: b.ConfigPatches,
	}
	// Validation reports a config that has no canonical form.
	if canonical, err := cloud.CanonicalConfig(s.ProviderConfig); err == nil {
		s.ProviderConfig = canonical
	}
	return s, nil
}

// NodeGroupPath names the node group.
type NodeGroupPath struct {
	TenantPath
	NodeGroup string `path:"ng" doc:"The node group's name."`
}

func (p *NodeGroupPath) stored() string { return cloud.SubName(p.Name, p.NodeGroup) }

type (
	nodeGroupList struct {
		TenantPath
		rest.ListInput
	}
	nodeGroupCreate struct {
		TenantPath
		Body NodeGroupInput
	}
	nodeGroupPut struct {
		NodeGroupPath
		Forcing
		Body NodeGroupInput
	}
	nodeGroupStatusPut struct {
		NodeGroupPath
		Body client.NodeGroup
	}
	nodeGroupPatch struct {
		NodeGroupPath
		Forcing
		RawBody []byte
	}
	nodeGroupDelete struct {
		NodeGroupPath
		Precondition
	}
)

func (s *service) registerNodeGroups(a *rest.API) {
	op := operations{tag: "NodeGroups"}
	const one = nodeGroupsPath + "/{ng}"
	rest.Register(a, op.get(nodeGroupsPath, "list-node-groups", "List a tenant's node groups"), s.listNodeGroups)
	rest.Register(a, op.create(nodeGroupsPath, "create-node-group", "Create a node group"), s.createNodeGroup)
	rest.Register(a, op.get(one, "get-node-group", "Get a node group"), s.getNodeGroup)
	rest.Register(a, op.put(one, "update-node-group", "Update a node group"), s.putNodeGroup)
	rest.Register(a, op.patch(one, "patch-node-group", "Change parts of a node group"), s.patchNodeGroup)
	rest.Register(a, op.delete(one, "delete-node-group", "Delete a node group"), s.deleteNodeGroup)
	rest.Register(a, op.putStatus(one+"/status", "update-node-group-status", "Update a node group's status"), s.putNodeGroupStatus)
}

func (s *service) listNodeGroups(ctx context.Context, in *nodeGroupList) (*listOutput[client.NodeGroup], error) {
	q := store.Query{Prefix: cloud.SubName(in.Name, "")}
	return list(ctx, s, cloud.NodeGroups, q, &in.ListInput, wireNodeGroup, tenantExists(in.Name))
}

func (s *service) getNodeGroup(ctx context.Context, in *NodeGroupPath) (*output[client.NodeGroup], error) {
	g, err := get(ctx, s, cloud.NodeGroups, tenantExists(in.Name), "node group", in.stored(), in.NodeGroup)
	if err != nil {
		return nil, err
	}
	return &output[client.NodeGroup]{Body: wireNodeGroup(g)}, nil
}

func (s *service) createNodeGroup(ctx context.Context, in *nodeGroupCreate) (*created[client.NodeGroup], error) {
	spec, err := in.Body.Spec.spec()
	if err != nil {
		return nil, err
	}
	var out *created[client.NodeGroup]
	err = s.change(ctx, func(tx store.Tx, rules cloud.Rules) error {
		tenant, err := cloud.Tenants.Get(tx, in.Name)
		if err != nil {
			return named(err, "tenant", in.Name)
		}
		if tenant.Deleting() {
			return rest.Conflict("tenant %q is being deleted and takes no new node groups", in.Name)
		}
		g := &cloud.NodeGroup{Spec: spec, Status: cloud.NodeGroupStatus{Phase: cloud.PhaseForming}}
		declare(&g.Metadata, &in.Body.Metadata)
		change, err := surround(tx, g, nil, tenant)
		if err != nil {
			return err
		}
		name := in.Body.Metadata.Name
		if name == "" {
			name = cloud.DefaultGroupName(in.Name, cloud.GroupRole(g), taken(change.Others))
		}
		g.Name = cloud.SubName(in.Name, name)
		if err := invalid(change.Validate(rules)); err != nil {
			return err
		}
		cloud.OwnNodeGroup(g, tenant.Name)
		g.Finalizers = withFinalizers(g.Finalizers, cloud.NodeGroupFinalizers)
		if err := cloud.NodeGroups.Create(tx, g); err != nil {
			return named(err, "node group", name)
		}
		out = &created[client.NodeGroup]{
			Location: fmt.Sprintf("%s/%s/node-groups/%s", tenantsPath, in.Name, name),
			Warning:  warnings(change.Warnings()), Body: wireNodeGroup(g),
		}
		return nil
	})
	return out, err
}

func taken(groups []*cloud.NodeGroup) func(string) bool {
	names := map[string]bool{}
	for _, g := range groups {
		_, name := cloud.SplitName(g.Name)
		names[name] = true
	}
	return func(name string) bool { return names[name] }
}

func (s *service) putNodeGroup(ctx context.Context, in *nodeGroupPut) (*output[client.NodeGroup], error) {
	forced, err := s.forced(ctx, in.Force)
	if err != nil {
		return nil, err
	}
	spec, err := in.Body.Spec.spec()
	if err != nil {
		return nil, err
	}
	var out *output[client.NodeGroup]
	err = s.change(ctx, func(tx store.Tx, rules cloud.Rules) error {
		tenant, old, err := tenantAndGroup(tx, &in.NodeGroupPath)
		if err != nil {
			return err
		}
		if err := precondition(&in.Body.Metadata, in.NodeGroup, old.Revision); err != nil {
			return err
		}
		g := *old
		g.Spec = spec
		declare(&g.Metadata, &in.Body.Metadata)
		change, err := surround(tx, &g, old, tenant)
		if err != nil {
			return err
		}
		change.Force = forced
		if err := invalid(change.Validate(rules)); err != nil {
			return err
		}
		cloud.OwnNodeGroup(&g, tenant.Name)
		if err := s.auditForced(ctx, tx, "nodegroup", &g.Metadata, &old.Metadata); err != nil {
			return err
		}
		if err := cloud.NodeGroups.Update(tx, &g); err != nil {
			return err
		}
		out = &output[client.NodeGroup]{Warning: warnings(change.Warnings()), Body: wireNodeGroup(&g)}
		return nil
	})
	return out, err
}

func (s *service) patchNodeGroup(ctx context.Context, in *nodeGroupPatch) (*output[client.NodeGroup], error) {
	return mergePatch(s.nodeGroupPatches, in.RawBody,
		func() (client.NodeGroup, error) { return body(s.getNodeGroup(ctx, &in.NodeGroupPath)) },
		func(b NodeGroupInput) (*output[client.NodeGroup], error) {
			return s.putNodeGroup(ctx, &nodeGroupPut{NodeGroupPath: in.NodeGroupPath, Forcing: in.Forcing, Body: b})
		})
}

func (s *service) putNodeGroupStatus(ctx context.Context, in *nodeGroupStatusPut) (*output[client.NodeGroup], error) {
	g, err := putStatus(ctx, s, cloud.NodeGroups, "node group", in.stored(), in.NodeGroup, &in.Body.Metadata, in.Body.Status, nil)
	if err != nil {
		return nil, err
	}
	return &output[client.NodeGroup]{Body: wireNodeGroup(g)}, nil
}

func (s *service) deleteNodeGroup(ctx context.Context, in *nodeGroupDelete) (*output[client.NodeGroup], error) {
	var gone *cloud.NodeGroup
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		tenant, g, err := tenantAndGroup(tx, &in.NodeGroupPath)
		if err != nil {
			return err
		}
		others, err := otherGroups(tx, g)
		if err != nil {
			return err
		}
		workers, err := countWorkers(tx, in.Name)
		if err != nil {
			return err
		}
		if err := cloud.MayDeleteNodeGroup(g, tenant, others, workers); err != nil {
			return refused(err)
		}
		o, err := tx.Delete(cloud.NodeGroups.Kind.Name, g.Name, in.ResourceVersion)
		if err != nil {
			return err
		}
		gone, err = cloud.NodeGroups.Decode(o)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &output[client.NodeGroup]{Body: wireNodeGroup(gone)}, nil
}

func tenantAndGroup(r store.Reader, p *NodeGroupPath) (*cloud.Tenant, *cloud.NodeGroup, error) {
	tenant, err := cloud.Tenants.Get(r, p.Name)
	if err != nil {
		return nil, nil, named(err, "tenant", p.Name)
	}
	g, err := cloud.NodeGroups.Get(r, p.stored())
	return tenant, g, named(err, "node group", p.NodeGroup)
}

// surround reads what the rules of a node group depend on.
func surround(r store.Reader, g, old *cloud.NodeGroup, tenant *cloud.Tenant) (cloud.NodeGroupChange, error) {
	c := cloud.NodeGroupChange{New: g, Old: old, Tenant: tenant, Taken: map[string]string{}}
	groups, err := nodeGroups(r, tenant.Name)
	if err != nil {
		return c, err
	}
	own := ""
	if old != nil {
		own = old.Name
		if c.Machines, err = machinesOf(r, "group", own); err != nil {
			return c, err
		}
	}
	for _, o := range groups {
		if o.Name != own {
			c.Others = append(c.Others, o)
		}
	}
	addrs, _ := cloud.ConfigAddresses(g.Spec.ProviderConfig, nil)
	for _, a := range addrs {
		owner, err := addressOwner(r, a, own)
		if err != nil {
			return c, err
		}
		if owner != "" {
			c.Taken[a.String()] = owner
		}
	}
	return c, nil
}

// addressOwner answers the stored name of a node group other than own that names the address, or to which the
// machine at that address is bound; "" for none.
func addressOwner(r store.Reader, a cloud.MachineAddress, own string) (string, error) {
	naming, err := r.List(store.Query{Kind: cloud.NodeGroups.Kind.Name, Index: "address", Value: a.String()})
	if err != nil {
		return "", err
	}
	for _, o := range naming.Objects {
		if o.Name != own {
			return o.Name, nil
		}
	}
	id, err := r.Claimed(cloud.ClaimMachineAddress, a.String())
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	m, err := cloud.Machines.Get(r, id)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil || !cloud.Assigned(m) {
		return "", err
	}
	if bound := cloud.SubName(m.Labels[cloud.LabelTenant], m.Labels[cloud.LabelNodeGroup]); bound != own {
		return bound, nil
	}
	return "", nil
}

func otherGroups(r store.Reader, g *cloud.NodeGroup) ([]*cloud.NodeGroup, error) {
	tenant, _ := cloud.SplitName(g.Name)
	groups, err := nodeGroups(r, tenant)
	if err != nil {
		return nil, err
	}
	var out []*cloud.NodeGroup
	for _, o := range groups {
		if o.Name != g.Name {
			out = append(out, o)
		}
	}
	return out, nil
}

func countWorkers(r store.Reader, tenant string) (int, error) {
	machines, err := machinesOf(r, "tenant", tenant)
	n := 0
	for _, m := range machines {
		if cloud.Role(m.Labels[cloud.LabelRole]) == cloud.RoleWorker {
			n++
		}
	}
	return n, err
}
