package controller

import (
	"context"
	"slices"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
	"freehold.dev/freehold/internal/kernel/store"
)

// wantedConfig is the configuration that a node group's machines should have.
type wantedConfig struct {
	from   configSource
	digest string
}

// configSource is what a generated configuration depends on.
type configSource struct {
	tenantUID, groupUID               string
	tenantGeneration, groupGeneration int64
	endpoint                          string
	role                              cloud.Role
	secrets                           *talos.Secrets
}

// configDigest answers the digest (see machineapi.ConfigDigest) of the configuration that the machine should have. It
// is generated only when something that it depends on has changed.
func (c *Credentials) configDigest(ctx context.Context, s store.Store, m *cloud.Machine) (string, error) {
	var (
		t *cloud.Tenant
		g *cloud.NodeGroup
	)
	tenant, group := m.Labels[cloud.LabelTenant], cloud.SubName(m.Labels[cloud.LabelTenant], m.Labels[cloud.LabelNodeGroup])
	err := s.View(ctx, func(r store.Reader) (err error) {
		if t, err = cloud.Tenants.Get(r, tenant); err != nil {
			return err
		}
		g, err = cloud.NodeGroups.Get(r, group)
		return err
	})
	if err != nil {
		return "", err
	}
	creds, err := c.get(ctx, tenant)
	if err != nil {
		return "", err
	}
	from := configSource{
		tenantUID: t.UID, groupUID: g.UID, tenantGeneration: t.Generation, groupGeneration: g.Generation,
		endpoint: cloud.EndpointOf(t), role: cloud.GroupRole(g), secrets: creds.secrets,
	}
	e := c.entry(tenant)
	e.mu.Lock()
	known, ok := e.configs[group]
	e.mu.Unlock()
	if ok && known.from == from {
		return known.digest, nil
	}
	text, err := talos.Generate(configInput(t, g), creds.secrets)
	if err != nil {
		return "", err
	}
	digest, err := machineapi.ConfigDigest(text)
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	e.configs[group] = wantedConfig{from, digest}
	e.mu.Unlock()
	return digest, nil
}

// configInput is what the configuration of a group's machines is generated from.
func configInput(t *cloud.Tenant, g *cloud.NodeGroup) talos.ConfigInput {
	version := t.Spec.TalosVersion
	if g.Spec.TalosVersion != "" {
		version = g.Spec.TalosVersion
	}
	patches := talos.BasePatches(t.Spec)
	for _, p := range slices.Concat(t.Spec.ConfigPatches, g.Spec.ConfigPatches) {
		patches = append(patches, p.Patch)
	}
	return talos.ConfigInput{
		Cluster: t.Name, Endpoint: cloud.EndpointOf(t), Role: cloud.GroupRole(g),
		TalosVersion: version, KubernetesVersion: t.Spec.KubernetesVersion, Patches: patches,
	}
}
