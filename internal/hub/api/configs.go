package api

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// maxDescription of a config version, in bytes.
	maxDescription = 1024
	// maxConfigBody is the largest request: as JSON, a byte of content takes six at most.
	maxConfigBody = 6*hub.MaxConfig + 64<<10
)

var engines = []hub.Engine{hub.EngineBenthos, hub.EngineProcess, hub.EngineNode}

type (
	configList struct {
		rest.Numbered
		Engine string `query:"engine" doc:"benthos, process or node."`
	}
	configPath struct {
		ID string `path:"config_version" doc:"The config version: cfg-N."`
	}
	configOutput struct{ Body client.ConfigVersion }
	configCreate struct {
		Retriable
		Body client.ConfigContent
	}
	configValidate   struct{ Body client.ConfigContent }
	validationOutput struct{ Body client.ConfigValidation }
)

// lints are the details of a config version that was refused for its content.
type lints struct {
	Lints []hub.Lint `json:"lints"`
}

func (s *service) registerConfigs(a *rest.API) {
	tag := op("ConfigVersions")
	rest.Register(a, tag.get(configsPath, "list-config-versions", "List config versions, newest first"), s.listConfigs)
	rest.Register(a, tag.get(configsPath+"/{config_version}", "get-config-version", "Get a config version with its content"), s.getConfig)
	publish := tag.write(http.MethodPost, configsPath, "publish-config-version", http.StatusCreated, "Publish a config version",
		"It is immutable. The same content again answers the version that it has, with 200. Content with faults is refused: details.lints has them with line and column.")
	publish.MaxBody = maxConfigBody
	rest.Register(a, publish, s.publishConfig)
	validate := tag.write(http.MethodPost, configsPath+"/validate", validateID, http.StatusOK, "Look for faults in a content", "Stores nothing.")
	validate.Access, validate.MaxBody = rest.View, maxConfigBody
	rest.Register(a, validate, s.validateConfig)
}

func (s *service) listConfigs(ctx context.Context, in *configList) (*page[client.ConfigVersion], error) {
	q := store.Query{NewestFirst: true}
	if in.Engine != "" {
		if err := oneOf("engine", hub.Engine(in.Engine), engines); err != nil {
			return nil, err
		}
		q.Selector = labels.SelectorFromValidatedSet(labels.Set{hub.LabelEngine: in.Engine})
	}
	q.Offset, q.Limit = in.Bounds()
	out := &page[client.ConfigVersion]{}
	err := s.Store.View(ctx, func(r store.Reader) error {
		found, total, err := hub.Configs.List(r, q)
		if err != nil {
			return err
		}
		out.Body = client.HubPage[client.ConfigVersion]{Items: make([]client.ConfigVersion, len(found)), Page: in.Page, PageSize: q.Limit, Total: total}
		for i, c := range found {
			out.Body.Items[i] = wireConfig(c)
		}
		return nil
	})
	return out, err
}

func (s *service) getConfig(ctx context.Context, in *configPath) (*configOutput, error) {
	out := &configOutput{}
	err := s.Store.View(ctx, func(r store.Reader) error {
		c, content, err := s.Ledger.ConfigContent(r, in.ID)
		if err != nil {
			return err
		}
		out.Body = wireConfig(c)
		out.Body.Content = content
		return nil
	})
	return out, err
}

// wellFormed checks what no linter looks at.
func wellFormed(in *client.ConfigContent) error {
	faults := unknownWord("engine", in.Engine, engines)
	switch {
	case in.Content == "":
		faults = append(faults, rest.Cause{Field: "content", Message: "is required"})
	case len(in.Content) > hub.MaxConfig:
		faults = append(faults, rest.Cause{Field: "content", Message: fmt.Sprintf("must not be longer than %d bytes", hub.MaxConfig)})
	}
	if len(in.Description) > maxDescription {
		faults = append(faults, rest.Cause{Field: "description", Message: fmt.Sprintf("must not be longer than %d bytes", maxDescription)})
	}
	if p := problem.Invalid(faults...); p != nil {
		return p
	}
	return nil
}

func (s *service) publishConfig(ctx context.Context, in *configCreate) (*answered[client.ConfigPublished], error) {
	m, err := s.begin(ctx, in.Body)
	if err != nil {
		return nil, err
	}
	if err := wellFormed(&in.Body); err != nil {
		return nil, err
	}
	found, err := s.Linter.Lint(ctx, in.Body.Engine, in.Body.Content)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return nil, problem.New(http.StatusUnprocessableEntity, problem.CodeValidationFailed, faulty(found), lints{found})
	}
	return commit(ctx, m, http.StatusCreated, func(tx store.Tx) (*change[client.ConfigPublished], error) {
		c, created, err := s.Ledger.PublishConfig(tx, in.Body.Engine, in.Body.Content, in.Body.Description, m.caller.User)
		if err != nil {
			return nil, err
		}
		out := &change[client.ConfigPublished]{
			body:     client.ConfigPublished{ConfigVersion: c.Name, Digest: c.Spec.Digest, Engine: c.Spec.Engine},
			location: configsPath + "/" + c.Name,
			kind:     kindConfig, name: c.Name, uid: c.UID, detail: map[string]any{"digest": c.Spec.Digest, "created": created},
		}
		if !created {
			out.status = http.StatusOK
		}
		return out, nil
	})
}

// faulty says the first fault.
func faulty(found []hub.Lint) string {
	first := found[0]
	at := ""
	if first.Line > 0 {
		at = fmt.Sprintf("line %d, column %d: ", first.Line, first.Column)
	}
	if len(found) == 1 {
		return "the content has a fault: " + at + first.Message
	}
	return fmt.Sprintf("the content has %d faults; the first: %s%s", len(found), at, first.Message)
}

func (s *service) validateConfig(ctx context.Context, in *configValidate) (*validationOutput, error) {
	if err := wellFormed(&in.Body); err != nil {
		return nil, err
	}
	found, err := s.Linter.Lint(ctx, in.Body.Engine, in.Body.Content)
	if err != nil {
		return nil, err
	}
	return &validationOutput{client.ConfigValidation{Valid: len(found) == 0, Lints: never(found)}}, nil
}
