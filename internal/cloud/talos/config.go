package talos

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/gendata"

	"freehold.dev/freehold/internal/cloud"
)

// DefaultKubernetesVersion is what a machine configuration gets when none is asked for.
const DefaultKubernetesVersion = constants.DefaultKubernetesVersion

// DefaultTalosVersion is the newest Talos version that is known here, as a contract ("v1.12").
const DefaultTalosVersion = "v1.12"

const (
	// defaultInstallDisk holds until a patch names another disk or a disk selector, which has precedence.
	defaultInstallDisk = "/dev/sda"
	// placeholderEndpoint stands for an endpoint that is not known yet.
	placeholderEndpoint = "https://control-plane.invalid:6443"
)

// ConfigInput is what a machine configuration is generated from, beside secrets.
type ConfigInput struct {
	Cluster string
	// Endpoint of the control plane, an https URL. Empty is allowed for checking only.
	Endpoint string
	Role     cloud.Role
	// TalosVersion whose features are used, full ("1.12.6") or short ("v1.12"); empty: the newest known.
	TalosVersion string
	// KubernetesVersion without "v"; empty: DefaultKubernetesVersion.
	KubernetesVersion string
	// Patches are applied in order (see CheckPatch).
	Patches []string
	// Docs and Examples add comments to the generated text.
	Docs, Examples bool
}

// CheckConfig generates the configuration with throw-away secrets and tells what Talos would refuse in it. Faults of
// a patch come as *PatchError.
func CheckConfig(in ConfigInput) error {
	if in.Endpoint == "" {
		in.Endpoint = placeholderEndpoint
	}
	bundle, err := throwAway()
	if err != nil {
		return err
	}
	cfg, err := build(in, bundle)
	if err != nil {
		return err
	}
	return validate(cfg, onMetal{})
}

// Generate makes the text of a machine configuration: one or more YAML documents, secrets included. The same input
// gives the same text. Faults of a patch come as *PatchError.
func Generate(in ConfigInput, s *Secrets) ([]byte, error) {
	cfg, err := build(in, s.bundle)
	if err != nil {
		return nil, err
	}
	if err := validate(cfg, onCloud{}); err != nil {
		return nil, err
	}
	comments := encoder.CommentsDisabled
	if in.Docs {
		comments |= encoder.CommentsDocs
	}
	if in.Examples {
		comments |= encoder.CommentsExamples
	}
	return cfg.EncodeBytes(encoder.WithComments(comments))
}

// Patch applies patches in order to a machine configuration as text. Without patches it comes back as it is. Faults of
// a patch come as *PatchError.
func Patch(text []byte, patches []string) ([]byte, error) {
	if len(patches) == 0 {
		return text, nil
	}
	cfg, err := load(text)
	if err != nil {
		return nil, err
	}
	if cfg, err = applyAll(cfg, patches); err != nil {
		return nil, err
	}
	return cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
}

func load(text []byte) (cfg config.Provider, err error) {
	defer recovered(&err)
	if cfg, err = configloader.NewFromBytes(text); err != nil {
		return nil, fmt.Errorf("the machine configuration cannot be read: %w", plainError(err))
	}
	return cfg, nil
}

// applyAll parses all patches before it applies any, so that the first broken one is named.
func applyAll(cfg config.Provider, texts []string) (config.Provider, error) {
	patches := make([]*patch, len(texts))
	for i, text := range texts {
		p, err := parsePatch(text)
		if err != nil {
			return nil, &PatchError{Index: i, Err: err}
		}
		patches[i] = p
	}
	for i, p := range patches {
		patched, err := p.apply(cfg)
		if err != nil {
			return nil, &PatchError{Index: i, Err: err}
		}
		cfg = patched
	}
	return cfg, nil
}

func build(in ConfigInput, bundle *secrets.Bundle) (config.Provider, error) {
	if in.Cluster == "" {
		return nil, errors.New("the cluster has no name")
	}
	if err := CheckEndpoint(in.Endpoint); err != nil {
		return nil, err
	}
	contract, err := parseContract(in.TalosVersion)
	if err != nil {
		return nil, err
	}
	if in.KubernetesVersion == "" {
		in.KubernetesVersion = DefaultKubernetesVersion
	}
	if err := CheckKubernetesVersion(in.KubernetesVersion); err != nil {
		return nil, err
	}
	machineType, err := machineType(in.Role)
	if err != nil {
		return nil, err
	}
	input, err := generate.NewInput(in.Cluster, in.Endpoint, in.KubernetesVersion,
		generate.WithVersionContract(contract), generate.WithSecretsBundle(bundle),
		generate.WithInstallDisk(defaultInstallDisk), generate.WithInstallImage(installImage(in.TalosVersion)))
	if err != nil {
		return nil, plainError(err)
	}
	cfg, err := input.Config(machineType)
	if err != nil {
		return nil, plainError(err)
	}
	return applyAll(cfg, in.Patches)
}

func machineType(role cloud.Role) (machine.Type, error) {
	switch role {
	case cloud.RoleControlPlane:
		return machine.TypeControlPlane, nil
	case cloud.RoleWorker:
		return machine.TypeWorker, nil
	}
	return machine.TypeUnknown, fmt.Errorf("machine role %q is neither %q nor %q", role, cloud.RoleControlPlane, cloud.RoleWorker)
}

// installImage is the installer of the very version where the version is a full one, else that of the machinery.
func installImage(talosVersion string) string {
	tag := gendata.VersionTag
	if v := strings.TrimPrefix(talosVersion, "v"); semanticVersion.MatchString(v) {
		tag = "v" + v
	}
	return "ghcr.io/siderolabs/installer:" + tag
}

// validate applies Talos' own checks.
func validate(cfg config.Provider, mode validation.RuntimeMode) (err error) {
	defer recovered(&err)
	if _, err := cfg.Validate(mode, validation.WithLocal()); err != nil {
		return fmt.Errorf("refused by Talos: %w", plainError(err))
	}
	return nil
}

// onMetal validates for machines that install Talos to a disk, the stricter case.
type onMetal struct{}

func (onMetal) String() string        { return "metal" }
func (onMetal) RequiresInstall() bool { return true }
func (onMetal) InContainer() bool     { return false }

// onCloud validates for machines whose image is installed already.
type onCloud struct{}

func (onCloud) String() string        { return "cloud" }
func (onCloud) RequiresInstall() bool { return false }
func (onCloud) InContainer() bool     { return false }

// throwAway is one bundle of secrets for checking, made once: what is checked does not depend on them. The old
// contract spares an RSA key of 4096 bits.
var throwAway = sync.OnceValues(func() (*secrets.Bundle, error) {
	bundle, err := secrets.NewBundle(secrets.NewFixedClock(time.Now()), config.TalosVersion1_6)
	if err != nil {
		return nil, err
	}
	bundle.Secrets.AESCBCEncryptionSecret = bundle.Secrets.SecretboxEncryptionSecret
	return bundle, nil
})
