package api

import (
	"context"
	"net/http"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// The routes of earlier versions make the same intents as the canonical ones, and are answered the same.

type (
	streamAct struct {
		StreamPath
		Guarded
		Body *Empty
	}
	streamConfigApply struct {
		StreamPath
		Guarded
		Body client.ConfigReference
	}
	nodeConfigApply struct {
		NodePath
		Guarded
		Body client.ConfigReference
	}
	nodeConfigRollback struct {
		NodePath
		Guarded
		Body *Empty
	}
)

func (s *service) registerAdapters(a *rest.API) {
	tag := op("Streams")
	post := func(path, id, summary, description string) rest.Operation {
		return tag.write(http.MethodPost, path, id, http.StatusAccepted, summary, description)
	}
	const legacy = "The same as the canonical route, for programs that were written for this one."
	rest.Register(a, post(streamPath+"/restart", "legacy-restart-stream", "Restart a stream once", legacy), s.restartStream)
	rest.Register(a, post(streamPath+"/start", "start-stream", "Declare a stream running", legacy),
		func(ctx context.Context, in *streamAct) (*answered[client.StreamAccepted], error) {
			return s.declare(ctx, Empty{}, nil, ledger.Mutation{Node: in.Node, Resource: in.Stream, Verb: hub.SetState, State: hub.Running}, exists)
		})
	rest.Register(a, post(streamPath+"/stop", "stop-stream", "Declare a stream stopped", legacy),
		func(ctx context.Context, in *streamAct) (*answered[client.StreamAccepted], error) {
			return s.declare(ctx, Empty{}, nil, ledger.Mutation{Node: in.Node, Resource: in.Stream, Verb: hub.SetState, State: hub.Stopped}, exists)
		})
	rest.Register(a, post(streamPath+"/config/apply", "apply-stream-config", "Declare a stream's config version", "Creates the stream, too, to run. One that is stopped stays so."),
		func(ctx context.Context, in *streamConfigApply) (*answered[client.StreamAccepted], error) {
			return s.applyConfig(ctx, in.Node, in.Stream, in.Body)
		})
	rest.Register(a, post(streamPath+"/config/rollback", "roll-back-stream-config", "Declare the config version that converged before", ""),
		func(ctx context.Context, in *streamAct) (*answered[client.StreamAccepted], error) {
			return s.declare(ctx, Empty{}, nil, ledger.Mutation{Node: in.Node, Resource: in.Stream, Verb: hub.ConfigRollback}, exists)
		})

	tag = "Nodes"
	rest.Register(a, post(nodePath+"/config/apply", "apply-node-config", "Declare a node's own configuration",
		"A config version of the engine node. It is the resource __configuration__ of the node."),
		func(ctx context.Context, in *nodeConfigApply) (*answered[client.StreamAccepted], error) {
			return s.applyConfig(ctx, in.Node, hub.NodeConfig, in.Body)
		})
	rest.Register(a, post(nodePath+"/config/rollback", "roll-back-node-config", "Declare the node's configuration that converged before", ""),
		func(ctx context.Context, in *nodeConfigRollback) (*answered[client.StreamAccepted], error) {
			return s.declare(ctx, Empty{}, nil, ledger.Mutation{Node: in.Node, Resource: hub.NodeConfig, Verb: hub.ConfigRollback}, exists)
		})
}

func (s *service) applyConfig(ctx context.Context, node, resource string, body client.ConfigReference) (*answered[client.StreamAccepted], error) {
	var faults []rest.Cause
	if body.ConfigVersion == "" {
		faults = append(faults, rest.Cause{Field: "config_version", Message: "is required"})
	}
	return s.declare(ctx, body, faults, ledger.Mutation{Node: node, Resource: resource, Verb: hub.ConfigApply, ConfigVersion: body.ConfigVersion})
}

// exists refuses what was never declared: an adapter that names no config version creates nothing.
func exists(r store.Reader, d *ledger.Mutation) error {
	if _, err := r.Get(hub.Nodes.Kind.Name, d.Node); err != nil {
		return missing(err, "node", d.Node)
	}
	st, err := hub.Streams.Get(r, hub.StreamName(d.Node, d.Resource))
	if err != nil {
		return missing(err, "stream", d.Resource)
	}
	if st.Spec.Generation() == 0 {
		return &hub.NotFoundError{Kind: "stream", ID: d.Resource}
	}
	return nil
}
