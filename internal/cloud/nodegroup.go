package cloud

import (
	"encoding/json"
	"strings"

	"freehold.dev/freehold/internal/kernel/store"
)

// NodeGroup is a set of machines of one role from one provider. Its stored name is "<tenant>/<name>".
type NodeGroup = store.Resource[NodeGroupSpec, NodeGroupStatus]

// NodeGroups is the kind of NodeGroup. Index "address" holds the machine addresses that its providerConfig names,
// in their canonical form.
var NodeGroups = store.Type[NodeGroupSpec, NodeGroupStatus]{Kind: store.Kind{
	Name: "nodegroup", Version: 1,
	Indexes: map[string]func(*store.Object) []string{"address": namedAddresses},
}}

func namedAddresses(o *store.Object) []string {
	var spec struct {
		ProviderConfig json.RawMessage `json:"providerConfig"`
	}
	if json.Unmarshal(o.Spec, &spec) != nil {
		return nil
	}
	addrs, _ := ConfigAddresses(spec.ProviderConfig, nil)
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

// NodeGroupSpec is what a client declares.
type NodeGroupSpec struct {
	Count int `json:"count"`
	// ProviderClass names a provider module.
	ProviderClass string `json:"providerClass"`
	// ProviderConfig is a JSON object in the module's own schema.
	ProviderConfig json.RawMessage `json:"providerConfig,omitempty"`
	// TalosVersion overrides the tenant's.
	TalosVersion  string        `json:"talosVersion,omitempty"`
	ConfigPatches []InlinePatch `json:"configPatches,omitempty"`
}

// NodeGroupStatus is derived from machines; its one writer is the node group status controller.
type NodeGroupStatus struct {
	Phase      Phase         `json:"phase,omitempty"`
	Ready      bool          `json:"ready"`
	Machines   MachineCounts `json:"machines"`
	Conditions []Condition   `json:"conditions,omitempty"`
}

// SplitName splits the stored name of a tenant's sub-resource into tenant and name.
func SplitName(stored string) (tenant, name string) {
	tenant, name, _ = strings.Cut(stored, "/")
	return tenant, name
}

// SubName is the stored name of a tenant's sub-resource.
func SubName(tenant, name string) string { return tenant + "/" + name }
