package talosim

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
)

// What simulated hardware calls itself.
const (
	manufacturer  = "Simulated"
	productName   = "talosim"
	processorName = "Simulated CPU @ 2.60GHz"
	diskModel     = "Simulated SSD"
	diskBus       = "/pci0000:00/0000:00:05.0/virtio1/"
	linkName      = "eth0"
)

func diskSerial(r *record) string { return "SIM" + r.UUID[:8] }

// putHardware publishes what a machine knows of itself at any stage.
func (s *session) putHardware() {
	s.m.mu.Lock()
	rec := s.m.rec
	installed, talosVersion := rec.Disk != nil, s.m.versionLocked()
	s.m.mu.Unlock()

	info := hardware.NewSystemInformation(hardware.SystemInformationID)
	*info.TypedSpec() = hardware.SystemInformationSpec{
		Manufacturer: manufacturer, ProductName: productName, Version: "1.0", SerialNumber: rec.UUID, UUID: rec.UUID, WakeUpType: "Power Switch",
	}
	s.put(info)
	cpu := hardware.NewProcessorInfo("CPU-0")
	*cpu.TypedSpec() = hardware.ProcessorSpec{
		Socket: "CPU 0", Manufacturer: manufacturer, ProductName: processorName, MaxSpeed: 2600, BootSpeed: 2600, Status: 65,
		CoreCount: uint32(rec.Cores), CoreEnabled: uint32(rec.Cores), ThreadCount: uint32(rec.Cores),
	}
	s.put(cpu)
	mem := hardware.NewMemoryModuleInfo("DIMM-0")
	*mem.TypedSpec() = hardware.MemoryModuleSpec{Size: uint32(rec.MemoryMiB), DeviceLocator: "DIMM 0", Manufacturer: manufacturer}
	s.put(mem)
	d := block.NewDisk(block.NamespaceName, "sda")
	*d.TypedSpec() = block.DiskSpec{
		DevPath: "/dev/sda", Size: uint64(rec.DiskGiB) << 30, PrettySize: fmt.Sprintf("%d GiB", rec.DiskGiB), IOSize: 512, SectorSize: 512,
		Model: diskModel, Serial: diskSerial(rec), BusPath: diskBus, SubSystem: "/sys/class/block", Transport: "virtio",
	}
	s.put(d)
	if installed {
		sd := block.NewSystemDisk(block.NamespaceName, block.SystemDiskID)
		sd.TypedSpec().DiskID, sd.TypedSpec().DevPath = "sda", "/dev/sda"
		s.put(sd)
		s.putVolumes(uint64(rec.DiskGiB) << 30)
	}
	platform := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, "")
	platform.TypedSpec().Platform = "metal"
	s.put(platform)
	v := runtime.NewVersion()
	v.TypedSpec().Version = talosVersion
	s.put(v)
	s.put(runtime.NewSecurityStateSpec(runtime.NamespaceName))
}

// putVolumes publishes the partitions of an installed disk.
func (s *session) putVolumes(diskSize uint64) {
	const meta, state, efi = 1 << 20, 100 << 20, 2200 << 20
	for i, p := range []struct {
		id   string
		size uint64
		fs   block.FilesystemType
	}{
		{"EFI", efi, block.FilesystemTypeVFAT}, {constants.MetaPartitionLabel, meta, block.FilesystemTypeNone},
		{constants.StatePartitionLabel, state, block.FilesystemTypeXFS},
		{constants.EphemeralPartitionLabel, diskSize - efi - meta - state - 2<<20, block.FilesystemTypeXFS},
	} {
		v := block.NewVolumeStatus(block.NamespaceName, p.id)
		*v.TypedSpec() = block.VolumeStatusSpec{
			Phase: block.VolumePhaseReady, Type: block.VolumeTypePartition, Location: fmt.Sprintf("/dev/sda%d", i+1),
			PartitionIndex: i + 1, ParentLocation: "/dev/sda", Size: p.size, PrettySize: fmt.Sprintf("%d MiB", p.size>>20), Filesystem: p.fs,
		}
		s.put(v)
	}
}

// putNetwork publishes the machine's one link and address.
func (s *session) putNetwork(hostname string) {
	addr := s.m.addr
	prefix := netip.PrefixFrom(addr, 8)
	ip := addr.As4()
	mac := nethelpers.HardwareAddr(net.HardwareAddr{0x52, 0x54, ip[0], ip[1], ip[2], ip[3]})
	link := network.NewLinkStatus(network.NamespaceName, linkName)
	*link.TypedSpec() = network.LinkStatusSpec{
		Index: 2, Type: nethelpers.LinkEther, HardwareAddr: mac, PermanentAddr: mac, MTU: 1500, OperationalState: nethelpers.OperStateUp,
		LinkState: true, SpeedMegabits: 10000, Driver: "virtio_net",
	}
	s.put(link)
	as := network.NewAddressStatus(network.NamespaceName, network.AddressID(linkName, prefix))
	*as.TypedSpec() = network.AddressStatusSpec{
		Address: prefix, Local: addr, LinkIndex: 2, LinkName: linkName, Family: nethelpers.FamilyInet4, Scope: nethelpers.ScopeGlobal,
	}
	s.put(as)
	gateway := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	route := network.NewRouteStatus(network.NamespaceName, network.RouteID(nethelpers.TableMain, nethelpers.FamilyInet4, netip.Prefix{}, gateway, 1024, linkName))
	*route.TypedSpec() = network.RouteStatusSpec{
		Family: nethelpers.FamilyInet4, Gateway: gateway, OutLinkIndex: 2, OutLinkName: linkName, Table: nethelpers.TableMain, Priority: 1024,
		Scope: nethelpers.ScopeGlobal, Type: nethelpers.TypeUnicast, Protocol: nethelpers.ProtocolBoot,
	}
	s.put(route)
	for _, id := range []string{network.NodeAddressDefaultID, network.NodeAddressCurrentID, network.NodeAddressRoutedID, network.NodeAddressAccumulativeID} {
		na := network.NewNodeAddress(network.NamespaceName, id)
		na.TypedSpec().Addresses = []netip.Prefix{prefix}
		s.put(na)
	}
	h := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	h.TypedSpec().Hostname = hostname
	s.put(h)
	resolver := network.NewResolverStatus(network.NamespaceName, network.ResolverID)
	resolver.TypedSpec().DNSServers = []netip.Addr{netip.AddrFrom4([4]byte{1, 1, 1, 1}), netip.AddrFrom4([4]byte{8, 8, 8, 8})}
	s.put(resolver)
	st := network.NewStatus(network.NamespaceName, network.StatusID)
	*st.TypedSpec() = network.StatusSpec{AddressReady: true, ConnectivityReady: true, HostnameReady: true, EtcFilesReady: true}
	s.put(st)
	s.putTime()
}

