package api

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type (
	nodeList struct {
		rest.Numbered
	}
	nodeCreate struct {
		Retriable
		Body client.NodeRegistration
	}
	nodeDelete struct {
		NodePath
		Retriable
		Force bool `query:"force" doc:"Forget the node at once, without stopping its streams. For admins."`
	}
	enrolmentCreate struct {
		NodePath
		Retriable
		Body *client.EnrolmentRequest
	}
	nodeOutput struct{ Body client.HubNode }
)

func (s *service) registerNodes(a *rest.API) {
	tag := op("Nodes")
	rest.Register(a, tag.get(nodesPath, "list-nodes", "List nodes, by id"), s.listNodes)
	rest.Register(a, tag.write(http.MethodPost, nodesPath, "register-node", http.StatusCreated, "Register a node",
		"The answer holds a token with which the node's agent enrols; it is shown this once."), s.registerNode)
	rest.Register(a, tag.get(nodePath, "get-node", "Get a node"), s.getNode)
	rest.Register(a, tag.write(http.MethodDelete, nodePath, "delete-node", http.StatusAccepted, "Delete a node",
		"Its streams are stopped first; it goes when its agent reported them absent. One that never enrolled, or has no streams, goes at once."), s.deleteNode)
	rest.Register(a, tag.write(http.MethodPost, nodePath+"/enrolment", "renew-enrolment", http.StatusCreated, "Make a new enrolment token",
		"The agent that is enrolled stays so until the token is used."), s.renewEnrolment)
}

func (s *service) listNodes(ctx context.Context, in *nodeList) (*page[client.HubNode], error) {
	offset, limit := in.Bounds()
	out := &page[client.HubNode]{}
	err := s.Store.View(ctx, func(r store.Reader) error {
		nodes, total, err := hub.Nodes.List(r, store.Query{Offset: offset, Limit: limit})
		if err != nil {
			return err
		}
		out.Body = client.HubPage[client.HubNode]{Items: make([]client.HubNode, len(nodes)), Page: in.Page, PageSize: limit, Total: total}
		for i, n := range nodes {
			if out.Body.Items[i], err = s.node(r, n); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func (s *service) getNode(ctx context.Context, in *NodePath) (*nodeOutput, error) {
	out := &nodeOutput{}
	err := s.Store.View(ctx, func(r store.Reader) error {
		n, err := hub.Nodes.Get(r, in.Node)
		if err != nil {
			return missing(err, "node", in.Node)
		}
		out.Body, err = s.node(r, n)
		return err
	})
	return out, err
}

// node renders a node with what is known of it now.
func (s *service) node(r store.Reader, n *hub.Node) (client.HubNode, error) {
	counts, err := countStreams(r, n.Name)
	if err != nil {
		return client.HubNode{}, err
	}
	w := wireNode(n, counts)
	if at, ok := s.Live.LastReport(n.Name); ok {
		at = at.UTC()
		w.LastReportAt = &at
	}
	return w, nil
}

func (s *service) registerNode(ctx context.Context, in *nodeCreate) (*answered[client.NodeEnrolment], error) {
	m, err := s.begin(ctx, in.Body)
	if err != nil {
		return nil, err
	}
	ttl, faults := enrolmentTTL(in.Body.EnrolmentTTLSeconds)
	if err := hub.ValidID(in.Body.NodeID); err != nil {
		faults = append(faults, rest.Cause{Field: "node_id", Message: err.Error()})
	}
	faults = append(faults, labelFaults(in.Body.Labels)...)
	if p := problem.Invalid(faults...); p != nil {
		return nil, p
	}
	token, enrolment := s.Ledger.NewEnrolment(ttl)
	return commit(ctx, m, http.StatusCreated, func(tx store.Tx) (*change[client.NodeEnrolment], error) {
		n, err := s.Ledger.RegisterNode(tx, in.Body.NodeID, in.Body.Labels, enrolment)
		if err != nil {
			return nil, err
		}
		return s.enrolment(tx, n, token)
	})
}

func (s *service) renewEnrolment(ctx context.Context, in *enrolmentCreate) (*answered[client.NodeEnrolment], error) {
	asked := client.EnrolmentRequest{}
	if in.Body != nil {
		asked = *in.Body
	}
	m, err := s.begin(ctx, asked)
	if err != nil {
		return nil, err
	}
	ttl, faults := enrolmentTTL(asked.EnrolmentTTLSeconds)
	if p := problem.Invalid(faults...); p != nil {
		return nil, p
	}
	token, enrolment := s.Ledger.NewEnrolment(ttl)
	return commit(ctx, m, http.StatusCreated, func(tx store.Tx) (*change[client.NodeEnrolment], error) {
		n, err := s.Ledger.RenewEnrolment(tx, in.Node, enrolment)
		if err != nil {
			return nil, err
		}
		return s.enrolment(tx, n, token)
	})
}

// enrolment answers a token that was made for a node.
func (s *service) enrolment(tx store.Tx, n *hub.Node, token string) (*change[client.NodeEnrolment], error) {
	w, err := s.node(tx, n)
	if err != nil {
		return nil, err
	}
	expires := n.Status.Enrolment.ExpiresAt
	return &change[client.NodeEnrolment]{
		body:     client.NodeEnrolment{HubNode: w, EnrolmentToken: token, TokenExpiresAt: expires},
		location: nodesPath + "/" + n.Name,
		kind:     kindNode, name: n.Name, uid: n.UID, detail: map[string]any{"token_expires_at": expires},
	}, nil
}

// maxLabels of a node.
const maxLabels = 64

// labelFaults checks labels by the rules of Kubernetes, whose grammar selects by them.
func labelFaults(labels map[string]string) (faults []rest.Cause) {
	if len(labels) > maxLabels {
		return []rest.Cause{{Field: "labels", Message: fmt.Sprintf("must not be more than %d", maxLabels)}}
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, message := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(labels[key])...) {
			faults = append(faults, rest.Cause{Field: "labels[" + key + "]", Message: message})
		}
	}
	return faults
}

func enrolmentTTL(seconds int) (time.Duration, []rest.Cause) {
	longest := int(hub.MaxEnrolmentTTL / time.Second)
	if seconds < 0 || seconds > longest {
		return 0, []rest.Cause{{Field: "enrolment_ttl_seconds", Message: fmt.Sprintf("must be from 1 to %d (a week); left out, it is %.0f", longest, hub.EnrolmentTTL.Seconds())}}
	}
	return time.Duration(seconds) * time.Second, nil
}

func (s *service) deleteNode(ctx context.Context, in *nodeDelete) (*answered[client.NodeDeletion], error) {
	m, err := s.begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	if in.Force && !m.caller.Admin {
		return nil, rest.Forbidden("only an admin can use force")
	}
	return commit(ctx, m, http.StatusAccepted, func(tx store.Tx) (*change[client.NodeDeletion], error) {
		n, err := hub.Nodes.Get(tx, in.Node)
		if err != nil {
			return nil, missing(err, "node", in.Node)
		}
		gone, err := s.Ledger.DeleteNode(tx, ledger.Deletion{
			Node: in.Node, Force: in.Force, Principal: m.caller.User, CorrelationID: rest.RequestID(ctx),
		})
		if err != nil {
			return nil, err
		}
		return &change[client.NodeDeletion]{
			body: client.NodeDeletion{NodeID: in.Node, Deleted: gone},
			kind: kindNode, name: in.Node, uid: n.UID, detail: map[string]bool{"force": in.Force, "deleted": gone},
		}, nil
	})
}
