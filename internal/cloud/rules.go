package cloud

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TalosRules is what validation asks of Talos' own machinery. Answers depend on the arguments alone.
type TalosRules interface {
	// CheckTalosVersion: the machinery knows the version.
	CheckTalosVersion(version string) error
	// CheckVersions: the machinery knows both versions and supports the pair.
	CheckVersions(talosVersion, kubernetesVersion string) error
	// CheckPatch: the patch parses as a Talos config patch. It never opens a file.
	CheckPatch(patch string) error
	// CheckConfig: the machine configuration that comes of it, patched in that order, is one that Talos accepts.
	CheckConfig(ConfigCheck) error
}

// ConfigCheck is the input of [TalosRules].CheckConfig. Patches lists all that are applied: those of Spec are
// applied only where they are listed.
type ConfigCheck struct {
	Tenant       string
	Spec         TenantSpec
	Role         Role
	TalosVersion string
	Patches      []string
}

// ProviderRules is what validation asks of the provider modules.
type ProviderRules interface {
	// Classes lists the compiled-in modules, sorted.
	Classes() []string
	// CheckConfig answers every fault of a node group's providerConfig (a JSON object or empty), with paths below
	// at. Class is one of Classes.
	CheckConfig(class string, config json.RawMessage, count int, at *field.Path) field.ErrorList
}

// Rules are the rules that live outside this package.
type Rules struct {
	Talos     TalosRules
	Providers ProviderRules
}
