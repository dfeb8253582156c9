package api

import (
	"errors"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
)

// TalosRules are the rules of the machinery that this build contains.
type TalosRules struct{}

var _ cloud.TalosRules = TalosRules{}

// CheckTalosVersion implements [cloud.TalosRules].
func (TalosRules) CheckTalosVersion(version string) error { return talos.CheckTalosVersion(version) }

// CheckVersions implements [cloud.TalosRules].
func (TalosRules) CheckVersions(talosVersion, kubernetesVersion string) error {
	return talos.CheckVersions(talosVersion, kubernetesVersion)
}

// CheckPatch implements [cloud.TalosRules].
func (TalosRules) CheckPatch(patch string) error { return talos.CheckPatch(patch) }

// CheckConfig implements [cloud.TalosRules].
func (TalosRules) CheckConfig(c cloud.ConfigCheck) error {
	err := talos.CheckConfig(talos.ConfigInput{
		Cluster: c.Tenant, Endpoint: c.Spec.ControlPlaneEndpoint, Role: c.Role,
		TalosVersion: c.TalosVersion, KubernetesVersion: c.Spec.KubernetesVersion,
		Patches: append(talos.BasePatches(c.Spec), c.Patches...),
	})
	// The patch is named by the field's path; its number would count the plane's own patches too.
	if p, ok := errors.AsType[*talos.PatchError](err); ok {
		return p.Err
	}
	return err
}
