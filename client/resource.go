// Package client speaks to a Freehold server: the operator API of its planes. The wire types here are the ones the
// server itself answers with.
package client

import (
	"encoding/json"
	"time"

	"freehold.dev/freehold/internal/cloud"
)

// Metadata of a resource. Clients set Name, Labels, Annotations, and send back ResourceVersion; the rest is the
// server's.
type Metadata struct {
	Name              string            `json:"name"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   int64             `json:"resourceVersion,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	CreatedAt         time.Time         `json:"createdAt,omitzero"`
	UpdatedAt         time.Time         `json:"updatedAt,omitzero"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
	Finalizers        []string          `json:"finalizers"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
}

// Resource is the three-section shape of every resource.
type Resource[S, T any] struct {
	Metadata Metadata `json:"metadata"`
	Spec     S        `json:"spec"`
	Status   T        `json:"status"`
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

// The resources of the Cloud plane.
type (
	Tenant    = Resource[cloud.TenantSpec, cloud.TenantStatus]
	NodeGroup = Resource[cloud.NodeGroupSpec, cloud.NodeGroupStatus]
	Machine   = Resource[MachineSpec, cloud.MachineStatus]
	Provider  = Resource[cloud.ProviderSpec, cloud.ProviderStatus]
)

// MachineSpec is a machine's spec as served: with Connected, an observation that the API shows here.
type MachineSpec struct {
	ManagementAddress string `json:"managementAddress"`
	Connected         bool   `json:"connected"`
}
