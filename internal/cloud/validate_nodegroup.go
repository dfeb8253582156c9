package cloud

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxCount is the most machines that one node group may declare.
const maxCount = 1000

// maxControlPlanes beyond which etcd gets slower with each member.
const maxControlPlanes = 7

// NodeGroupFinalizers are added to a node group at creation.
var NodeGroupFinalizers = []string{FinalizerMachines}

// NodeGroupChange is a node group about to be stored, with what its rules depend on.
type NodeGroupChange struct {
	New *NodeGroup
	// Old is nil at creation.
	Old    *NodeGroup
	Tenant *Tenant
	// Others are the tenant's other node groups.
	Others []*NodeGroup
	// Machines are the ones bound to this group.
	Machines []*Machine
	// Taken: for each address (canonical) that New names, the stored name of another node group that names it too,
	// or to which the machine at that address is bound.
	Taken map[string]string
	// Force lets the plane's finalizers be removed.
	Force bool
}

// Validate answers every fault, each with its path. A node group that is as it was has none.
func (c NodeGroupChange) Validate(rules Rules) field.ErrorList {
	errs := c.validateMetadata()
	if c.Old != nil && equalJSON(c.New.Spec, c.Old.Spec) {
		return errs
	}
	at := field.NewPath("spec")
	if c.Old != nil && (c.Old.Deleting() || c.Tenant.Deleting()) {
		what := "node group"
		if c.Tenant.Deleting() {
			what = "tenant"
		}
		return append(errs, field.Forbidden(at, fmt.Sprintf("the %s is being deleted: the node group's spec can no longer change", what)))
	}
	s := &c.New.Spec
	errs = append(errs, c.validateCount(at.Child("count"))...)
	errs = append(errs, c.validateProvider(rules, at)...)
	errs = append(errs, c.validateTalosVersion(rules, at.Child("talosVersion"))...)
	errs = append(errs, validatePatches(s.ConfigPatches, rules, at.Child("configPatches"))...)
	if len(errs) == 0 {
		check := groupConfigCheck(c.Tenant.Name, &c.Tenant.Spec, c.New)
		check.Patches = patchTexts(c.Tenant.Spec.ConfigPatches)
		errs = append(errs, validateConfig(rules, check, s.ConfigPatches, at.Child("configPatches"))...)
	}
	return errs
}

// Warnings are what the client should know of a node group that is accepted.
func (c NodeGroupChange) Warnings() []string {
	if GroupRole(c.New) != RoleControlPlane {
		return nil
	}
	total := c.New.Spec.Count
	for _, o := range c.Others {
		if GroupRole(o) == RoleControlPlane && !o.Deleting() {
			total += o.Spec.Count
		}
	}
	var out []string
	if total%2 == 0 {
		out = append(out, fmt.Sprintf("%d control-plane machines tolerate no more failures than %d: use an odd number", total, total-1))
	}
	if total > maxControlPlanes {
		out = append(out, fmt.Sprintf("%d control-plane machines slow etcd down: use at most %d", total, maxControlPlanes))
	}
	return out
}

// OwnNodeGroup fills in the server-owned label that a client left out.
func OwnNodeGroup(g *NodeGroup, tenant string) { fill(&g.Labels, LabelTenant, tenant) }

// GroupRole is the role of a node group's machines.
func GroupRole(g *NodeGroup) Role { return Role(g.Labels[LabelRole]) }

// DefaultGroupName is the name of a node group that was given none: "<tenant>-control-plane" or "<tenant>-worker",
// then "-2", "-3", … where taken tells that a name is in use.
func DefaultGroupName(tenant string, role Role, taken func(name string) bool) string {
	suffix := "-worker"
	if role == RoleControlPlane {
		suffix = "-control-plane"
	}
	for n := 1; ; n++ {
		end := suffix
		if n > 1 {
			end += "-" + strconv.Itoa(n)
		}
		base := tenant
		if most := 63 - len(end); len(base) > most {
			base = strings.TrimRight(base[:most], "-")
		}
		if !taken(base + end) {
			return base + end
		}
	}
}

// CanonicalConfig is a providerConfig in one form (sorted keys, no space), so that a client which writes the same
// object differently changes nothing. Empty and null are nil; anything but an object is an error.
func CanonicalConfig(config json.RawMessage) (json.RawMessage, error) {
	config = bytes.TrimSpace(config)
	if len(config) == 0 || bytes.Equal(config, []byte("null")) {
		return nil, nil
	}
	notObject := errors.New("must be a JSON object")
	if config[0] != '{' || !json.Valid(config) {
		return config, notObject
	}
	d := json.NewDecoder(bytes.NewReader(config))
	d.UseNumber() // a number keeps the digits that the client wrote
	var object map[string]any
	if err := d.Decode(&object); err != nil {
		return config, notObject
	}
	return json.Marshal(object)
}

// ConfigAddresses lists the machine addresses that a providerConfig names ("address", "addresses"), each with its
// path below at. Those that do not parse are left out: the module's own rules report them.
func ConfigAddresses(config json.RawMessage, at *field.Path) ([]MachineAddress, []*field.Path) {
	var named struct {
		Address   any `json:"address"`
		Addresses any `json:"addresses"`
	}
	if json.Unmarshal(config, &named) != nil {
		return nil, nil
	}
	var addrs []MachineAddress
	var paths []*field.Path
	add := func(v any, p *field.Path) {
		s, _ := v.(string)
		if a, err := ParseMachineAddress(s); err == nil {
			addrs, paths = append(addrs, a), append(paths, p)
		}
	}
	add(named.Address, at.Child("address"))
	list, _ := named.Addresses.([]any)
	for i, v := range list {
		add(v, at.Child("addresses").Index(i))
	}
	return addrs, paths
}

