package cloud

import (
	"encoding/json"

	"freehold.dev/freehold/internal/kernel/store"
)

// Provider describes a compiled-in provider module. The server writes these objects at start.
type Provider = store.Resource[ProviderSpec, ProviderStatus]

// Providers is the kind of Provider.
var Providers = store.Type[ProviderSpec, ProviderStatus]{Kind: store.Kind{Name: "provider", Version: 1}}

// ProviderSpec names the module.
type ProviderSpec struct {
	Type string `json:"type"`
}

// ProviderStatus tells what the module can do.
type ProviderStatus struct {
	Mappings []Mapping `json:"mappings"`
	// ConfigSchema is the JSON schema of a node group's providerConfig.
	ConfigSchema json.RawMessage `json:"configSchema,omitempty"`
}

// Mapping tells which TF resource type is projected to which resource.
type Mapping struct {
	TFType   string `json:"tfType"`
	Resource string `json:"resource"`
}
