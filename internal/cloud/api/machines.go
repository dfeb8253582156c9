package api

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	machinesPath       = "/api/v1/machines"
	tenantMachinesPath = tenantsPath + "/{name}/machines"
)

// MachinePath names a machine.
type MachinePath struct {
	ID string `path:"id" doc:"The machine's name, a UUID."`
}

// TenantMachinePath names a machine of a tenant.
type TenantMachinePath struct {
	TenantPath
	MachinePath
}

type (
	machineCreate struct{ Body client.Machine }
	machinePut    struct {
		MachinePath
		Forcing
		Body client.Machine
	}
	machinePatch struct {
		MachinePath
		Forcing
		RawBody []byte
	}
	machineDelete struct {
		MachinePath
		Precondition
	}
	tenantMachineList struct {
		TenantPath
		rest.ListInput
	}
	tenantMachinePut struct {
		TenantMachinePath
		Forcing
		Body client.Machine
	}
	tenantMachinePatch struct {
		TenantMachinePath
		Forcing
		RawBody []byte
	}
	tenantMachineStatusPut struct {
		TenantMachinePath
		Body client.Machine
	}
)

func (s *service) registerMachines(a *rest.API) {
	op := operations{tag: "Machines"}
	const one, tenantOne = machinesPath + "/{id}", tenantMachinesPath + "/{id}"
	register := op.create(machinesPath, "register-machine", "Register an unassigned machine")
	register.Description = "The machine runs Talos in maintenance mode at spec.managementAddress; node groups take it by address or by its labels."
	rest.Register(a, op.get(machinesPath, "list-machines", "List all machines"), s.listMachines)
	rest.Register(a, register, s.registerMachine)
	rest.Register(a, op.get(one, "get-machine", "Get a machine"), s.getMachine)
	rest.Register(a, op.put(one, "update-machine", "Update a machine's labels, annotations or, while it is unassigned, address"), s.putMachine)
	rest.Register(a, op.patch(one, "patch-machine", "Change parts of a machine"), s.patchMachine)
	rest.Register(a, op.delete(one, "forget-machine", "Forget an unassigned machine"), s.forgetMachine)

	rest.Register(a, op.get(tenantMachinesPath, "list-tenant-machines", "List a tenant's machines"), s.listTenantMachines)
	rest.Register(a, op.get(tenantOne, "get-tenant-machine", "Get a tenant's machine"), s.getTenantMachine)
	rest.Register(a, op.put(tenantOne, "update-tenant-machine", "Update a tenant's machine's labels or annotations"), s.putTenantMachine)
	rest.Register(a, op.patch(tenantOne, "patch-tenant-machine", "Change parts of a tenant's machine"), s.patchTenantMachine)
	rest.Register(a, op.delete(tenantOne, "delete-tenant-machine", "Remove a machine from its tenant"), s.deleteTenantMachine)
	rest.Register(a, op.putStatus(tenantOne+"/status", "update-machine-status", "Update a machine's status"), s.putMachineStatus)
}

func (s *service) listMachines(ctx context.Context, in *rest.ListInput) (*listOutput[client.Machine], error) {
	return list(ctx, s, cloud.Machines, store.Query{}, in, wireMachine, nil)
}

func (s *service) listTenantMachines(ctx context.Context, in *tenantMachineList) (*listOutput[client.Machine], error) {
	q := store.Query{Index: "tenant", Value: in.Name}
	return list(ctx, s, cloud.Machines, q, &in.ListInput, wireMachine, tenantExists(in.Name))
}

func (s *service) getMachine(ctx context.Context, in *MachinePath) (*output[client.Machine], error) {
	m, err := get(ctx, s, cloud.Machines, nil, "machine", in.ID, in.ID)
	if err != nil {
		return nil, err
	}
	return &output[client.Machine]{Body: wireMachine(m)}, nil
}

