// Package client speaks to a Freehold server: the operator API of its planes. The wire types here are the ones the
// server itself answers with.
package client

import (
	"encoding/json"
	"time"

	"freehold.dev/freehold/internal/cloud"
)

// Metadata of a resource. Clients set Name, Labels, Annotations, and send back ResourceVersion; the rest is the
// server's, and ignored where a client sends it.
type Metadata struct {
	Name              string            `json:"name" doc:"A DNS-1123 label, unique in its collection; a machine's is a UUID." required:"false"`
	UID               string            `json:"uid,omitempty" readOnly:"true" doc:"Tells objects apart that bore one name after another."`
	ResourceVersion   int64             `json:"resourceVersion,omitempty" doc:"The revision that wrote the object last. An update must carry the one that was read."`
	Generation        int64             `json:"generation,omitempty" readOnly:"true" doc:"Grows by one with each change of spec."`
	CreatedAt         time.Time         `json:"createdAt,omitzero" readOnly:"true"`
	UpdatedAt         time.Time         `json:"updatedAt,omitzero" readOnly:"true"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp" readOnly:"true" doc:"When deletion was asked for. The object goes when its finalizers are gone." required:"false"`
	Finalizers        []string          `json:"finalizers" doc:"What must be done before a deleted object goes. An update without them keeps them." required:"false"`
	Labels            map[string]string `json:"labels" doc:"Kubernetes labels, to select by." required:"false"`
	Annotations       map[string]string `json:"annotations" doc:"Notes that nothing is selected by." required:"false"`
}

// Resource is the three-section shape of every resource.
type Resource[S, T any] struct {
	Metadata Metadata `json:"metadata"`
	Spec     S        `json:"spec"`
	Status   T        `json:"status" required:"false" readOnly:"true"`
}

// Object is a resource of any kind.
type Object = Resource[json.RawMessage, json.RawMessage]

// List is one page of resources. Total counts all that the selectors match; Metadata.ResourceVersion is the
// revision the page was read at, to start a watch from.
type List[R any] struct {
	Metadata ListMetadata `json:"metadata"`
	Items    []R          `json:"items"`
	Total    int          `json:"total"`
}

// ListMetadata of a page.
type ListMetadata struct {
	ResourceVersion int64 `json:"resourceVersion"`
}

// Event of a watch. Kind tells the objects apart where one watch covers several kinds.
type Event[R any] struct {
	Type   string `json:"type" enum:"ADDED,MODIFIED,DELETED,BOOKMARK"`
	Kind   string `json:"kind,omitempty"`
	Object R      `json:"object"`
}

// Tenant is a Kubernetes cluster.
type Tenant = Resource[cloud.TenantSpec, cloud.TenantStatus]

// NodeGroup is a set of machines of one role in a tenant.
type NodeGroup = Resource[cloud.NodeGroupSpec, cloud.NodeGroupStatus]

// Machine is a physical or virtual machine.
type Machine = Resource[MachineSpec, cloud.MachineStatus]

// Provider is a compiled-in provider module.
type Provider = Resource[cloud.ProviderSpec, cloud.ProviderStatus]

// MachineSpec is a machine's spec as served: with Connected, an observation that the API shows here.
type MachineSpec struct {
	ManagementAddress string `json:"managementAddress" doc:"Where the Talos API listens: host or host:port (default port 50000)."`
	Connected         bool   `json:"connected" readOnly:"true" doc:"Whether the machine answers; observed, and ignored in an update."`
}
