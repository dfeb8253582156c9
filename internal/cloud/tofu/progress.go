package tofu

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"
)

// Progress is how far a run has come. It carries no secrets.
type Progress struct {
	Phase Phase  `json:"phase,omitempty"`
	Stage string `json:"stage,omitempty"`
	// Plan sums up what is to be done, over all stages so far.
	Plan      Summary    `json:"plan"`
	Resources []Resource `json:"resources,omitempty"`
	Updated   time.Time  `json:"updated,omitzero"`
}

// Summary counts resources.
type Summary struct {
	Add     int `json:"add"`
	Change  int `json:"change"`
	Destroy int `json:"destroy"`
}

// Resource is one resource that a run works on.
type Resource struct {
	Address string `json:"address"`
	// Action is create, update, delete or replace.
	Action string `json:"action"`
	// State is pending, running, done or failed.
	State    string        `json:"state"`
	Started  time.Time     `json:"started,omitzero"`
	Duration time.Duration `json:"duration,omitempty"` // in nanoseconds, once it is over
}

// line is one line of tofu's -json output, as far as it is used.
type line struct {
	Type   string `json:"type"`
	Change *struct {
		Resource addressed `json:"resource"`
		Action   string    `json:"action"`
	} `json:"change"`
	Hook *struct {
		Resource addressed `json:"resource"`
		Action   string    `json:"action"`
	} `json:"hook"`
	Changes *struct {
		Add       int    `json:"add"`
		Change    int    `json:"change"`
		Remove    int    `json:"remove"`
		Forget    int    `json:"forget"`
		Operation string `json:"operation"`
	} `json:"changes"`
	Diagnostic *diagnostic `json:"diagnostic"`
}

type addressed struct {
	Addr string `json:"addr"`
}

type diagnostic struct {
	Severity string `json:"severity"`
	Summary  string `json:"summary"`
	Detail   string `json:"detail"`
	Address  string `json:"address"`
}

// follow takes in one line of tofu's output and tells whether the progress changed.
func (p *Progress) follow(l line, now time.Time) bool {
	switch {
	case l.Type == "planned_change" && l.Change != nil && p.Phase == PhasePlanning:
		if l.Change.Action == "noop" || l.Change.Action == "read" {
			return false
		}
		p.at(l.Change.Resource.Addr, l.Change.Action).State = "pending"
	case l.Type == "change_summary" && l.Changes != nil && l.Changes.Operation == "plan":
		p.Plan.Add += l.Changes.Add
		p.Plan.Change += l.Changes.Change
		p.Plan.Destroy += l.Changes.Remove
	case l.Hook != nil && l.Hook.Action == "read":
		return false
	case l.Type == "apply_start" && l.Hook != nil:
		r := p.at(l.Hook.Resource.Addr, l.Hook.Action)
		r.State, r.Started = "running", now
	case (l.Type == "apply_complete" || l.Type == "apply_errored") && l.Hook != nil:
		r := p.at(l.Hook.Resource.Addr, l.Hook.Action)
		r.State = "done"
		if l.Type == "apply_errored" {
			r.State = "failed"
		}
		if !r.Started.IsZero() {
			r.Duration = now.Sub(r.Started)
		}
	default:
		return false
	}
	p.Updated = now
	return true
}

// OnlyUpdates tells whether nothing was made, replaced or destroyed.
func (p *Progress) OnlyUpdates() bool {
	return !slices.ContainsFunc(p.Resources, func(r Resource) bool { return r.Action != "update" })
}

// end: what was still running when tofu ended did not succeed.
func (p *Progress) end() {
	for i := range p.Resources {
		if r := &p.Resources[i]; r.State == "running" {
			r.State = "failed"
		}
	}
}

func (p *Progress) at(addr, action string) *Resource {
	i := slices.IndexFunc(p.Resources, func(r Resource) bool { return r.Address == addr })
	if i < 0 {
		p.Resources = append(p.Resources, Resource{Address: addr})
		i = len(p.Resources) - 1
	}
	r := &p.Resources[i]
	// A replacement is planned as one and carried out as a delete and a create.
	if r.Action != "replace" {
		r.Action = action
	}
	return r
}

// parseLine reads a line of tofu's -json output; ok is false for anything else.
func parseLine(raw []byte) (l line, ok bool) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '{' {
		return line{}, false
	}
	return l, json.Unmarshal(raw, &l) == nil && l.Type != ""
}
