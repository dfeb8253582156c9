package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

func nodePath(node string) string { return api + "/nodes/" + url.PathEscape(node) }

// Nodes lists all nodes by name. Their Streams count what runs on them.
func (h Hub) Nodes(ctx context.Context) ([]HubNode, error) {
	return pages(ctx, h, api+"/nodes", nil, 0, func(n HubNode) string { return n.NodeID })
}

// Node answers one node.
func (h Hub) Node(ctx context.Context, node string) (*HubNode, error) {
	return fetch[HubNode](ctx, h, nodePath(node), nil)
}

// RegisterNode makes a node known. The answer carries the token with which its agent enrols, once.
func (h Hub) RegisterNode(ctx context.Context, in NodeRegistration, o MutationOptions) (*NodeEnrolment, error) {
	return mutate[NodeEnrolment](ctx, h, http.MethodPost, api+"/nodes", in, o)
}

// EnrolAgain answers a new enrolment token for a node that exists. When it is used, the credentials that the node's
// agent had before are void. A ttl of 0 is the server's default.
func (h Hub) EnrolAgain(ctx context.Context, node string, ttl time.Duration, o MutationOptions) (*NodeEnrolment, error) {
	body := EnrolmentRequest{EnrolmentTTLSeconds: int(ttl.Seconds())}
	return mutate[NodeEnrolment](ctx, h, http.MethodPost, nodePath(node)+"/enrolment", body, o)
}

// DeleteNode asks for a node to be forgotten: its streams are stopped first, and it is there until they are. With force
// it goes at once, and whatever runs on it is not asked.
func (h Hub) DeleteNode(ctx context.Context, node string, force bool, o MutationOptions) (*NodeDeletion, error) {
	r := request{method: http.MethodDelete, path: nodePath(node), header: o.header()}
	if force {
		r.query = url.Values{"force": {"true"}}
	}
	out := new(NodeDeletion)
	return result(out, h.c.do(ctx, r, out))
}

// ApplyNodeConfig declares the node-wide configuration: a config version of the engine "node".
func (h Hub) ApplyNodeConfig(ctx context.Context, node, version string, o MutationOptions) (*StreamAccepted, error) {
	return mutate[StreamAccepted](ctx, h, http.MethodPost, nodePath(node)+"/config/apply", ConfigReference{ConfigVersion: version}, o)
}

// RollbackNodeConfig declares the node-wide configuration that converged before the present one.
func (h Hub) RollbackNodeConfig(ctx context.Context, node string, o MutationOptions) (*StreamAccepted, error) {
	return mutate[StreamAccepted](ctx, h, http.MethodPost, nodePath(node)+"/config/rollback", nil, o)
}