func (s *service) getTenantMachine(ctx context.Context, in *TenantMachinePath) (*output[client.Machine], error) {
	m, err := get(ctx, s, cloud.Machines, tenantExists(in.Name), "machine", in.ID, in.ID)
	if err != nil {
		return nil, err
	}
	if err := belongs(m, in.Name); err != nil {
		return nil, err
	}
	return &output[client.Machine]{Body: wireMachine(m)}, nil
}

func belongs(m *cloud.Machine, tenant string) error {
	if m.Labels[cloud.LabelTenant] != tenant {
		return rest.NotFound("tenant %q has no machine %q", tenant, m.Name)
	}
	return nil
}

func (s *service) registerMachine(ctx context.Context, in *machineCreate) (*created[client.Machine], error) {
	m := &cloud.Machine{Status: cloud.MachineStatus{Stage: cloud.StageInitializing}}
	m.Name = in.Body.Metadata.Name
	if m.Name == "" {
		m.Name = uuid.NewString()
	}
	m.Spec.ManagementAddress = in.Body.Spec.ManagementAddress
	declare(&m.Metadata, &in.Body.Metadata)
	change := cloud.MachineChange{New: m}
	if err := invalid(change.Validate()); err != nil {
		return nil, err
	}
	stored := *m
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		stored = *m
		if err := cloud.Machines.Create(tx, &stored); err != nil {
			return named(err, "machine", m.Name)
		}
		return claimAddress(tx, &stored)
	})
	if err != nil {
		return nil, err
	}
	return &created[client.Machine]{Location: machinesPath + "/" + m.Name, Body: wireMachine(&stored)}, nil
}

// claimAddress keeps two machines from having one address.
func claimAddress(tx store.Tx, m *cloud.Machine) error {
	a, err := cloud.ParseMachineAddress(m.Spec.ManagementAddress)
	if err != nil {
		return err
	}
	err = tx.Claim(cloud.ClaimMachineAddress, a.String(), m.Name)
	if !errors.Is(err, store.ErrClaimed) {
		return err
	}
	owner, err := tx.Claimed(cloud.ClaimMachineAddress, a.String())
	if err != nil {
		return err
	}
	p := rest.Conflict("a machine with the address %s is registered already: %s", a, owner)
	p.Causes = []rest.Cause{{Field: "spec.managementAddress", Message: "Duplicate value: " + a.String()}}
	return p
}

