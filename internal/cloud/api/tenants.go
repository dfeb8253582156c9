package api

import (
	"context"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const tenantsPath = "/api/v1/tenants"

// TenantPath names the tenant.
type TenantPath struct {
	Name string `path:"name" doc:"The tenant's name."`
}

type (
	tenantCreate struct{ Body client.Tenant }
	tenantPut    struct {
		TenantPath
		Forcing
		Body client.Tenant
	}
	tenantStatusPut struct {
		TenantPath
		Body client.Tenant
	}
	tenantPatch struct {
		TenantPath
		Forcing
		RawBody []byte
	}
	tenantDelete struct {
		TenantPath
		Precondition
	}
)

func (s *service) registerTenants(a *rest.API) {
	op := operations{tag: "Tenants"}
	rest.Register(a, op.get(tenantsPath, "list-tenants", "List tenants"), s.listTenants)
	rest.Register(a, op.create(tenantsPath, "create-tenant", "Create a tenant"), s.createTenant)
	rest.Register(a, op.get(tenantsPath+"/{name}", "get-tenant", "Get a tenant"), s.getTenant)
	rest.Register(a, op.put(tenantsPath+"/{name}", "update-tenant", "Update a tenant"), s.putTenant)
	rest.Register(a, op.patch(tenantsPath+"/{name}", "patch-tenant", "Change parts of a tenant"), s.patchTenant)
	rest.Register(a, op.delete(tenantsPath+"/{name}", "delete-tenant", "Delete a tenant"), s.deleteTenant)
	rest.Register(a, op.putStatus(tenantsPath+"/{name}/status", "update-tenant-status", "Update a tenant's status"), s.putTenantStatus)
}

func (s *service) listTenants(ctx context.Context, in *rest.ListInput) (*listOutput[client.Tenant], error) {
	return list(ctx, s, cloud.Tenants, store.Query{}, in, wireTenant, nil)
}

func (s *service) getTenant(ctx context.Context, in *TenantPath) (*output[client.Tenant], error) {
	t, err := get(ctx, s, cloud.Tenants, nil, "tenant", in.Name, in.Name)
	if err != nil {
		return nil, err
	}
	return &output[client.Tenant]{Body: wireTenant(t)}, nil
}

func (s *service) createTenant(ctx context.Context, in *tenantCreate) (*created[client.Tenant], error) {
	t := &cloud.Tenant{Spec: in.Body.Spec, Status: cloud.TenantStatus{Phase: cloud.PhaseForming}}
	t.Name = in.Body.Metadata.Name
	declare(&t.Metadata, &in.Body.Metadata)
	// A new tenant has no surroundings: it is validated before the transaction.
	change := cloud.TenantChange{New: t}
	if err := invalid(change.Validate(s.Rules)); err != nil {
		return nil, err
	}
	t.Finalizers = withFinalizers(t.Finalizers, cloud.TenantFinalizers)
	stored := *t
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		stored = *t
		return named(cloud.Tenants.Create(tx, &stored), "tenant", t.Name)
	})
	if err != nil {
		return nil, err
	}
	return &created[client.Tenant]{
		Location: tenantsPath + "/" + t.Name, Warning: warnings(change.Warnings()), Body: wireTenant(&stored),
	}, nil
}

func (s *service) putTenant(ctx context.Context, in *tenantPut) (*output[client.Tenant], error) {
	forced, err := s.forced(ctx, in.Force)
	if err != nil {
		return nil, err
	}
	var out *output[client.Tenant]
	err = s.change(ctx, func(tx store.Tx, rules cloud.Rules) error {
		old, err := cloud.Tenants.Get(tx, in.Name)
		if err != nil {
			return named(err, "tenant", in.Name)
		}
		if err := precondition(&in.Body.Metadata, in.Name, old.Revision); err != nil {
			return err
		}
		t := *old
		t.Spec = in.Body.Spec
		declare(&t.Metadata, &in.Body.Metadata)
		change := cloud.TenantChange{New: &t, Old: old, Force: forced}
		if change.Groups, err = nodeGroups(tx, old.Name); err != nil {
			return err
		}
		if change.Machines, err = machinesOf(tx, "tenant", old.Name); err != nil {
			return err
		}
		if err := invalid(change.Validate(rules)); err != nil {
			return err
		}
		if err := s.auditForced(ctx, tx, "tenant", &t.Metadata, &old.Metadata); err != nil {
			return err
		}
		if err := cloud.Tenants.Update(tx, &t); err != nil {
			return err
		}
		out = &output[client.Tenant]{Warning: warnings(change.Warnings()), Body: wireTenant(&t)}
		return nil
	})
	return out, err
}

func (s *service) patchTenant(ctx context.Context, in *tenantPatch) (*output[client.Tenant], error) {
	return mergePatch(s.tenantPatches, in.RawBody,
		func() (client.Tenant, error) { return body(s.getTenant(ctx, &in.TenantPath)) },
		func(b client.Tenant) (*output[client.Tenant], error) {
			return s.putTenant(ctx, &tenantPut{TenantPath: in.TenantPath, Forcing: in.Forcing, Body: b})
		})
}

func (s *service) putTenantStatus(ctx context.Context, in *tenantStatusPut) (*output[client.Tenant], error) {
	t, err := putStatus(ctx, s, cloud.Tenants, "tenant", in.Name, in.Name, &in.Body.Metadata, in.Body.Status, nil)
	if err != nil {
		return nil, err
	}
	return &output[client.Tenant]{Body: wireTenant(t)}, nil
}

func (s *service) deleteTenant(ctx context.Context, in *tenantDelete) (*output[client.Tenant], error) {
	var gone *cloud.Tenant
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		o, err := tx.Delete(cloud.Tenants.Kind.Name, in.Name, in.ResourceVersion)
		if err != nil {
			return named(err, "tenant", in.Name)
		}
		gone, err = cloud.Tenants.Decode(o)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &output[client.Tenant]{Body: wireTenant(gone)}, nil
}

// tenantExists is the check of a tenant's collections.
func tenantExists(name string) func(store.Reader) error {
	return func(r store.Reader) error {
		_, err := r.Get(cloud.Tenants.Kind.Name, name)
		return named(err, "tenant", name)
	}
}

// nodeGroups lists a tenant's node groups.
func nodeGroups(r store.Reader, tenant string) ([]*cloud.NodeGroup, error) {
	groups, _, err := cloud.NodeGroups.List(r, store.Query{Prefix: cloud.SubName(tenant, "")})
	return groups, err
}

// machinesOf lists the machines that an index of the machine kind finds.
func machinesOf(r store.Reader, index, value string) ([]*cloud.Machine, error) {
	machines, _, err := cloud.Machines.List(r, store.Query{Index: index, Value: value})
	return machines, err
}
