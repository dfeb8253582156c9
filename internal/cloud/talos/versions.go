package talos

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
)

// The Talos versions that this build knows, as contracts (major.minor).
var (
	oldestContract = config.TalosVersion1_2
	newestContract = config.TalosVersion1_12
)

var semanticVersion = regexp.MustCompile(
	`^(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// CheckVersions tells why the two versions cannot be used, alone or together; nil when they can. Both are semantic
// versions without a leading "v", such as "1.12.6" and "1.35.0".
func CheckVersions(talosVersion, kubernetesVersion string) error {
	if err := CheckTalosVersion(talosVersion); err != nil {
		return err
	}
	if err := checkSemantic("Kubernetes", kubernetesVersion); err != nil {
		return err
	}
	return CheckSupported(talosVersion, kubernetesVersion)
}

// CheckTalosVersion tells why a Talos version cannot be used: it is not a semantic version without "v", or this build
// does not know it.
func CheckTalosVersion(version string) error {
	if err := checkSemantic("Talos", version); err != nil {
		return err
	}
	_, err := parseContract(version)
	return err
}

// CheckKubernetesVersion tells why a Kubernetes version is no semantic version without "v".
func CheckKubernetesVersion(version string) error { return checkSemantic("Kubernetes", version) }

func checkSemantic(what, version string) error {
	switch {
	case version == "":
		return fmt.Errorf("the %s version is missing: give a semantic version such as %s", what, exampleVersion(what))
	case semanticVersion.MatchString(version):
		return nil
	case semanticVersion.MatchString(strings.TrimPrefix(version, "v")):
		return fmt.Errorf("%s version %q has a leading \"v\": write %q", what, version, strings.TrimPrefix(version, "v"))
	}
	return fmt.Errorf("%s version %q is not a semantic version: write it like %s", what, clip(version, 64), exampleVersion(what))
}

func exampleVersion(what string) string {
	if what == "Talos" {
		return `"1.12.6"`
	}
	return `"1.35.0"`
}

// CheckSupported asks the machinery whether the Kubernetes version runs on the Talos version, full or short.
func CheckSupported(talosVersion, kubernetesVersion string) error {
	t, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: talosVersion})
	if err != nil {
		return fmt.Errorf("read the Talos version %q: %w", talosVersion, err)
	}
	k, err := compatibility.ParseKubernetesVersion(kubernetesVersion)
	if err != nil {
		return fmt.Errorf("read the Kubernetes version %q: %w", kubernetesVersion, err)
	}
	if err := k.SupportedWith(t); err != nil {
		return fmt.Errorf("the Kubernetes version %s does not run on Talos %s (%w): choose another of the two", kubernetesVersion, talosVersion, err)
	}
	return nil
}

// parseContract finds the contract of a Talos version, full ("1.12.6") or short ("v1.12"); "" is the newest.
func parseContract(version string) (*config.VersionContract, error) {
	if version == "" {
		return newestContract, nil
	}
	contract, err := config.ParseContractFromVersion(version)
	if err != nil {
		return nil, fmt.Errorf("the Talos version %q is not a version: write it like \"1.12.6\"", clip(version, 64))
	}
	if contract.Greater(newestContract) || oldestContract.Greater(contract) {
		return nil, fmt.Errorf("the Talos version %s is not known here: this build knows %d.%d to %d.%d", strings.TrimPrefix(version, "v"),
			oldestContract.Major, oldestContract.Minor, newestContract.Major, newestContract.Minor)
	}
	return contract, nil
}

// CheckEndpoint tells why a control-plane endpoint cannot be used. It is an https URL of host and port, without
// credentials, path, query or fragment.
func CheckEndpoint(endpoint string) error {
	bad := func(why string) error {
		return fmt.Errorf("control-plane endpoint %q %s: write it like \"https://k8s.example.com:6443\"", clip(endpoint, 128), why)
	}
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return bad("is not a URL")
	case u.Scheme != "https":
		return bad("is not an https URL")
	case u.User != nil:
		return fmt.Errorf("the control-plane endpoint carries credentials: write it like \"https://k8s.example.com:6443\"")
	case u.Hostname() == "":
		return bad("has no host")
	case !validHost(u.Hostname()):
		return bad("has a host that is neither a name nor an address")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return bad("has more than host and port")
	}
	if _, port, err := net.SplitHostPort(u.Host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return bad("has a port that is not between 1 and 65535")
		}
	}
	return nil
}

var hostName = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*\.?$`)

func validHost(host string) bool {
	return net.ParseIP(host) != nil || len(host) <= 253 && hostName.MatchString(host)
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// CheckContract tells why a Talos version, full ("1.12.6", "v1.12.6") or short ("v1.12"), is not known here.
func CheckContract(version string) error {
	_, err := parseContract(version)
	return err
}

// UsesSecretbox tells how the cluster's Kubernetes secrets are encrypted for a Talos version that CheckContract accepts: with
// secretbox (Talos 1.3 and later) or with AES-CBC.
func UsesSecretbox(version string) bool {
	contract, err := parseContract(version)
	return err == nil && contract.SecretboxEncryptionSupported()
}
