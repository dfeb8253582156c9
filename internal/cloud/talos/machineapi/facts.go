package machineapi

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"freehold.dev/freehold/internal/cloud"
)

func (c *Client) readSystem(ctx context.Context, o *Observation) error {
	s, err := safe.StateGetByID[*hardware.SystemInformation](ctx, c.cosi, hardware.SystemInformationID)
	if err != nil {
		return err
	}
	o.Hardware.UUID = strings.ToLower(s.TypedSpec().UUID)
	return nil
}

func (c *Client) readProcessors(ctx context.Context, o *Observation) error {
	list, err := safe.StateListAll[*hardware.Processor](ctx, c.cosi)
	if err != nil {
		return err
	}
	for p := range list.All() {
		// A socket without cores is empty.
		if spec := p.TypedSpec(); spec.CoreCount > 0 {
			o.Hardware.Processors = append(o.Hardware.Processors, cloud.Processor{
				CoreCount: int(spec.CoreCount), Description: strings.TrimSpace(cmp.Or(spec.ProductName, spec.Manufacturer)),
			})
		}
	}
	return nil
}

func (c *Client) readMemory(ctx context.Context, o *Observation) error {
	list, err := safe.StateListAll[*hardware.MemoryModule](ctx, c.cosi)
	if err != nil {
		return err
	}
	for m := range list.All() {
		if size := m.TypedSpec().Size; size > 0 {
			o.Hardware.MemoryModules = append(o.Hardware.MemoryModules, cloud.MemoryModule{SizeMB: int(size)})
		}
	}
	return nil
}

func (c *Client) readDisks(ctx context.Context, o *Observation) error {
	list, err := safe.StateListAll[*block.Disk](ctx, c.cosi)
	if err != nil {
		return err
	}
	system, err := safe.StateGetByID[*block.SystemDisk](ctx, c.cosi, block.SystemDiskID)
	if unknown(err) != nil {
		return err
	}
	for d := range list.All() {
		spec := d.TypedSpec()
		if spec.CDROM || spec.Readonly || spec.Size == 0 {
			continue
		}
		o.Hardware.BlockDevices = append(o.Hardware.BlockDevices, cloud.BlockDevice{
			Name: cmp.Or(spec.DevPath, "/dev/"+d.Metadata().ID()), Size: int64(spec.Size), Type: diskType(spec),
			SystemDisk: system != nil && system.TypedSpec().DiskID == d.Metadata().ID(),
		})
	}
	slices.SortFunc(o.Hardware.BlockDevices, func(a, b cloud.BlockDevice) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func diskType(spec *block.DiskSpec) string {
	switch {
	case spec.Transport == "nvme":
		return "nvme"
	case spec.Rotational:
		return "hdd"
	default:
		return "ssd"
	}
}

func (c *Client) readHostname(ctx context.Context, o *Observation) error {
	h, err := safe.StateGetByID[*network.HostnameStatus](ctx, c.cosi, network.HostnameID)
	if err != nil {
		return err
	}
	o.Network.Hostname = h.TypedSpec().Hostname
	return nil
}

// readAddresses prefers the addresses that are the machine's own to those of its pods and services.
func (c *Client) readAddresses(ctx context.Context, o *Observation) error {
	var err error
	for _, id := range []resource.ID{
		network.FilteredNodeAddressID(network.NodeAddressRoutedID, k8s.NodeAddressFilterNoK8s),
		network.NodeAddressRoutedID, network.NodeAddressCurrentID,
	} {
		var a *network.NodeAddress
		a, err = safe.StateGetByID[*network.NodeAddress](ctx, c.cosi, id)
		if err == nil {
			for _, ip := range a.TypedSpec().IPs() {
				o.Network.Addresses = append(o.Network.Addresses, ip.String())
			}
			return nil
		}
		if !state.IsNotFoundError(err) {
			return err
		}
	}
	return err
}

func (c *Client) readGateways(ctx context.Context, o *Observation) error {
	list, err := safe.StateListAll[*network.RouteStatus](ctx, c.cosi)
	if err != nil {
		return err
	}
	for r := range list.All() {
		spec := r.TypedSpec()
		everywhere := !spec.Destination.IsValid() || spec.Destination.Bits() == 0
		if everywhere && spec.Gateway.IsValid() && !slices.Contains(o.Network.DefaultGateways, spec.Gateway.String()) {
			o.Network.DefaultGateways = append(o.Network.DefaultGateways, spec.Gateway.String())
		}
	}
	slices.Sort(o.Network.DefaultGateways)
	return nil
}

// schematicExtension is the name under which the image factory records the schematic's id, as its version.
const schematicExtension = "schematic"

// readExtensions finds the schematic among the extensions: the image factory records it as one.
func (c *Client) readExtensions(ctx context.Context, o *Observation) error {
	list, err := safe.StateListAll[*runtime.ExtensionStatus](ctx, c.cosi)
	if err != nil {
		return err
	}
	for e := range list.All() {
		switch md := e.TypedSpec().Metadata; md.Name {
		case schematicExtension:
			o.Schematic.ID = md.Version
		case "", "modules.dep":
			// A virtual one that Talos itself makes.
		default:
			o.Schematic.Extensions = append(o.Schematic.Extensions, md.Name)
		}
	}
	slices.Sort(o.Schematic.Extensions)
	return nil
}
