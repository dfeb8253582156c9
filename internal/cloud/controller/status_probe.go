package controller

import (
	"context"
	"sync"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/kubeprobe"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
)

// configured: some control-plane machine has a configuration, so that there may be an API and an etcd to ask.
func configured(v *View) bool {
	for _, m := range v.controlPlane() {
		if m.Status.Role == cloud.RoleControlPlane {
			return true
		}
	}
	return false
}

// ask asks the tenant's Kubernetes API and etcd. A tenant that has nothing to ask, or is going, says nothing.
func (c *Status) ask(ctx context.Context, v *View) Probe {
	tenant := v.Tenant.Name
	if !configured(v) || v.Tenant.Deleting() {
		return Probe{}
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	creds, err := c.cfg.Credentials.get(ctx, tenant)
	if err != nil {
		c.cfg.Logger.Debug("the tenant cannot be probed", "tenant", tenant, "error", err)
		return Probe{Unknown: true}
	}
	var (
		p  Probe
		wg sync.WaitGroup
	)
	wg.Go(func() { p.Etcd = c.askEtcd(ctx, v, creds.machine) })
	if endpoint := cloud.EndpointOf(v.Tenant); endpoint != "" {
		target := creds.kube
		target.Endpoint = endpoint
		p.API = kubeprobe.Probe(ctx, target, c.cfg.Timeout)
	}
	wg.Wait()
	return p
}

// maxEtcdTries bounds how many machines are asked in turn for the members of etcd.
const maxEtcdTries = 3

// askEtcd asks a control-plane machine for the members; healthy ones first.
func (c *Status) askEtcd(ctx context.Context, v *View, creds machineapi.Credentials) []machineapi.EtcdMember {
	var healthy, connected []*cloud.Machine
	for _, m := range v.controlPlane() {
		switch {
		case v.healthy(m):
			healthy = append(healthy, m)
		case m.Status.Connected && m.Status.Role == cloud.RoleControlPlane:
			connected = append(connected, m)
		}
	}
	candidates := append(healthy, connected...)
	for _, m := range candidates[:min(len(candidates), maxEtcdTries)] {
		members, err := etcdMembers(ctx, m.Spec.ManagementAddress, creds)
		if err == nil {
			return members
		}
		c.cfg.Logger.Debug("a control-plane machine did not list etcd's members", "machine", m.Name, "error", err)
	}
	return nil
}

func etcdMembers(ctx context.Context, address string, creds machineapi.Credentials) ([]machineapi.EtcdMember, error) {
	client, err := machineapi.DialSecured(address, creds)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.EtcdMembers(ctx)
}
