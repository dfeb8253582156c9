package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ApplyRunning is the result of an apply that has not ended.
const ApplyRunning = "running"

// Apply is the record of one run that made a tenant's machines what was declared.
type Apply struct {
	ID string `json:"id"`
	// Trigger is what caused it.
	Trigger    string     `json:"trigger"`
	Destroy    bool       `json:"destroy,omitempty"`
	StartedAt  time.Time  `json:"startedAt"`
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	// Seconds that it took, or takes so far.
	Seconds float64 `json:"seconds"`
	// Result is running, succeeded, failed, blocked, interrupted, timedOut or killed.
	Result string `json:"result"`
	// Error is the first error, in plain words.
	Error string `json:"error,omitempty"`
	// Blocked names the resources that would be destroyed or replaced although nobody asked for it.
	Blocked []string `json:"blocked,omitempty"`
	// Phase is preparing, planning, checking, applying, saving or done.
	Phase     string          `json:"phase,omitempty"`
	Plan      PlanSummary     `json:"plan"`
	Resources []ApplyResource `json:"resources,omitempty"`
}

// PlanSummary counts the resources of a plan.
type PlanSummary struct {
	Add     int `json:"add"`
	Change  int `json:"change"`
	Destroy int `json:"destroy"`
}

// ApplyResource is one resource that an apply works on.
type ApplyResource struct {
	// Address in the configuration: talos_machine_configuration_apply.machine["prod-worker-0"].
	Address string `json:"address"`
	// Action is create, update, delete or replace.
	Action string `json:"action"`
	// State is pending, running, done or failed.
	State     string    `json:"state"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Seconds that it took, once it is over.
	Seconds float64 `json:"seconds,omitempty"`
}

// Applies lists a tenant's applies, newest first, at most limit (0: the server's default); one that is running is
// among them, with its progress.
func (c *Client) Applies(ctx context.Context, tenant string, limit int) ([]Apply, error) {
	q := url.Values{}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	out := new(List[Apply])
	err := c.do(ctx, request{method: http.MethodGet, path: tenantPath(tenant) + "/applies", query: q}, out)
	return out.Items, err
}
