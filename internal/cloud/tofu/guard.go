package tofu

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Guard tells what a plan may destroy or replace.
type Guard struct {
	// Slots that the plane itself has put on the durable list of machines to remove.
	Slots []string `json:"slots,omitempty"`
	// Addresses of single resources that may go.
	Addresses []string `json:"addresses,omitempty"`
	// All: the whole tenant is being torn down.
	All bool `json:"all,omitempty"`
}

// planJSON is the part of "tofu show -json <plan>" that the guard reads.
type planJSON struct {
	FormatVersion   string `json:"format_version"`
	Errored         bool   `json:"errored"`
	ResourceChanges []struct {
		Address string          `json:"address"`
		Mode    string          `json:"mode"`
		Index   json.RawMessage `json:"index"`
		Deposed string          `json:"deposed"`
		Change  struct {
			Actions []string `json:"actions"`
		} `json:"change"`
	} `json:"resource_changes"`
}

// planned is what tofu says of a plan while it makes it.
type planned struct {
	summed    bool
	takesAway bool
}

// follow takes in one line of the output of "tofu plan -json".
func (p *planned) follow(l line) {
	switch {
	case l.Type == "planned_change" && l.Change != nil:
		if l.Change.Action != "noop" && takesAway([]string{l.Change.Action}) {
			p.takesAway = true
		}
	case l.Type == "change_summary" && l.Changes != nil && l.Changes.Operation == "plan":
		p.summed = true
		if l.Changes.Remove != 0 || l.Changes.Forget != 0 {
			p.takesAway = true
		}
	}
}

// harmless: by the change list and by the sum, the plan takes nothing away. Then the guard has nothing to decide, and
// showing the saved plan, which costs another tofu and its key derivation, is spared.
func (p *planned) harmless() bool { return p.summed && !p.takesAway }

// harmless are the actions that take nothing away. Whatever is not known to be harmless has to be allowed.
var harmless = []string{"no-op", "create", "read", "update"}

// Check reads a plan's JSON and lists the resources that it would take away without leave, with what would happen to
// them. A plan that cannot be read is an error.
func (g Guard) Check(plan []byte) ([]string, error) {
	var p planJSON
	if err := json.Unmarshal(plan, &p); err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	if !strings.HasPrefix(p.FormatVersion, "1.") {
		return nil, fmt.Errorf("read the plan: its format %q is not known", p.FormatVersion)
	}
	if p.Errored {
		return nil, fmt.Errorf("the plan is incomplete")
	}
	var refused []string
	for _, rc := range p.ResourceChanges {
		if rc.Mode == "data" || !takesAway(rc.Change.Actions) || g.allows(rc.Address, rc.Index) {
			continue
		}
		refused = append(refused, fmt.Sprintf("%s (%s)", rc.Address, strings.Join(rc.Change.Actions, ", ")))
	}
	return refused, nil
}

func takesAway(actions []string) bool {
	return slices.ContainsFunc(actions, func(a string) bool { return !slices.Contains(harmless, a) })
}

func (g Guard) allows(address string, index json.RawMessage) bool {
	if g.All || slices.Contains(g.Addresses, address) {
		return true
	}
	var key string
	return json.Unmarshal(index, &key) == nil && key != "" && slices.Contains(g.Slots, key)
}