func releaseAddress(tx store.Tx, m *cloud.Machine) error {
	a, ok := addressOf(m)
	if !ok {
		return nil // it claimed none
	}
	owner, err := tx.Claimed(cloud.ClaimMachineAddress, a.String())
	if errors.Is(err, store.ErrNotFound) || err == nil && owner != m.Name {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.Release(cloud.ClaimMachineAddress, a.String())
}

func addressOf(m *cloud.Machine) (cloud.MachineAddress, bool) {
	a, err := cloud.ParseMachineAddress(m.Spec.ManagementAddress)
	return a, err == nil
}

func (s *service) putMachine(ctx context.Context, in *machinePut) (*output[client.Machine], error) {
	return s.updateMachine(ctx, &in.MachinePath, "", in.Force, &in.Body)
}

func (s *service) putTenantMachine(ctx context.Context, in *tenantMachinePut) (*output[client.Machine], error) {
	return s.updateMachine(ctx, &in.MachinePath, in.Name, in.Force, &in.Body)
}

// updateMachine updates a machine; of the tenant, unless that is "".
func (s *service) updateMachine(ctx context.Context, path *MachinePath, tenant string, force bool, body *client.Machine) (*output[client.Machine], error) {
	forced, err := s.forced(ctx, force)
	if err != nil {
		return nil, err
	}
	var out *output[client.Machine]
	err = s.Store.Update(ctx, func(tx store.Tx) error {
		old, err := s.machine(tx, path.ID, tenant)
		if err != nil {
			return err
		}
		if err := precondition(&body.Metadata, path.ID, old.Revision); err != nil {
			return err
		}
		m := *old
		m.Spec.ManagementAddress = body.Spec.ManagementAddress
		declare(&m.Metadata, &body.Metadata)
		if err := invalid(cloud.MachineChange{New: &m, Old: old, Force: forced}.Validate()); err != nil {
			return err
		}
		cloud.KeepServerLabels(&m, old)
		if err := s.auditForced(ctx, tx, "machine", &m.Metadata, &old.Metadata); err != nil {
			return err
		}
		if err := moveAddress(tx, &m, old); err != nil {
			return err
		}
		if err := cloud.Machines.Update(tx, &m); err != nil {
			return err
		}
		out = &output[client.Machine]{Body: wireMachine(&m)}
		return nil
	})
	return out, err
}

// moveAddress lets the address follow the machine: to another one, or free when the update removes the machine.
func moveAddress(tx store.Tx, m, old *cloud.Machine) error {
	gone := m.Deleting() && len(m.Finalizers) == 0
	if !gone && m.Spec.ManagementAddress == old.Spec.ManagementAddress {
		return nil
	}
	if err := releaseAddress(tx, old); err != nil || gone {
		return err
	}
	return claimAddress(tx, m)
}

// machine reads a machine; of the tenant, unless that is "".
func (s *service) machine(r store.Reader, id, tenant string) (*cloud.Machine, error) {
	if tenant != "" {
		if err := tenantExists(tenant)(r); err != nil {
			return nil, err
		}
	}
	m, err := cloud.Machines.Get(r, id)
	if err != nil {
		return nil, named(err, "machine", id)
	}
	if tenant != "" {
		if err := belongs(m, tenant); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (s *service) patchMachine(ctx context.Context, in *machinePatch) (*output[client.Machine], error) {
	return mergePatch(s.machinePatches, in.RawBody,
		func() (client.Machine, error) { return body(s.getMachine(ctx, &in.MachinePath)) },
		func(b client.Machine) (*output[client.Machine], error) {
			return s.putMachine(ctx, &machinePut{MachinePath: in.MachinePath, Forcing: in.Forcing, Body: b})
		})
}

func (s *service) patchTenantMachine(ctx context.Context, in *tenantMachinePatch) (*output[client.Machine], error) {
	return mergePatch(s.machinePatches, in.RawBody,
		func() (client.Machine, error) { return body(s.getTenantMachine(ctx, &in.TenantMachinePath)) },
		func(b client.Machine) (*output[client.Machine], error) {
			return s.putTenantMachine(ctx, &tenantMachinePut{TenantMachinePath: in.TenantMachinePath, Forcing: in.Forcing, Body: b})
		})
}

func (s *service) putMachineStatus(ctx context.Context, in *tenantMachineStatusPut) (*output[client.Machine], error) {
	check := func(r store.Reader, m *cloud.Machine) error {
		if err := tenantExists(in.Name)(r); err != nil {
			return err
		}
		return belongs(m, in.Name)
	}
	m, err := putStatus(ctx, s, cloud.Machines, "machine", in.ID, in.ID, &in.Body.Metadata, in.Body.Status, check)
	if err != nil {
		return nil, err
	}
	return &output[client.Machine]{Body: wireMachine(m)}, nil
}

func (s *service) forgetMachine(ctx context.Context, in *machineDelete) (*output[client.Machine], error) {
	var gone *cloud.Machine
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		m, err := cloud.Machines.Get(tx, in.ID)
		if err != nil {
			return named(err, "machine", in.ID)
		}
		if t := m.Labels[cloud.LabelTenant]; t != "" {
			return rest.Conflict("machine %s belongs to tenant %q: delete it at %s/%s/machines/%s", in.ID, t, tenantsPath, t, in.ID)
		}
		gone, err = deleteMachine(tx, m, in.ResourceVersion)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &output[client.Machine]{Body: wireMachine(gone)}, nil
}

func deleteMachine(tx store.Tx, m *cloud.Machine, revision int64) (*cloud.Machine, error) {
	o, err := tx.Delete(cloud.Machines.Kind.Name, m.Name, revision)
	if err != nil {
		return nil, err
	}
	if len(o.Finalizers) == 0 {
		if err := releaseAddress(tx, m); err != nil {
			return nil, err
		}
	}
	return cloud.Machines.Decode(o)
}
