package client

import (
	"encoding/json"
	"net/url"

	"freehold.dev/freehold/internal/cloud"
)

const api = "/api/v1"

func tenantPath(tenant string) string { return api + "/tenants/" + url.PathEscape(tenant) }

// Tenants of the server.
func Tenants(c *Client) Collection[cloud.TenantSpec, cloud.TenantStatus] {
	return collection[cloud.TenantSpec, cloud.TenantStatus](c, KindTenant, "")
}

// NodeGroups of a tenant.
func NodeGroups(c *Client, tenant string) Collection[cloud.NodeGroupSpec, cloud.NodeGroupStatus] {
	return collection[cloud.NodeGroupSpec, cloud.NodeGroupStatus](c, KindNodeGroup, tenant)
}

// Machines of the server, of every tenant and of none. Creating one registers it; only unassigned ones can be
// deleted here.
func Machines(c *Client) Collection[MachineSpec, cloud.MachineStatus] {
	return collection[MachineSpec, cloud.MachineStatus](c, KindMachine, "")
}

// TenantMachines are the machines of one tenant.
func TenantMachines(c *Client, tenant string) Collection[MachineSpec, cloud.MachineStatus] {
	return collection[MachineSpec, cloud.MachineStatus](c, KindMachine, tenant)
}

// Providers are the server's compiled-in modules.
func Providers(c *Client) Collection[cloud.ProviderSpec, cloud.ProviderStatus] {
	return collection[cloud.ProviderSpec, cloud.ProviderStatus](c, KindProvider, "")
}

// Kind names a kind of resource.
type Kind string

// The kinds.
const (
	KindTenant    Kind = "Tenant"
	KindNodeGroup Kind = "NodeGroup"
	KindMachine   Kind = "Machine"
	KindProvider  Kind = "Provider"
	KindUser      Kind = "User"
	KindToken     Kind = "APIToken"
)

// Objects gives untyped access to a kind. The parent is the tenant of node groups (and, if not empty, of
// machines), the user of tokens, and ignored for others.
func Objects(c *Client, kind Kind, parent string) Collection[json.RawMessage, json.RawMessage] {
	return collection[json.RawMessage, json.RawMessage](c, kind, parent)
}

func collection[S, T any](c *Client, kind Kind, parent string) Collection[S, T] {
	path, f := place(kind, parent)
	return Collection[S, T]{c: c, path: path, feed: f}
}

// place tells where a kind is served, and which changes are offered there.
func place(kind Kind, parent string) (path string, f feed) {
	switch kind {
	case KindTenant:
		return api + "/tenants", feed{all: true, one: true}
	case KindNodeGroup:
		return tenantPath(parent) + "/node-groups", feed{all: true, one: true}
	case KindMachine:
		if parent == "" {
			return api + "/machines", feed{all: true, one: true}
		}
		return tenantPath(parent) + "/machines", feed{all: true, one: true}
	case KindProvider:
		return api + "/providers", feed{one: true}
	case KindUser:
		return api + "/users", feed{}
	case KindToken:
		return api + "/users/" + url.PathEscape(parent) + "/tokens", feed{}
	default:
		panic("client: unknown kind " + string(kind))
	}
}
