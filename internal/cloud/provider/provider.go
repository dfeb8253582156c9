// Package provider holds the compiled-in provider modules: what turns the machines that a node group declares into
// OpenTofu resources. A module decides and renders; it does no I/O.
package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"freehold.dev/freehold/internal/cloud"
)

// Module is one provider class.
type Module interface {
	// Type is the provider class that node groups name, "metal".
	Type() string
	// Schema is the JSON schema of a node group's providerConfig.
	Schema() json.RawMessage
	// Mappings tell which TF resource types are projected to which resources.
	Mappings() []cloud.Mapping
	// Validate checks a node group's providerConfig (empty: none was given) against the count of its machines
	// and answers every fault it finds, with paths below at.
	Validate(config json.RawMessage, count int, at *field.Path) field.ErrorList
	// Claim tells which registered machines a node group takes. The config has passed Validate.
	Claim(config json.RawMessage) (Claim, error)
	// Render answers the module's part of the tenant's configuration for one node group.
	Render(Group) (Fragment, error)
}

// Claim selects registered machines for the slots of a node group.
type Claim struct {
	// Addresses fix the group's machines: those at these addresses and no others, in whatever slots.
	Addresses []string
	// Selector picks unassigned machines where Addresses is empty.
	Selector labels.Selector
}

// Group is one node group as it is to be rendered. Slots are ordered by key.
type Group struct {
	Name   string
	Config json.RawMessage
	Slots  []Slot
}

// Slot is one stable place in a node group, with the machine that fills it.
type Slot struct {
	// Key is "<group>-<index>".
	Key string
	// Address of the machine's Talos API, "host" or "host:port".
	Address string
}

// Node is where a slot's Talos API is reached: literals, or "${…}" expressions on the module's own resources.
type Node struct {
	// Node is the machine's address without a port.
	Node string
	// Endpoint is what is dialled: the address, with its port where it is not Talos' own.
	Endpoint string
}

// Fragment is a module's part of a tenant's configuration.
type Fragment struct {
	// Nodes by slot key.
	Nodes map[string]Node
	// Resources by type and name.
	Resources map[string]map[string]any
	// Required are the providers that Resources need, by local name.
	Required map[string]Required
}

// Required is one entry of required_providers.
type Required struct {
	Source  string `json:"source"`
	Version string `json:"version,omitempty"`
}

// Registry holds the modules by type.
type Registry struct{ modules map[string]Module }

// NewRegistry answers a registry of the given modules.
func NewRegistry(modules ...Module) *Registry {
	r := &Registry{modules: make(map[string]Module, len(modules))}
	for _, m := range modules {
		r.modules[m.Type()] = m
	}
	return r
}

// Default answers the registry of every module that Freehold ships.
func Default() *Registry { return NewRegistry(Metal{}) }

// Get answers a module; ok is false for an unknown class.
func (r *Registry) Get(class string) (m Module, ok bool) {
	m, ok = r.modules[class]
	return m, ok
}

// Classes lists the modules' types, sorted.
func (r *Registry) Classes() []string {
	out := make([]string, 0, len(r.modules))
	for t := range r.modules {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}

// CheckConfig validates a node group's providerConfig; see [Module].Validate.
func (r *Registry) CheckConfig(class string, config json.RawMessage, count int, at *field.Path) field.ErrorList {
	m, ok := r.modules[class]
	if !ok {
		return field.ErrorList{field.NotSupported(at, class, r.Classes())}
	}
	return m.Validate(config, count, at)
}

// Objects answers the Provider resources that describe the modules, sorted by name.
func (r *Registry) Objects() []*cloud.Provider {
	var out []*cloud.Provider
	for _, t := range r.Classes() {
		m := r.modules[t]
		p := &cloud.Provider{
			Spec:   cloud.ProviderSpec{Type: t},
			Status: cloud.ProviderStatus{Mappings: m.Mappings(), ConfigSchema: compact(m.Schema())},
		}
		p.Name = t
		out = append(out, p)
	}
	return out
}

func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return raw
	}
	return b.Bytes()
}

// decode reads a providerConfig strictly into v; a fault names the field.
func decode(config json.RawMessage, v any, at *field.Path) *field.Error {
	if c := bytes.TrimSpace(config); len(c) == 0 || string(c) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(config))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		return nil
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		for name := range strings.SplitSeq(t.Field, ".") {
			if name != "" {
				at = at.Child(name)
			}
		}
		return field.TypeInvalid(at, t.Value, "must be "+article(t.Type.Kind()))
	}
	if _, name, ok := strings.Cut(err.Error(), `unknown field "`); ok {
		return field.Forbidden(at.Child(strings.TrimSuffix(name, `"`)), "no such field in this provider's config")
	}
	return field.Invalid(at, string(config), "must be a JSON object: "+err.Error())
}

func article(k reflect.Kind) string {
	switch k {
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a " + k.String()
}
