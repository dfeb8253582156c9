package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type (
	streamList struct {
		NodePath
		rest.Numbered
		Convergence string `query:"convergence" doc:"unknown, pending, applying, in_sync, degraded or blocked."`
	}
	allStreamList struct {
		rest.Numbered
		Node        string `query:"node_id" doc:"Of this node only. It need not exist."`
		Convergence string `query:"convergence" doc:"unknown, pending, applying, in_sync, degraded or blocked."`
	}
	streamOutput struct {
		ETag string `header:"ETag" doc:"The desired generation."`
		Body client.Stream
	}
	desiredStatePut struct {
		StreamPath
		Guarded
		Body client.DesiredState
	}
	restartPost struct {
		StreamPath
		Guarded
		Body *client.RestartAction
	}
)

func (s *service) registerStreams(a *rest.API) {
	tag := op("Streams")
	rest.Register(a, tag.get(streamsPath, "list-streams", "List a node's streams, by id"), s.listStreams)
	rest.Register(a, tag.get(allStreamsPath, "list-all-streams", "List the streams of all nodes, by NODE/STREAM"), s.listAllStreams)
	rest.Register(a, tag.get(streamPath, "get-stream", "What is desired of a stream, what was observed, and how they compare"), s.getStream)
	rest.Register(a, tag.write(http.MethodPut, streamPath+"/desired-state", "set-desired-state", http.StatusAccepted, "Declare what a stream is to be",
		"Creates the stream, too. 202 means that the target is durable; the operation and the stream's convergence tell what becomes of it. A node that is offline does not refuse it."), s.setDesiredState)
	rest.Register(a, tag.write(http.MethodPost, streamPath+"/actions/restart", "restart-stream", http.StatusAccepted, "Restart a stream once",
		"It has converged when the agent reported the action, and the stream is observed running."), s.restartStream)
}

func splitStream(name string) (node, resource string) {
	node, resource, _ = strings.Cut(name, "/")
	return node, resource
}

var convergences = []hub.ConvergenceState{hub.Unknown, hub.Pending, hub.Applying, hub.InSync, hub.Degraded, hub.ConvergenceBlocked}

// convergenceSelector selects streams by convergence, "" all. The error names the parameter.
func convergenceSelector(convergence string) (labels.Selector, error) {
	if convergence == "" {
		return nil, nil
	}
	if err := oneOf("convergence", hub.ConvergenceState(convergence), convergences); err != nil {
		return nil, err
	}
	return labels.SelectorFromValidatedSet(labels.Set{hub.LabelConvergence: convergence}), nil
}

// oneOf checks a word of a fixed vocabulary.
func oneOf[T ~string](field string, value T, known []T) error {
	if p := problem.Invalid(unknownWord(field, value, known)...); p != nil {
		return p
	}
	return nil
}

// unknownWord is the fault of a word that is not of the vocabulary, none otherwise.
func unknownWord[T ~string](field string, value T, known []T) []rest.Cause {
	if slices.Contains(known, value) {
		return nil
	}
	words := make([]string, len(known))
	for i, k := range known {
		words[i] = string(k)
	}
	return []rest.Cause{{Field: field, Message: "must be one of " + strings.Join(words, ", ")}}
}

func (s *service) listStreams(ctx context.Context, in *streamList) (*page[client.Stream], error) {
	return s.streams(ctx, in.Numbered, hub.StreamName(in.Node, ""), in.Convergence, func(r store.Reader) error {
		_, err := r.Get(hub.Nodes.Kind.Name, in.Node)
		return missing(err, "node", in.Node)
	})
}

func (s *service) listAllStreams(ctx context.Context, in *allStreamList) (*page[client.Stream], error) {
	prefix := ""
	if in.Node != "" {
		prefix = hub.StreamName(in.Node, "")
	}
	return s.streams(ctx, in.Numbered, prefix, in.Convergence, func(store.Reader) error { return nil })
}

// streams answers a page of the streams whose names begin with the prefix. The precondition is read in the same view.
func (s *service) streams(ctx context.Context, in rest.Numbered, prefix, convergence string, precondition func(store.Reader) error) (*page[client.Stream], error) {
	selector, err := convergenceSelector(convergence)
	if err != nil {
		return nil, err
	}
	offset, limit := in.Bounds()
	out := &page[client.Stream]{}
	err = s.Store.View(ctx, func(r store.Reader) error {
		if err := precondition(r); err != nil {
			return err
		}
		streams, total, err := hub.Streams.List(r, store.Query{Prefix: prefix, Selector: selector, Offset: offset, Limit: limit})
		if err != nil {
			return err
		}
		out.Body = client.HubPage[client.Stream]{Items: make([]client.Stream, len(streams)), Page: in.Page, PageSize: limit, Total: total}
		for i, st := range streams {
			out.Body.Items[i] = wireStream(st)
		}
		return nil
	})
	return out, err
}

