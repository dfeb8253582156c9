package talosim

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
)

// FreeAddresses picks n different loopback addresses (127.a.b.c, a ≥ 16) whose Talos and Kubernetes ports can be
// listened on.
func FreeAddresses(n int) ([]netip.Addr, error) {
	seen := make(map[netip.Addr]bool, n)
	list := make([]netip.Addr, 0, n)
	for tries := 0; len(list) < n; tries++ {
		if tries > 100+10*n {
			return nil, fmt.Errorf("found only %d of %d free loopback addresses; does this system route all of 127.0.0.0/8 to itself?", len(list), n)
		}
		addr := netip.AddrFrom4([4]byte{127, byte(16 + rand.IntN(239)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
		if seen[addr] || !free(addr, TalosPort) || !free(addr, KubernetesPort) {
			continue
		}
		seen[addr] = true
		list = append(list, addr)
	}
	return list, nil
}

func free(addr netip.Addr, port uint16) bool {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}
