// Package system answers what a load balancer, a service manager or a person asks of a server first: is it alive,
// can it serve, which version is it, how does it do.
package system

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

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
	// Metrics are served at /metrics; nil: there is no such path.
	Metrics prometheus.Gatherer
}

// Health is the answer of a probe.
type Health struct {
	Status string            `json:"status" enum:"ok"`
	Checks map[string]string `json:"checks,omitempty"`
}

// Status is the health of the management plane.
type Status struct {
	Status    string            `json:"status" enum:"ok,degraded"`
	Checks    map[string]string `json:"checks" doc:"Each part of the server: ok, or what is wrong with it."`
	StartedAt time.Time         `json:"startedAt"`
	Version   Version           `json:"version"`
}

type (
	healthOutput  struct{ Body Health }
	statusOutput  struct{ Body Status }
	versionOutput struct{ Body Version }
)

const ok = "ok"

// Register adds /healthz, /readyz, /version, /api/v1/status and /metrics.
func Register(a *rest.API, c Config) {
	version := Version{Version: c.Version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, OpenTofu: c.OpenTofu}
	started := time.Now().UTC().Truncate(time.Second)
	op := func(path, id string, access rest.Access, summary string) rest.Operation {
		return rest.Operation{Method: http.MethodGet, Path: path, ID: id, Access: access, Summary: summary, Tags: []string{"System"}}
	}
	rest.Register(a, op("/healthz", "get-health", rest.Public, "Is the server alive?"), func(context.Context, *struct{}) (*healthOutput, error) {
		return &healthOutput{Body: Health{Status: ok}}, nil
	})
	ready := op("/readyz", "get-readiness", rest.Public, "Can the server serve?")
	ready.Description = "200 when every part can do its work, else 503 with the parts that cannot."
	rest.Register(a, ready, func(ctx context.Context, _ *struct{}) (*healthOutput, error) {
		checks, faults := c.check(ctx)
		if len(faults) > 0 {
			p := rest.Unavailable("not ready: %s: %s", faults[0].Field, faults[0].Message)
			p.Causes = faults
			return nil, p
		}
		return &healthOutput{Body: Health{Status: ok, Checks: checks}}, nil
	})
	rest.Register(a, op("/version", "get-version", rest.Public, "Which version is it?"), func(context.Context, *struct{}) (*versionOutput, error) {
		return &versionOutput{Body: version}, nil
	})
	rest.Register(a, op("/api/v1/status", "get-status", rest.View, "How the management plane does"), func(ctx context.Context, _ *struct{}) (*statusOutput, error) {
		s := Status{Status: ok, StartedAt: started, Version: version}
		var faults []rest.Cause
		if s.Checks, faults = c.check(ctx); len(faults) > 0 {
			s.Status = "degraded"
		}
		return &statusOutput{Body: s}, nil
	})
	if c.Metrics != nil {
		metrics := op("/metrics", "get-metrics", rest.View, "Prometheus metrics")
		metrics.Hidden = true
		a.Handle(metrics, promhttp.HandlerFor(c.Metrics, promhttp.HandlerOpts{}))
	}
}

// check runs all checks; each result is ok or what is wrong, and what is wrong is also among the faults.
func (c *Config) check(ctx context.Context) (results map[string]string, faults []rest.Cause) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	results = make(map[string]string, len(c.Checks))
	for _, check := range c.Checks {
		results[check.Name] = ok
		if err := check.Func(ctx); err != nil {
			results[check.Name] = err.Error()
			faults = append(faults, rest.Cause{Field: check.Name, Message: err.Error()})
		}
	}
	return results, faults
}