func (s *service) getStream(ctx context.Context, in *StreamPath) (*streamOutput, error) {
	st, err := s.stream(ctx, in)
	if err != nil {
		return nil, err
	}
	return &streamOutput{ETag: hub.ETag(st.Spec.Generation()), Body: wireStream(st)}, nil
}

// stream reads one; the error tells whether it is the node that does not exist.
func (s *service) stream(ctx context.Context, in *StreamPath) (*hub.Stream, error) {
	var st *hub.Stream
	err := s.Store.View(ctx, func(r store.Reader) (err error) {
		if _, err := r.Get(hub.Nodes.Kind.Name, in.Node); err != nil {
			return missing(err, "node", in.Node)
		}
		st, err = hub.Streams.Get(r, hub.StreamName(in.Node, in.Stream))
		return missing(err, "stream", in.Stream)
	})
	return st, err
}

func (s *service) setDesiredState(ctx context.Context, in *desiredStatePut) (*answered[client.StreamAccepted], error) {
	var faults []rest.Cause
	switch {
	case in.Body.State == "":
		faults = append(faults, rest.Cause{Field: "state", Message: "is required: running, stopped or absent"})
	case !in.Body.State.Desirable():
		faults = append(faults, rest.Cause{Field: "state", Message: "must be running, stopped or absent"})
	}
	return s.declare(ctx, in.Body, faults, ledger.Mutation{
		Node: in.Node, Resource: in.Stream, Verb: hub.SetState, State: in.Body.State, ConfigVersion: in.Body.ConfigVersion,
	})
}

func (s *service) restartStream(ctx context.Context, in *restartPost) (*answered[client.StreamAccepted], error) {
	action := client.RestartAction{}
	if in.Body != nil {
		action = *in.Body
	}
	var faults []rest.Cause
	if action.ActionID != "" {
		if err := hub.ValidID(action.ActionID); err != nil {
			faults = append(faults, rest.Cause{Field: "action_id", Message: err.Error()})
		}
	}
	return s.declare(ctx, action, faults, ledger.Mutation{Node: in.Node, Resource: in.Stream, Verb: hub.Restart, ActionID: action.ActionID})
}

// declare writes a new generation of a stream, or of the node-wide configuration. Faults are those of the body.
func (s *service) declare(ctx context.Context, body any, faults []rest.Cause, d ledger.Mutation, checks ...check) (*answered[client.StreamAccepted], error) {
	m, err := s.begin(ctx, body)
	if err != nil {
		return nil, err
	}
	if stream := rest.Request(ctx).PathValue("stream_id"); stream != "" {
		if err := hub.ValidID(stream); err != nil {
			faults = append(faults, rest.Cause{Field: "stream_id", Message: err.Error()})
		}
	}
	if p := problem.Invalid(faults...); p != nil {
		return nil, p
	}
	d.Principal, d.CorrelationID = m.caller.User, rest.RequestID(ctx)
	return commit(ctx, m, http.StatusAccepted, func(tx store.Tx) (*change[client.StreamAccepted], error) {
		match, conditional, err := precondition(ctx)
		if err != nil {
			return nil, err
		}
		d.Match = match
		for _, check := range checks {
			if err := check(tx, &d); err != nil {
				return nil, err
			}
		}
		intent, err := s.Ledger.Declare(tx, d)
		if err != nil {
			return nil, err
		}
		return &change[client.StreamAccepted]{
			body: wireAccepted(intent), location: operationsPath + "/" + intent.ID, etag: hub.ETag(intent.Generation),
			kind: kindStream, name: hub.StreamName(intent.Node, intent.Resource),
			detail: declared{
				IntentID: intent.ID, Generation: intent.Generation, State: intent.Desired.State,
				ConfigVersion: intent.Desired.ConfigVersion, ActionID: intent.Desired.ActionID, Unconditional: !conditional,
			},
		}, nil
	})
}

// check refuses a mutation, in its transaction.
type check func(store.Reader, *ledger.Mutation) error

// declared is what the audit tells of a mutation.
type declared struct {
	IntentID      string    `json:"intent_id"`
	Generation    int64     `json:"generation"`
	State         hub.State `json:"state"`
	ConfigVersion string    `json:"config_version,omitempty"`
	ActionID      string    `json:"action_id,omitempty"`
	// Unconditional: whoever wrote named no generation.
	Unconditional bool `json:"unconditional,omitempty"`
}
