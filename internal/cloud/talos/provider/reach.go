package provider

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// visit is what is done with a client of a machine, in maintenance mode or secured.
type visit func(context.Context, sighting, *client.Client) error

// reach runs f with a client of the machine. Where an endpoint stands before it, that may be the machine itself under
// another address, or another machine of the cluster that forwards; what the endpoint cannot do is tried at the
// machine's own address.
func (m *machine) reach(ctx context.Context, f visit) error {
	as, err := m.look(ctx)
	switch {
	case err != nil:
	case as == foreign:
		return errForeign
	case as == ours:
		if err = m.call(ctx, as, f); !m.forwards || status.Code(err) != codes.Unavailable {
			return err
		}
	case !m.forwards || m.isItself(ctx):
		return m.call(ctx, as, f)
	default:
		err = fmt.Errorf("the machine at %s is another one than %s, and in maintenance mode it does not forward", m.address, m.node)
	}
	if m.forwards {
		direct := m.direct()
		if as, lookErr := direct.look(ctx); lookErr == nil {
			if as == foreign {
				return errForeign
			}
			return direct.call(ctx, as, f)
		}
	}
	return err
}

// isItself tells whether the machine in maintenance mode at the endpoint is the node: whether it has the node's address.
// Otherwise a machine would get the configuration that another one should have.
func (m *machine) isItself(ctx context.Context) bool {
	wanted := map[netip.Addr]bool{}
	if ip, err := netip.ParseAddr(trimBrackets(host(withPort(m.node)))); err == nil {
		wanted[ip.Unmap()] = true
	} else if found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host(withPort(m.node))); err == nil {
		for _, ip := range found {
			wanted[ip.Unmap()] = true
		}
	}
	itself := false
	err := m.call(ctx, maintenance, func(ctx context.Context, _ sighting, c *client.Client) error {
		list, err := safe.StateListAll[*network.NodeAddress](ctx, c.COSI)
		if err != nil {
			return err
		}
		for address := range list.All() {
			for _, prefix := range address.TypedSpec().Addresses {
				itself = itself || wanted[prefix.Addr().Unmap()]
			}
		}
		return nil
	})
	return err == nil && itself
}
