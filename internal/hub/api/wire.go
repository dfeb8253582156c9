package api

import (
	"maps"
	"slices"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// page of a collection.
type page[R any] struct{ Body client.HubPage[R] }

func wireStream(s *hub.Stream) client.Stream {
	node, resource := splitStream(s.Name)
	return client.Stream{
		NodeID: node, StreamID: resource, Desired: s.Spec.Desired, Observed: s.Status.Observed,
		Convergence: s.Status.Convergence.State, ConvergenceReason: s.Status.Convergence.Reason, ConvergenceSince: s.Status.Convergence.Since,
		IntentID: s.Spec.IntentID, OperationID: s.Spec.IntentID, AttemptID: s.Status.AttemptID,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
}

// wireNode renders a node with its streams counted; what is live of it is added by the caller.
func wireNode(n *hub.Node, streams map[hub.ConvergenceState]int) client.HubNode {
	labels := map[string]string{}
	maps.Copy(labels, n.Status.AgentLabels)
	maps.Copy(labels, n.Labels)
	return client.HubNode{
		NodeID: n.Name, State: n.Status.Presence, Since: n.Status.Since, Labels: labels,
		AgentVersion: n.Status.AgentVersion, ProtocolVersion: n.Status.ProtocolVersion,
		Capabilities: never(n.Status.Capabilities), Conditions: never(n.Status.Conditions),
		Streams: streams, Deleting: n.Deleting(), CreatedAt: n.CreatedAt,
	}
}

// never is a list that is never null.
func never[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return slices.Clone(list)
}

// wireOperation renders an intent. stream is its stream, nil when that is gone: the convergence of the stream's current
// intent is the stream's.
func wireOperation(i *hub.Intent, stream *hub.Stream) client.Operation {
	convergence := i.Convergence
	if stream != nil && stream.Spec.IntentID == i.ID {
		convergence = stream.Status.Convergence
	}
	o := client.Operation{
		OperationID: i.ID, IntentID: i.ID, NodeID: i.Node, ResourceID: i.Resource, StreamID: i.Resource,
		Operation: i.Verb, State: i.State, Generation: i.Generation,
		DesiredState: i.Desired.State, ConfigVersion: i.Desired.ConfigVersion, ActionID: i.Desired.ActionID,
		Convergence: convergence.State, ConvergenceReason: convergence.Reason,
		Attempts: i.Attempts, Retry: i.Retry, Failure: i.Failure, Observed: i.Observed,
		CorrelationID: i.CorrelationID, Principal: i.Principal,
		CreatedAt: i.CreatedAt, UpdatedAt: i.UpdatedAt, FinishedAt: i.FinishedAt,
	}
	if i.Resource == hub.NodeConfig {
		o.StreamID = ""
	}
	if a := i.Attempt; a != nil {
		o.AttemptID = a.ID
		o.Attempt = &client.OperationAttempt{
			State: a.State, DispatchedAt: a.DispatchedAt, AcknowledgedAt: a.AcknowledgedAt, FinishedAt: a.FinishedAt,
			LeaseExpiresAt: a.LeaseExpiresAt, Result: a.Result,
		}
	}
	return o
}

func wireAccepted(i *hub.Intent) client.StreamAccepted {
	return client.StreamAccepted{
		OperationID: i.ID, IntentID: i.ID, NodeID: i.Node, StreamID: i.Resource, Generation: i.Generation,
		DesiredState: i.Desired.State, ConfigVersion: i.Desired.ConfigVersion, ActionID: i.Desired.ActionID,
		Convergence: i.Convergence.State,
	}
}

func wireConfig(c *hub.Config) client.ConfigVersion {
	return client.ConfigVersion{
		ConfigVersion: c.Name, Engine: c.Spec.Engine, Digest: c.Spec.Digest, Size: c.Spec.Size,
		Description: c.Spec.Description, Principal: c.Spec.Principal, CreatedAt: c.CreatedAt,
	}
}

// countStreams counts a node's streams by convergence, without those that were removed and the node's own configuration.
// It looks at their labels only.
func countStreams(r store.Reader, node string) (map[hub.ConvergenceState]int, error) {
	list, err := r.List(store.Query{Kind: hub.Streams.Kind.Name, Prefix: hub.StreamName(node, "")})
	if err != nil {
		return nil, err
	}
	counts := map[hub.ConvergenceState]int{}
	for _, o := range list.Objects {
		if o.Labels[hub.LabelRemoved] != "" || o.Name == hub.StreamName(node, hub.NodeConfig) {
			continue
		}
		counts[hub.ConvergenceState(o.Labels[hub.LabelConvergence])]++
	}
	return counts, nil
}
