package cloud

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MachineChange is a machine about to be registered, or changed by a client.
type MachineChange struct {
	New *Machine
	// Old is nil at registration.
	Old *Machine
	// Force lets the plane's finalizers be removed.
	Force bool
}

// Validate answers every fault, each with its path. A machine that is as it was has none.
func (c MachineChange) Validate() field.ErrorList {
	name, address := field.NewPath("metadata", "name"), field.NewPath("spec", "managementAddress")
	rules := metadataRules{labels: owned{}, annotations: owned{}, force: c.Force}
	keep(rules.labels, c.Old, LabelTenant, LabelRole, LabelNodeGroup, LabelProvider)
	rules.annotations[AnnotationSlot] = ""
	if c.Old != nil {
		rules.annotations[AnnotationSlot] = c.Old.Annotations[AnnotationSlot]
		errs := validateMetadata(&c.New.Metadata, &c.Old.Metadata, rules)
		is, was := c.New.Spec.ManagementAddress, c.Old.Spec.ManagementAddress
		switch {
		case is == was:
		case c.Old.Deleting():
			errs = append(errs, field.Forbidden(address, "the machine is being deleted: its address can no longer change"))
		case Assigned(c.Old):
			errs = append(errs, field.Forbidden(address, fmt.Sprintf("the machine belongs to tenant %q, whose state says that its address is %s", c.Old.Labels[LabelTenant], was)))
		default:
			errs = append(errs, validateMachineAddress(is, address)...)
		}
		return errs
	}
	errs := validateMetadata(&c.New.Metadata, nil, rules)
	if id, err := uuid.Parse(c.New.Name); err != nil || id.String() != c.New.Name {
		errs = append(errs, field.Invalid(name, clip(c.New.Name), "must be a UUID in lower case; leave it out to get one"))
	}
	return append(errs, validateMachineAddress(c.New.Spec.ManagementAddress, address)...)
}

// Assigned tells whether a tenant owns the machine.
func Assigned(m *Machine) bool { return m.Labels[LabelTenant] != "" }

func keep(labels owned, old *Machine, keys ...string) {
	for _, k := range keys {
		labels[k] = ""
		if old != nil {
			labels[k] = old.Labels[k]
		}
	}
}

func validateMachineAddress(s string, at *field.Path) field.ErrorList {
	if s == "" {
		return field.ErrorList{field.Required(at, "tell where the machine's Talos API listens, such as 10.0.0.9:50000")}
	}
	if s != strings.TrimSpace(s) {
		return field.ErrorList{field.Invalid(at, clip(s), "has spaces around it")}
	}
	if _, err := ParseMachineAddress(s); err != nil {
		return field.ErrorList{field.Invalid(at, clip(s), err.Error())}
	}
	return nil
}

// KeepServerLabels fills in the server-owned labels and annotations that a client left out of a machine.
func KeepServerLabels(m, old *Machine) {
	for _, k := range []string{LabelTenant, LabelRole, LabelNodeGroup, LabelProvider} {
		fill(&m.Labels, k, old.Labels[k])
	}
	fill(&m.Annotations, AnnotationSlot, old.Annotations[AnnotationSlot])
}

func fill(m *map[string]string, key, value string) {
	if _, given := (*m)[key]; given || value == "" {
		return
	}
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}
