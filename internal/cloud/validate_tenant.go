package cloud

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// The plugins that a tenant may declare.
const (
	CNIFlannel   = "flannel" // the default
	CNICilium    = "cilium"
	CNINone      = "none"
	CSINone      = "none" // the default
	CSILocalPath = "local-path"
)

// TenantFinalizers are added to a tenant at creation.
var TenantFinalizers = []string{FinalizerMachines, FinalizerSecrets}

// semanticVersion without "v" and without build metadata.
var semanticVersion = regexp.MustCompile(`^(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?$`)

// TenantChange is a tenant about to be stored, with what its rules depend on.
type TenantChange struct {
	New *Tenant
	// Old is nil at creation.
	Old *Tenant
	// Groups are the tenant's node groups, Machines the ones bound to it.
	Groups   []*NodeGroup
	Machines []*Machine
	// Force lets the plane's finalizers be removed.
	Force bool
}

// Validate answers every fault, each with its path. A tenant that is as it was has none.
func (c TenantChange) Validate(rules Rules) field.ErrorList {
	var old *TenantSpec
	if c.Old != nil {
		old = &c.Old.Spec
	}
	errs := c.validateMetadata()
	if old != nil && equalJSON(c.New.Spec, *old) {
		return errs
	}
	at := field.NewPath("spec")
	if c.Old != nil && c.Old.Deleting() {
		return append(errs, field.Forbidden(at, "the tenant is being deleted: its spec can no longer change"))
	}
	s := &c.New.Spec
	errs = append(errs, c.validateVersions(rules, at)...)
	pods, services, more := networks(s, at)
	errs = append(errs, more...)
	errs = append(errs, validateEndpoint(s.ControlPlaneEndpoint, pods, services, at.Child("controlPlaneEndpoint"))...)
	errs = append(errs, validatePlugins(s.Plugins, at.Child("plugins"))...)
	errs = append(errs, validatePatches(s.ConfigPatches, rules, at.Child("configPatches"))...)
	errs = append(errs, c.validateImmutable(at)...)
	if len(errs) == 0 {
		errs = append(errs, c.validateConfigs(rules)...)
	}
	return errs
}

// Warnings are what the client should know of a tenant that is accepted.
func (c TenantChange) Warnings() []string {
	pending := PendingPlugins(&c.New.Spec)
	if len(pending) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("this version does not install %s: install it yourself, or see the condition %s",
		strings.Join(pending, ", "), ConditionPluginsPending)}
}

// PendingPlugins names the declared plugins that this version does not install, for [ConditionPluginsPending].
func PendingPlugins(s *TenantSpec) []string {
	var out []string
	if s.Plugins.CNI.Type == CNICilium {
		out = append(out, "plugins.cni "+CNICilium)
	}
	if s.Plugins.CSI.Type == CSILocalPath {
		out = append(out, "plugins.csi "+CSILocalPath)
	}
	return out
}

func (c TenantChange) validateMetadata() field.ErrorList {
	if c.Old == nil {
		errs := ValidateName(c.New.Name, field.NewPath("metadata", "name"))
		return append(errs, validateMetadata(&c.New.Metadata, nil, metadataRules{finalizers: TenantFinalizers})...)
	}
	return validateMetadata(&c.New.Metadata, &c.Old.Metadata, metadataRules{force: c.Force})
}

func (c TenantChange) validateVersions(rules Rules, at *field.Path) field.ErrorList {
	s := &c.New.Spec
	errs := validateVersion(s.TalosVersion, at.Child("talosVersion"))
	errs = append(errs, validateVersion(s.KubernetesVersion, at.Child("kubernetesVersion"))...)
	if len(errs) > 0 {
		return errs
	}
	if err := rules.Talos.CheckTalosVersion(s.TalosVersion); err != nil {
		return field.ErrorList{field.Invalid(at.Child("talosVersion"), s.TalosVersion, err.Error())}
	}
	if err := rules.Talos.CheckVersions(s.TalosVersion, s.KubernetesVersion); err != nil {
		errs = append(errs, field.Invalid(at.Child("kubernetesVersion"), s.KubernetesVersion, err.Error()))
		return errs
	}
	for _, g := range c.Groups {
		if g.Spec.TalosVersion == "" || g.Spec.TalosVersion == s.TalosVersion {
			continue
		}
		if err := rules.Talos.CheckVersions(g.Spec.TalosVersion, s.KubernetesVersion); err != nil {
			_, name := SplitName(g.Name)
			errs = append(errs, field.Invalid(at.Child("kubernetesVersion"), s.KubernetesVersion,
				fmt.Sprintf("does not fit node group %q: %v", name, err)))
		}
	}
	return errs
}

func validateVersion(v string, at *field.Path) field.ErrorList {
	switch {
	case v == "":
		return field.ErrorList{field.Required(at, "give a version such as 1.12.6")}
	case semanticVersion.MatchString(v):
		return nil
	case semanticVersion.MatchString(strings.TrimPrefix(v, "v")):
		return field.ErrorList{field.Invalid(at, v, "is written without the v: "+v[1:])}
	}
	return field.ErrorList{field.Invalid(at, clip(v), "must be a semantic version such as 1.12.6")}
}

