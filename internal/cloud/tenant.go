package cloud

import (
	"cmp"

	"freehold.dev/freehold/internal/kernel/store"
)

// Tenant is a Kubernetes cluster: versions, networks, plugins, patches. Its stored name is its name.
type Tenant = store.Resource[TenantSpec, TenantStatus]

// Tenants is the kind of Tenant.
var Tenants = store.Type[TenantSpec, TenantStatus]{Kind: store.Kind{Name: "tenant", Version: 1}}

// TenantSpec is what a client declares.
type TenantSpec struct {
	KubernetesVersion string `json:"kubernetesVersion"` // semantic version without "v"
	TalosVersion      string `json:"talosVersion"`      // semantic version without "v"
	// ControlPlaneEndpoint is an https URL. Empty: it becomes that of the first control-plane machine, and is kept.
	ControlPlaneEndpoint string        `json:"controlPlaneEndpoint,omitempty"`
	PodNetwork           []string      `json:"podNetwork,omitempty"`     // CIDRs
	ServiceNetwork       []string      `json:"serviceNetwork,omitempty"` // CIDRs
	Plugins              Plugins       `json:"plugins,omitzero"`
	ConfigPatches        []InlinePatch `json:"configPatches,omitempty"`
}

// Plugins are what Kubernetes needs from outside itself.
type Plugins struct {
	CNI CNI `json:"cni,omitzero"`
	CSI CSI `json:"csi,omitzero"`
}

// CNI selects the pod network: flannel (default), cilium or none.
type CNI struct {
	Type    string `json:"type,omitempty" enum:"flannel,cilium,none"`
	Version string `json:"version,omitempty"`
	Values  string `json:"values,omitempty"`
}

// CSI selects the storage plugin: none (default) or local-path.
type CSI struct {
	Type string `json:"type,omitempty" enum:"none,local-path"`
}

// TenantStatus is derived from machines and probes; its one writer is the tenant status controller.
type TenantStatus struct {
	Phase             Phase         `json:"phase,omitempty"`
	Available         bool          `json:"available"`         // the Kubernetes API answers at the endpoint
	Ready             bool          `json:"ready"`             // all of these, and every expected machine healthy
	APIReady          bool          `json:"apiReady"`          // /readyz is ok with the tenant's CA
	ControlPlaneReady bool          `json:"controlPlaneReady"` // every control-plane machine ready, etcd has quorum
	Machines          MachineCounts `json:"machines"`
	KubernetesVersion string        `json:"kubernetesVersion,omitempty"`
	TalosVersion      string        `json:"talosVersion,omitempty"`
	// Endpoint in force: the spec's, or the one that was derived.
	ControlPlaneEndpoint string      `json:"controlPlaneEndpoint,omitempty"`
	Conditions           []Condition `json:"conditions,omitempty"`
}

// EndpointOf is a tenant's control-plane endpoint in force: the declared one, else the one that was derived; "" while
// there is none.
func EndpointOf(t *Tenant) string {
	return cmp.Or(t.Spec.ControlPlaneEndpoint, t.Status.ControlPlaneEndpoint)
}
