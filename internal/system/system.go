// Package system answers what a load balancer, a service manager or a person asks of a server first: is it alive,
// can it serve, which version is it.
package system

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"freehold.dev/freehold/internal/kernel/rest"
)

// checkTimeout bounds all readiness checks of one request.
const checkTimeout = 5 * time.Second

// Check tells whether one part of the server can do its work; its error says why not.
type Check struct {
	Name string
	Func func(context.Context) error
}

// Version of the running program and of what it drives.
type Version struct {
	Version   string `json:"version" doc:"Freehold's own version."`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform" example:"linux/amd64"`
	OpenTofu  string `json:"openTofu,omitempty" doc:"The OpenTofu program that applies run with."`
}

// Config of the system routes.
type Config struct {
	Version  string
	OpenTofu string
	Checks   []Check
}

type healthOutput struct{ Body Health }

// Health is the answer of a probe.
type Health struct {
	Status string            `json:"status" enum:"ok"`
	Checks map[string]string `json:"checks,omitempty"`
}

type versionOutput struct{ Body Version }

// Register adds /healthz, /readyz and /version.
func Register(a *rest.API, c Config) {
	rest.Register(a, rest.Operation{
		Method: http.MethodGet, Path: "/healthz", ID: "get-health", Access: rest.Public,
		Summary: "Is the server alive?", Tags: []string{"System"},
	}, func(context.Context, *struct{}) (*healthOutput, error) {
		return &healthOutput{Body: Health{Status: "ok"}}, nil
	})
	rest.Register(a, rest.Operation{
		Method: http.MethodGet, Path: "/readyz", ID: "get-readiness", Access: rest.Public,
		Summary: "Can the server serve?", Tags: []string{"System"},
		Description: "200 when every part can do its work, else 503 with the parts that cannot.",
	}, func(ctx context.Context, _ *struct{}) (*healthOutput, error) {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		ok := make(map[string]string, len(c.Checks))
		var causes []rest.Cause
		for _, check := range c.Checks {
			if err := check.Func(ctx); err != nil {
				causes = append(causes, rest.Cause{Field: check.Name, Message: err.Error()})
				continue
			}
			ok[check.Name] = "ok"
		}
		if len(causes) > 0 {
			p := rest.Unavailable("not ready: %s: %s", causes[0].Field, causes[0].Message)
			p.Causes = causes
			return nil, p
		}
		return &healthOutput{Body: Health{Status: "ok", Checks: ok}}, nil
	})
	rest.Register(a, rest.Operation{
		Method: http.MethodGet, Path: "/version", ID: "get-version", Access: rest.Public,
		Summary: "Which version is it?", Tags: []string{"System"},
	}, func(context.Context, *struct{}) (*versionOutput, error) {
		return &versionOutput{Body: Version{
			Version: c.Version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, OpenTofu: c.OpenTofu,
		}}, nil
	})
}