func validateEndpoint(s string, pods, services network, at *field.Path) field.ErrorList {
	if s == "" {
		return nil
	}
	host, err := parseEndpoint(s)
	if err != nil {
		return field.ErrorList{field.Invalid(at, hideUserinfo(clip(s)), err.Error())}
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		for _, n := range []network{pods, services} {
			if p, in := n.contains(ip); in {
				return field.ErrorList{field.Invalid(at, s, fmt.Sprintf("lies inside the tenant's own network %s", p))}
			}
		}
	}
	return nil
}

// hideUserinfo: a password that was put into a URL is not echoed.
func hideUserinfo(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		return scheme + "://…@" + rest[i+1:]
	}
	return s
}

func validatePlugins(p Plugins, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	cni := at.Child("cni")
	switch p.CNI.Type {
	case "", CNIFlannel, CNINone:
		const only = "is only used with the type cilium: leave it out"
		if p.CNI.Version != "" {
			errs = append(errs, field.Forbidden(cni.Child("version"), only))
		}
		if p.CNI.Values != "" {
			errs = append(errs, field.Forbidden(cni.Child("values"), only))
		}
	case CNICilium:
		if p.CNI.Version != "" {
			errs = append(errs, validateVersion(p.CNI.Version, cni.Child("version"))...)
		}
		var values map[string]any
		// A document's end mark alone is an empty document; the parser does not take it.
		text := strings.TrimPrefix(strings.TrimSpace(p.CNI.Values), "...")
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			errs = append(errs, field.Invalid(cni.Child("values"), field.OmitValueType{}, "must be a YAML mapping of Helm values: "+clip(err.Error())))
		}
	default:
		errs = append(errs, field.NotSupported(cni.Child("type"), clip(p.CNI.Type), []string{CNIFlannel, CNICilium, CNINone}))
	}
	if t := p.CSI.Type; t != "" && t != CSINone && t != CSILocalPath {
		errs = append(errs, field.NotSupported(at.Child("csi", "type"), clip(t), []string{CSINone, CSILocalPath}))
	}
	return errs
}

// validateImmutable refuses what cannot be changed under running machines.
func (c TenantChange) validateImmutable(at *field.Path) field.ErrorList {
	if c.Old == nil || len(c.Machines) == 0 {
		return nil
	}
	var errs field.ErrorList
	s, old := &c.New.Spec, &c.Old.Spec
	for _, v := range []struct{ name, new, old string }{
		{"talosVersion", s.TalosVersion, old.TalosVersion},
		{"kubernetesVersion", s.KubernetesVersion, old.KubernetesVersion},
	} {
		if v.new != v.old {
			errs = append(errs, field.Forbidden(at.Child(v.name),
				fmt.Sprintf("upgrades of running tenants are not available in this version: keep %s while the tenant has machines", v.old)))
		}
	}
	for _, n := range []struct {
		name     string
		new, old []string
		def      string
	}{
		{"podNetwork", s.PodNetwork, old.PodNetwork, DefaultPodNetwork},
		{"serviceNetwork", s.ServiceNetwork, old.ServiceNetwork, DefaultServiceNetwork},
	} {
		was, is := orDefault(n.old, n.def), orDefault(n.new, n.def)
		if !slices.Equal(was, is) {
			errs = append(errs, field.Forbidden(at.Child(n.name),
				fmt.Sprintf("cannot change while the tenant has machines, which were set up with %s", strings.Join(was, ", "))))
		}
	}
	return errs
}

func orDefault(list []string, def string) []string {
	if len(list) == 0 {
		return []string{def}
	}
	return list
}

// validateConfigs checks the configuration of every machine that the tenant has or may get. It runs only for specs
// that are sound in themselves.
func (c TenantChange) validateConfigs(rules Rules) field.ErrorList {
	s := &c.New.Spec
	check := ConfigCheck{Tenant: c.New.Name, Spec: *s, TalosVersion: s.TalosVersion}
	own := field.NewPath("spec", "configPatches")
	for _, role := range []Role{RoleControlPlane, RoleWorker} {
		check.Role = role
		if errs := validateConfig(rules, check, s.ConfigPatches, own); len(errs) > 0 {
			return errs
		}
	}
	var errs field.ErrorList
	for _, g := range c.Groups {
		if len(g.Spec.ConfigPatches) == 0 && (g.Spec.TalosVersion == "" || g.Spec.TalosVersion == s.TalosVersion) {
			continue
		}
		check := groupConfigCheck(c.New.Name, s, g)
		check.Patches = patchTexts(s.ConfigPatches, g.Spec.ConfigPatches)
		if len(check.Patches) == 0 {
			continue
		}
		if err := rules.Talos.CheckConfig(check); err != nil {
			_, name := SplitName(g.Name)
			errs = append(errs, field.Invalid(own, field.OmitValueType{}, fmt.Sprintf("does not fit node group %q: %s", name, clipError(err))))
		}
	}
	return errs
}
