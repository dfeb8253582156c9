package provider

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"freehold.dev/freehold/internal/cloud"
)

// Metal is the class of machines that already run Talos in maintenance mode. Their configuration is pushed to them.
type Metal struct{}

type metalConfig struct {
	Address   string   `json:"address"`
	Addresses []string `json:"addresses"`
	Selector  string   `json:"selector"`
}

// Type implements Module.
func (Metal) Type() string { return "metal" }

// Schema implements Module.
func (Metal) Schema() json.RawMessage {
	return json.RawMessage(`{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "metal",
  "description": "Machines that run Talos in maintenance mode. Without address and addresses, unassigned machines are taken.",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "address": {"type": "string", "description": "Talos API of the group's only machine: host or host:port (default port 50000)"},
    "addresses": {"type": "array", "items": {"type": "string"}, "uniqueItems": true, "description": "Talos APIs of the group's machines, as many as its count"},
    "selector": {"type": "string", "description": "label selector of the unassigned machines that may be taken; empty: any"}
  }
}`)
}

// Mappings implements Module.
func (Metal) Mappings() []cloud.Mapping {
	return []cloud.Mapping{{TFType: "talos_machine_configuration_apply", Resource: "Machine"}}
}

// Validate implements Module.
func (Metal) Validate(config json.RawMessage, count int, at *field.Path) field.ErrorList {
	var c metalConfig
	if err := decode(config, &c, at); err != nil {
		return field.ErrorList{err}
	}
	var errs field.ErrorList
	switch {
	case c.Address != "" && c.Addresses != nil:
		errs = append(errs, field.Forbidden(at.Child("addresses"), "give either address or addresses"))
	case c.Selector != "" && (c.Address != "" || c.Addresses != nil):
		errs = append(errs, field.Forbidden(at.Child("selector"), "has no effect beside address or addresses: leave it out"))
	}
	if c.Address != "" {
		if _, err := cloud.ParseMachineAddress(c.Address); err != nil {
			errs = append(errs, field.Invalid(at.Child("address"), c.Address, err.Error()))
		}
		if count > 1 {
			errs = append(errs, field.Invalid(at.Child("address"), c.Address, fmt.Sprintf(
				"names one machine, but count is %d: use addresses, or leave it out to take unassigned machines", count)))
		}
	}
	if c.Addresses != nil && len(c.Addresses) != count {
		errs = append(errs, field.Invalid(at.Child("addresses"), len(c.Addresses), fmt.Sprintf("must name as many machines as count, %d", count)))
	}
	seen := map[cloud.MachineAddress]bool{}
	for i, s := range c.Addresses {
		a, err := cloud.ParseMachineAddress(s)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(at.Child("addresses").Index(i), s, err.Error()))
		case seen[a]:
			errs = append(errs, field.Duplicate(at.Child("addresses").Index(i), s))
		}
		seen[a] = true
	}
	if _, err := labels.Parse(c.Selector); err != nil {
		errs = append(errs, field.Invalid(at.Child("selector"), c.Selector, "must be a label selector: "+err.Error()))
	}
	return errs
}

// Claim implements Module.
func (Metal) Claim(config json.RawMessage) (Claim, error) {
	var c metalConfig
	if err := decode(config, &c, field.NewPath("providerConfig")); err != nil {
		return Claim{}, err
	}
	if c.Address != "" {
		return Claim{Addresses: []string{c.Address}}, nil
	}
	if c.Addresses != nil {
		return Claim{Addresses: c.Addresses}, nil
	}
	sel, err := labels.Parse(c.Selector)
	if err != nil {
		return Claim{}, fmt.Errorf("providerConfig.selector is not a label selector: %w", err)
	}
	return Claim{Selector: sel}, nil
}

// Render implements Module.
func (Metal) Render(g Group) (Fragment, error) {
	f := Fragment{Nodes: make(map[string]Node, len(g.Slots))}
	for _, s := range g.Slots {
		a, err := cloud.ParseMachineAddress(s.Address)
		if err != nil {
			return Fragment{}, fmt.Errorf("address %q of the machine in slot %s: %w", s.Address, s.Key, err)
		}
		f.Nodes[s.Key] = Node{Node: a.Host, Endpoint: endpoint(a)}
	}
	return f, nil
}

// endpoint leaves out the port where it is Talos' own, as people write it by hand.
func endpoint(a cloud.MachineAddress) string {
	if a.Port == cloud.DefaultTalosPort {
		return a.Host
	}
	return a.String()
}