func (c NodeGroupChange) validateMetadata() field.ErrorList {
	labels := field.NewPath("metadata", "labels")
	rules := metadataRules{labels: owned{LabelTenant: c.Tenant.Name}, finalizers: NodeGroupFinalizers, force: c.Force}
	var errs field.ErrorList
	var old = c.Old
	if old == nil {
		_, name := SplitName(c.New.Name)
		errs = append(errs, ValidateName(name, field.NewPath("metadata", "name"))...)
		errs = append(errs, validateMetadata(&c.New.Metadata, nil, rules)...)
	} else {
		errs = append(errs, validateMetadata(&c.New.Metadata, &old.Metadata, rules)...)
	}
	role, given := c.New.Labels[LabelRole]
	switch {
	case !given || role == "":
		errs = append(errs, field.Required(labels.Key(LabelRole), "a node group's role is controlplane or worker"))
	case Role(role) != RoleControlPlane && Role(role) != RoleWorker:
		errs = append(errs, field.NotSupported(labels.Key(LabelRole), clip(role), []Role{RoleControlPlane, RoleWorker}))
	case old != nil && GroupRole(old) != Role(role):
		errs = append(errs, field.Forbidden(labels.Key(LabelRole), fmt.Sprintf("a node group's role cannot change: it is %s; make another node group", GroupRole(old))))
	}
	return errs
}

func (c NodeGroupChange) validateCount(at *field.Path) field.ErrorList {
	n := c.New.Spec.Count
	switch {
	case n < 0:
		return field.ErrorList{field.Invalid(at, n, "must not be negative")}
	case n > maxCount:
		return field.ErrorList{field.Invalid(at, n, fmt.Sprintf("a node group has at most %d machines: make several", maxCount))}
	case n == 0 && GroupRole(c.New) == RoleControlPlane:
		return field.ErrorList{field.Invalid(at, n, "a control-plane node group has at least one machine: delete the node group instead")}
	}
	return nil
}

func (c NodeGroupChange) validateProvider(rules Rules, at *field.Path) field.ErrorList {
	s := &c.New.Spec
	var errs field.ErrorList
	class, config := at.Child("providerClass"), at.Child("providerConfig")
	if c.Old != nil && s.ProviderClass != c.Old.Spec.ProviderClass {
		errs = append(errs, field.Forbidden(class, fmt.Sprintf("cannot change: it is %s; make another node group", c.Old.Spec.ProviderClass)))
	}
	known := false
	for _, k := range rules.Providers.Classes() {
		known = known || k == s.ProviderClass
	}
	canonical, err := CanonicalConfig(s.ProviderConfig)
	switch {
	case s.ProviderClass == "":
		errs = append(errs, field.Required(class, "name the provider module: one of "+strings.Join(rules.Providers.Classes(), ", ")))
	case !known:
		errs = append(errs, field.NotSupported(class, clip(s.ProviderClass), rules.Providers.Classes()))
	case err == nil:
		errs = append(errs, rules.Providers.CheckConfig(s.ProviderClass, canonical, s.Count, config)...)
	}
	if err != nil {
		return append(errs, field.Invalid(config, field.OmitValueType{}, err.Error()))
	}
	return append(errs, c.validateAddresses(canonical, config)...)
}

func (c NodeGroupChange) validateAddresses(config json.RawMessage, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	addrs, paths := ConfigAddresses(config, at)
	pods, services, _ := networks(&c.Tenant.Spec, field.NewPath("spec"))
	seen := map[MachineAddress]bool{}
	for i, a := range addrs {
		if seen[a] {
			errs = append(errs, field.Duplicate(paths[i], a.String()))
			continue
		}
		seen[a] = true
		if owner := c.Taken[a.String()]; owner != "" {
			tenant, group := SplitName(owner)
			errs = append(errs, field.Invalid(paths[i], a.String(), fmt.Sprintf("belongs to node group %q of tenant %q", group, tenant)))
		}
		if ip, ok := a.IP(); ok {
			for _, n := range []network{pods, services} {
				if p, in := n.contains(ip); in {
					errs = append(errs, field.Invalid(paths[i], a.String(), fmt.Sprintf("lies inside the tenant's own network %s", p)))
				}
			}
		}
	}
	return errs
}

func (c NodeGroupChange) validateTalosVersion(rules Rules, at *field.Path) field.ErrorList {
	v := c.New.Spec.TalosVersion
	if c.Old != nil && len(c.Machines) > 0 && v != c.Old.Spec.TalosVersion {
		was := c.Old.Spec.TalosVersion
		if was == "" {
			was = "the tenant's version"
		}
		return field.ErrorList{field.Forbidden(at, fmt.Sprintf("upgrades of running node groups are not available in this version: keep %s while the node group has machines", was))}
	}
	if v == "" {
		return nil
	}
	if errs := validateVersion(v, at); len(errs) > 0 {
		return errs
	}
	if err := rules.Talos.CheckVersions(v, c.Tenant.Spec.KubernetesVersion); err != nil {
		return field.ErrorList{field.Invalid(at, v, fmt.Sprintf("does not fit the tenant's Kubernetes version: %v", err))}
	}
	return nil
}

// groupConfigCheck is the check of a group's machine configuration, without patches.
func groupConfigCheck(tenant string, spec *TenantSpec, g *NodeGroup) ConfigCheck {
	check := ConfigCheck{Tenant: tenant, Spec: *spec, Role: GroupRole(g), TalosVersion: spec.TalosVersion}
	if g.Spec.TalosVersion != "" {
		check.TalosVersion = g.Spec.TalosVersion
	}
	return check
}
