package cloud

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The networks of a tenant that declares none: Talos' own defaults.
const (
	DefaultPodNetwork     = "10.244.0.0/16"
	DefaultServiceNetwork = "10.96.0.0/12"
)

// prefixRange bounds the prefix lengths that Kubernetes takes for a network.
type prefixRange struct{ v4min, v4max, v6min, v6max int }

var (
	// Each node gets a /24 (IPv6: /64) of the pod network, which may be split into 2^16 at most.
	podPrefixes = prefixRange{8, 24, 48, 64}
	// The API server takes at most 20 host bits, and the cluster's DNS service is the tenth address.
	servicePrefixes = prefixRange{12, 28, 108, 124}
)

// network is a tenant's declared or default network.
type network struct {
	prefixes []netip.Prefix
	at       []*field.Path // of each prefix; the list's path where the prefix is a default
	isV4     []bool
}

// networks checks the pod and service networks, and answers those that are well formed.
func networks(spec *TenantSpec, at *field.Path) (pods, services network, errs field.ErrorList) {
	pods, errs = parseNetwork(spec.PodNetwork, DefaultPodNetwork, podPrefixes, at.Child("podNetwork"))
	services, more := parseNetwork(spec.ServiceNetwork, DefaultServiceNetwork, servicePrefixes, at.Child("serviceNetwork"))
	errs = append(errs, more...)
	for i, s := range services.prefixes {
		for j, p := range pods.prefixes {
			if !s.Overlaps(p) {
				continue
			}
			// Blame what was declared, not a default.
			where, other, what := services.at[i], p, "podNetwork"
			value := s
			if len(spec.ServiceNetwork) == 0 {
				where, other, what, value = pods.at[j], s, "the default serviceNetwork", p
			} else if len(spec.PodNetwork) == 0 {
				what = "the default podNetwork"
			}
			errs = append(errs, field.Invalid(where, value.String(), fmt.Sprintf("overlaps %s %s", what, other)))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, checkFamilies(spec, pods, services, at)...)
	}
	return pods, services, errs
}

func parseNetwork(cidrs []string, def string, bounds prefixRange, at *field.Path) (network, field.ErrorList) {
	var n network
	var errs field.ErrorList
	if len(cidrs) == 0 {
		n.add(netip.MustParsePrefix(def), at)
		return n, nil
	}
	for i, s := range cidrs {
		p, err := parseCIDR(s)
		if err != nil {
			errs = append(errs, field.Invalid(at.Index(i), clip(s), err.Error()))
			continue
		}
		lo, hi := bounds.v4min, bounds.v4max
		if p.Addr().Is6() {
			lo, hi = bounds.v6min, bounds.v6max
		}
		if p.Bits() < lo || p.Bits() > hi {
			errs = append(errs, field.Invalid(at.Index(i), s, fmt.Sprintf("Kubernetes takes prefix lengths from /%d to /%d here", lo, hi)))
		}
		for _, earlier := range n.prefixes {
			if earlier.Overlaps(p) {
				errs = append(errs, field.Invalid(at.Index(i), s, fmt.Sprintf("overlaps %s of the same list", earlier)))
			} else if earlier.Addr().Is4() == p.Addr().Is4() {
				errs = append(errs, field.Invalid(at.Index(i), s, "is the second of its address family: give at most one IPv4 and one IPv6 network"))
			}
		}
		n.add(p, at.Index(i))
	}
	return n, errs
}

func (n *network) add(p netip.Prefix, at *field.Path) {
	n.prefixes = append(n.prefixes, p)
	n.at = append(n.at, at)
	n.isV4 = append(n.isV4, p.Addr().Is4())
}

func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("must be a network such as %s", DefaultPodNetwork)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("is an IPv4 network written as IPv6: write it as IPv4")
	}
	if m := p.Masked(); m != p {
		return p, fmt.Errorf("has bits set beyond its prefix: write %s", m)
	}
	if a := p.Addr(); a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return p, fmt.Errorf("is not a range that can be routed (multicast, loopback or link-local)")
	}
	return p, nil
}

// checkFamilies: a service of a family needs pods of that family.
func checkFamilies(spec *TenantSpec, pods, services network, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range services.prefixes {
		if pods.has(s.Addr().Is4()) {
			continue
		}
		family := "IPv6"
		if s.Addr().Is4() {
			family = "IPv4"
		}
		if len(spec.ServiceNetwork) == 0 {
			errs = append(errs, field.Required(at.Child("serviceNetwork"), fmt.Sprintf("podNetwork has no %s, which the default %s needs", family, s)))
			continue
		}
		errs = append(errs, field.Invalid(services.at[i], s.String(), fmt.Sprintf("podNetwork has no %s network for it", family)))
	}
	return errs
}

func (n network) has(v4 bool) bool {
	for _, is := range n.isV4 {
		if is == v4 {
			return true
		}
	}
	return false
}

func (n network) contains(ip netip.Addr) (netip.Prefix, bool) {
	for _, p := range n.prefixes {
		if p.Contains(ip) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// parseEndpoint reads a control-plane endpoint: https, a host, perhaps a port, nothing else.
func parseEndpoint(s string) (host string, err error) {
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" {
		return "", fmt.Errorf("must be a URL such as https://prod.example.com:6443")
	}
	switch {
	case u.Scheme != "https":
		return "", fmt.Errorf("must start with https://")
	case u.User != nil:
		return "", fmt.Errorf("must not carry a user name or password")
	case u.Host == "" || u.Hostname() == "":
		return "", fmt.Errorf("has no host")
	case u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return "", fmt.Errorf("must end after the host and port: write https://%s", u.Host)
	case strings.HasSuffix(u.Host, ":"):
		return "", fmt.Errorf("has a colon and no port")
	}
	if p := u.Port(); p != "" {
		if _, err := parsePort(p); err != nil {
			return "", err
		}
	}
	return canonicalHost(u.Hostname())
}