func (s *session) putTime() {
	_, wrong := s.m.fault(WrongClock)
	t := timeres.NewStatus()
	t.TypedSpec().Synced = !wrong
	s.put(t)
}

// putConfig publishes the active and the persistent config, and what follows from them.
func (s *session) putConfig() {
	cfg, _ := s.config()
	s.put(configres.NewMachineConfigWithID(cfg, configres.ActiveID))
	s.put(configres.NewMachineConfigWithID(s.persistentConfig(cfg), configres.PersistentID))
	mt := configres.NewMachineType()
	mt.SetMachineType(cfg.Machine().Type())
	s.put(mt)
	name := s.nodename()
	s.putNetwork(name)
	nn := k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID)
	nn.TypedSpec().Nodename = name
	s.put(nn)
	identity := clusterres.NewIdentity(clusterres.NamespaceName, clusterres.LocalIdentity)
	identity.TypedSpec().NodeID = s.nodeID
	s.put(identity)
	info := clusterres.NewInfo()
	info.TypedSpec().ClusterID, info.TypedSpec().ClusterName = cfg.Cluster().ID(), cfg.Cluster().Name()
	s.put(info)
}

// persistentConfig is the one on the disk, which is the active one unless something is staged or tried.
func (s *session) persistentConfig(active config.Provider) config.Provider {
	data := s.m.Config()
	if same, err := active.Bytes(); data == nil || (err == nil && bytes.Equal(same, data)) {
		return active
	}
	p, err := configloader.NewFromBytes(data)
	if err != nil {
		return active
	}
	return p
}

func (s *session) putEtcdMember(id uint64) {
	m := etcd.NewMember(etcd.NamespaceName, etcd.LocalMemberID)
	m.TypedSpec().MemberID = fmt.Sprintf("%016x", id)
	s.put(m)
}

// putCluster publishes what the machine learns of its cluster: its members and its own Node. A machine that is cut
// off learns nothing new.
func (s *session) putCluster() {
	s.putTime()
	s.m.mu.Lock()
	online := s.m.reach == reachOpen
	s.m.mu.Unlock()
	if !online {
		return
	}
	known := map[resource.ID]bool{}
	for _, v := range s.cluster.views() {
		if !v.online {
			continue
		}
		known[v.hostname] = true
		r := clusterres.NewMember(clusterres.NamespaceName, v.hostname)
		*r.TypedSpec() = clusterres.MemberSpec{
			NodeID: v.nodeID, Addresses: []netip.Addr{v.addr}, Hostname: v.hostname, MachineType: v.role,
			OperatingSystem: fmt.Sprintf("Talos (%s)", v.version),
		}
		if v.role.IsControlPlane() {
			r.TypedSpec().ControlPlane = &clusterres.ControlPlane{APIServerPort: KubernetesPort}
		}
		s.put(r)
	}
	if list, err := safe.StateListAll[*clusterres.Member](s.ctx, s.res); err == nil {
		for r := range list.All() {
			if !known[r.Metadata().ID()] {
				s.drop(r.Metadata())
			}
		}
	}
	s.putNode()
	s.putStaticPods()
}

// putNode publishes the machine's own Node, as its kubelet sees it.
func (s *session) putNode() {
	name := s.nodename()
	n, ok := s.node()
	r := k8s.NewNodeStatus(k8s.NamespaceName, name)
	if !ok {
		s.drop(r.Metadata())
		return
	}
	*r.TypedSpec() = k8s.NodeStatusSpec{
		Nodename: name, NodeReady: n.ready, Unschedulable: n.unschedulable, Labels: n.labels, Annotations: n.annotations,
	}
	s.put(r)
}

// putStaticPods publishes the control plane's pods.
func (s *session) putStaticPods() {
	s.m.mu.Lock()
	controlPlane, up, name := s.cfg.Machine().Type() == machine.TypeControlPlane, s.apiserver, s.hostname
	s.m.mu.Unlock()
	if !controlPlane || !up {
		return
	}
	for _, pod := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		r := k8s.NewStaticPodStatus(k8s.NamespaceName, fmt.Sprintf("kube-system/%s-%s", pod, name))
		r.TypedSpec().PodStatus = map[string]any{
			"phase": "Running",
			"conditions": []any{
				map[string]any{"type": "Ready", "status": "True"},
				map[string]any{"type": "ContainersReady", "status": "True"},
			},
		}
		s.put(r)
	}
}
