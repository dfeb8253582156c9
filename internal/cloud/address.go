package cloud

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultTalosPort is where a machine's Talos API listens unless its address says otherwise.
const DefaultTalosPort = 50000

// MachineAddress is where a machine's Talos API listens. Host is an IP address in canonical form or a DNS name in
// lower case. Two spellings of one address are equal.
type MachineAddress struct {
	Host string
	Port uint16
}

// String is the canonical form, "host:port", with brackets around an IPv6 address.
func (a MachineAddress) String() string {
	return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

// IP answers the host's IP address; false when the host is a name.
func (a MachineAddress) IP() (netip.Addr, bool) {
	ip, err := netip.ParseAddr(a.Host)
	return ip, err == nil
}

// ParseMachineAddress reads "host", "host:port", an IPv6 address, or "[IPv6]:port".
func ParseMachineAddress(s string) (MachineAddress, error) {
	a := MachineAddress{Host: s, Port: DefaultTalosPort}
	if s == "" {
		return a, errors.New("must be an address such as 10.0.0.9:50000")
	}
	bareIPv6 := strings.Count(s, ":") > 1 && !strings.HasPrefix(s, "[")
	if !bareIPv6 && strings.ContainsAny(s, ":[]") {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			return a, errors.New(`must be "host", "host:port" or "[IPv6]:port"`)
		}
		n, err := parsePort(port)
		if err != nil {
			return a, err
		}
		a.Host, a.Port = host, n
	}
	var err error
	a.Host, err = canonicalHost(a.Host)
	return a, err
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("port %q must be a number from 1 to 65535", s)
	}
	return uint16(n), nil
}

// canonicalHost checks a host that others must be able to dial.
func canonicalHost(s string) (string, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		switch {
		case ip.Zone() != "":
			return "", errors.New("an address with a zone means something on one host only")
		case ip.Is4In6():
			return "", fmt.Errorf("is an IPv4 address written as IPv6: write %s", ip.Unmap())
		case ip.IsUnspecified(), ip.IsMulticast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			return "", fmt.Errorf("%s is not the address of one machine", ip)
		}
		return ip.String(), nil
	}
	host := strings.ToLower(s)
	if errs := validation.IsDNS1123Subdomain(host); len(errs) > 0 {
		return "", errors.New("host must be an IP address or a DNS name (letters, digits, '-' and '.')")
	}
	last := host[strings.LastIndex(host, ".")+1:]
	if strings.Trim(last, "0123456789") == "" {
		return "", errors.New("host looks like an IPv4 address and is none")
	}
	return host, nil
}
