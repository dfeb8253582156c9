package client

import (
	"context"
	"net/http"
	"net/url"

	"freehold.dev/freehold/internal/hub"
)

// ConfigValidation answers a validation.
type ConfigValidation struct {
	Valid bool `json:"valid"`
	// Lints are the faults, in the order of the content.
	Lints []hub.Lint `json:"lints"`
}

// PublishConfig stores a config version; content that was published before answers the version that it became then.
// Content with faults is refused: see [Lints].
func (h Hub) PublishConfig(ctx context.Context, in ConfigContent, o MutationOptions) (*ConfigPublished, error) {
	return mutate[ConfigPublished](ctx, h, http.MethodPost, api+"/config-versions", in, o)
}

// ValidateConfig tells the faults of a content, and stores nothing.
func (h Hub) ValidateConfig(ctx context.Context, in ConfigContent) (*ConfigValidation, error) {
	out := new(ConfigValidation)
	return result(out, h.c.do(ctx, request{method: http.MethodPost, path: api + "/config-versions/validate", body: in}, out))
}

// Configs lists config versions without their content, those of one engine (or "": all), at most limit (0: all).
func (h Hub) Configs(ctx context.Context, engine hub.Engine, limit int) ([]ConfigVersion, error) {
	q := url.Values{}
	if engine != "" {
		q.Set("engine", string(engine))
	}
	return pages(ctx, h, api+"/config-versions", q, limit, func(v ConfigVersion) string { return v.ConfigVersion })
}

// Config answers one config version with its content.
func (h Hub) Config(ctx context.Context, version string) (*ConfigVersion, error) {
	return fetch[ConfigVersion](ctx, h, api+"/config-versions/"+url.PathEscape(version), nil)
}
