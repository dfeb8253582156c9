package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// ArtifactOptions of a kubeconfig or talosconfig.
type ArtifactOptions struct {
	// TTL of the client certificate in it. 0: the server's default, 24 h.
	TTL time.Duration
}

// Kubeconfig answers a new kubeconfig (YAML) for a tenant's cluster, made out to the client's user. It is a secret.
func (c *Client) Kubeconfig(ctx context.Context, tenant string, o ArtifactOptions) ([]byte, error) {
	return c.artifact(ctx, tenant, "kubeconfig", o)
}

// Talosconfig answers a new talosconfig (YAML) for a tenant's machines. It is a secret.
func (c *Client) Talosconfig(ctx context.Context, tenant string, o ArtifactOptions) ([]byte, error) {
	return c.artifact(ctx, tenant, "talosconfig", o)
}

func (c *Client) artifact(ctx context.Context, tenant, name string, o ArtifactOptions) ([]byte, error) {
	q := url.Values{}
	if o.TTL > 0 {
		q.Set("ttl", o.TTL.String())
	}
	return c.raw(ctx, request{
		method: http.MethodGet, path: tenantPath(tenant) + "/" + name, query: q,
		header: http.Header{"Accept": {"application/yaml, */*"}},
	})
}

// ServerVersion is what the server tells of itself at /version.
type ServerVersion struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	GoVersion string `json:"goVersion,omitempty"`
}

// Version of the server. It needs no token.
func (c *Client) Version(ctx context.Context) (*ServerVersion, error) {
	out := new(ServerVersion)
	return result(out, c.do(ctx, request{method: http.MethodGet, path: "/version"}, out))
}
