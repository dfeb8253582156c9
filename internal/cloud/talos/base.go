package talos

import (
	"encoding/json"

	"freehold.dev/freehold/internal/cloud"
)

// BasePatches are the patches that follow from a tenant's own fields; they come before all others. They are
// deterministic, and none when the spec asks for nothing that differs from Talos' defaults.
func BasePatches(spec cloud.TenantSpec) []string {
	type name struct {
		Name string `json:"name"`
	}
	var network struct {
		CNI            *name    `json:"cni,omitempty"`
		PodSubnets     []string `json:"podSubnets,omitempty"`
		ServiceSubnets []string `json:"serviceSubnets,omitempty"`
	}
	switch spec.Plugins.CNI.Type {
	case cloud.CNINone, cloud.CNICilium:
		network.CNI = &name{Name: cloud.CNINone}
	}
	network.PodSubnets = spec.PodNetwork
	network.ServiceSubnets = spec.ServiceNetwork
	if network.CNI == nil && len(network.PodSubnets) == 0 && len(network.ServiceSubnets) == 0 {
		return nil
	}
	text, err := json.Marshal(map[string]any{"cluster": map[string]any{"network": network}})
	if err != nil {
		return nil // strings always marshal
	}
	return []string{string(text)}
}
