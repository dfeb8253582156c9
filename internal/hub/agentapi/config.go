package agentapi

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/labels"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type configInput struct {
	ID string `path:"id" doc:"The config version, such as cfg-17."`
}
type configOutput struct{ Body protocol.ConfigContent }

func (s *service) registerConfigs() {
	rest.Register(s.api, rest.Operation{
		Method: http.MethodGet, Path: Prefix + "/config-versions/{id}", ID: "fetch-config-version", Access: rest.View,
		Summary: "Fetch a config version that one of the node's streams has", Tags: []string{"Config versions"},
	}, s.fetchConfig)
}

// fetchConfig answers only what the node has to know: to any other, a version does not exist.
func (s *service) fetchConfig(ctx context.Context, in *configInput) (*configOutput, error) {
	out := &configOutput{}
	err := s.view(ctx, func(r store.Reader, n *hub.Node) error {
		concerns, err := concerned(r, n.Name, in.ID)
		if err != nil {
			return err
		}
		if !concerns {
			return &hub.NotFoundError{Kind: "config version", ID: in.ID}
		}
		c, content, err := s.Ledger.ConfigContent(r, in.ID)
		if err != nil {
			return err
		}
		out.Body = protocol.ConfigContent{ConfigVersion: c.Name, Engine: c.Spec.Engine, Digest: c.Spec.Digest, Content: content}
		return nil
	})
	return out, err
}

// recent is how many of a node's operations are looked through for a version that no stream is at any more.
const recent = 500

// concerned tells whether a stream of the node is declared to be at the version, or was. What the node itself reports
// proves nothing.
func concerned(r store.Reader, node, version string) (bool, error) {
	streams, _, err := hub.Streams.List(r, store.Query{Prefix: hub.StreamName(node, "")})
	if err != nil {
		return false, err
	}
	for _, st := range streams {
		if d := st.Spec.Desired; d != nil && d.ConfigVersion == version ||
			st.Spec.LastConverged == version || st.Spec.PreviousConverged == version {
			return true, nil
		}
	}
	// An agent that runs on with what came before a refused version may have lost its copy.
	intents, _, err := hub.Operations.List(r, store.Query{
		Selector: labels.SelectorFromValidatedSet(labels.Set{hub.LabelNode: node}), NewestFirst: true, Limit: recent,
	})
	if err != nil {
		return false, err
	}
	for _, i := range intents {
		if i.Status.Desired.ConfigVersion == version {
			return true, nil
		}
	}
	return false, nil
}
