package talosim

import (
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/cri"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/files"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubeaccess"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubespan"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/perf"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"github.com/siderolabs/talos/pkg/machinery/resources/siderolink"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
)

// talosNamespaces are the namespaces of Talos' resources.
var talosNamespaces = map[resource.Namespace]string{
	v1alpha1.NamespaceName:        "Talos v1alpha1 subsystems.",
	clusterres.NamespaceName:      "Cluster configuration and discovery.",
	clusterres.RawNamespaceName:   "Cluster raw resources.",
	configres.NamespaceName:       "Machine configuration.",
	etcd.NamespaceName:            "etcd.",
	files.NamespaceName:           "Files.",
	hardware.NamespaceName:        "Hardware.",
	k8s.NamespaceName:             "Kubernetes on every machine.",
	k8s.ControlPlaneNamespaceName: "Kubernetes on control planes.",
	kubespan.NamespaceName:        "KubeSpan.",
	network.NamespaceName:         "Network.",
	network.ConfigNamespaceName:   "Network configuration.",
	cri.NamespaceName:             "Container runtime.",
	secrets.NamespaceName:         "Secret material.",
	perf.NamespaceName:            "Performance counters.",
}

// talosTypes are Talos' resource types. A type that a simulated machine has nothing of lists empty.
func talosTypes() []meta.ResourceWithRD {
	return []meta.ResourceWithRD{
		&block.Device{}, &block.DiscoveredVolume{}, &block.DiscoveryRefreshRequest{}, &block.DiscoveryRefreshStatus{},
		&block.Disk{}, &block.MountRequest{}, &block.MountStatus{}, &block.SwapStatus{}, &block.Symlink{},
		&block.SystemDisk{}, &block.UserDiskConfigStatus{}, &block.VolumeConfig{}, &block.VolumeLifecycle{},
		&block.VolumeMountRequest{}, &block.VolumeMountStatus{}, &block.VolumeStatus{}, &block.ZswapStatus{},
		&clusterres.Affiliate{}, &clusterres.Config{}, &clusterres.Identity{}, &clusterres.Info{}, &clusterres.Member{},
		&configres.MachineConfig{}, &configres.MachineType{},
		&cri.ImageCacheConfig{}, &cri.RegistriesConfig{}, &cri.SeccompProfile{},
		&etcd.Config{}, &etcd.Member{}, &etcd.PKIStatus{}, &etcd.Spec{},
		&files.EtcFileSpec{}, &files.EtcFileStatus{},
		&hardware.MemoryModule{}, &hardware.PCIDevice{}, &hardware.PCIDriverRebindConfig{}, &hardware.PCIDriverRebindStatus{},
		&hardware.PCRStatus{}, &hardware.Processor{}, &hardware.SystemInformation{},
		&k8s.APIServerConfig{}, &k8s.AdmissionControlConfig{}, &k8s.AuditPolicyConfig{}, &k8s.AuthorizationConfig{},
		&k8s.BootstrapManifestsConfig{}, &k8s.ConfigStatus{}, &k8s.ControllerManagerConfig{}, &k8s.Endpoint{},
		&k8s.ExtraManifestsConfig{}, &k8s.KubePrismConfig{}, &k8s.KubePrismEndpoints{}, &k8s.KubePrismStatuses{},
		&k8s.KubeletConfig{}, &k8s.KubeletLifecycle{}, &k8s.KubeletSpec{}, &k8s.ManifestStatus{}, &k8s.Manifest{},
		&k8s.NodeAnnotationSpec{}, &k8s.NodeCordonedSpec{}, &k8s.NodeIPConfig{}, &k8s.NodeIP{}, &k8s.NodeLabelSpec{},
		&k8s.NodeStatus{}, &k8s.NodeTaintSpec{}, &k8s.Nodename{}, &k8s.SchedulerConfig{}, &k8s.SecretsStatus{},
		&k8s.StaticPodServerStatus{}, &k8s.StaticPodStatus{}, &k8s.StaticPod{},
		&kubeaccess.Config{},
		&kubespan.Config{}, &kubespan.Endpoint{}, &kubespan.Identity{}, &kubespan.PeerSpec{}, &kubespan.PeerStatus{},
		&network.AddressSpec{}, &network.AddressStatus{}, &network.DNSResolveCache{}, &network.DNSUpstream{},
		&network.DeviceConfigSpec{}, &network.EthernetSpec{}, &network.EthernetStatus{}, &network.HardwareAddr{},
		&network.HostDNSConfig{}, &network.HostnameSpec{}, &network.HostnameStatus{}, &network.LinkAliasSpec{},
		&network.LinkRefresh{}, &network.LinkSpec{}, &network.LinkStatus{}, &network.NfTablesChain{}, &network.NodeAddressFilter{},
		&network.NodeAddressSortAlgorithm{}, &network.NodeAddress{}, &network.OperatorSpec{}, &network.PlatformConfig{},
		&network.ProbeSpec{}, &network.ProbeStatus{}, &network.ResolverSpec{}, &network.ResolverStatus{}, &network.RouteSpec{},
		&network.RouteStatus{}, &network.Status{}, &network.TimeServerSpec{}, &network.TimeServerStatus{},
		&perf.CPU{}, &perf.Memory{},
		&runtime.BootedEntry{}, &runtime.DevicesStatus{}, &runtime.Diagnostic{}, &runtime.EventSinkConfig{},
		&runtime.ExtensionServiceConfigStatus{}, &runtime.ExtensionServiceConfig{}, &runtime.ExtensionStatus{},
		&runtime.KernelCmdline{}, &runtime.KernelModuleSpec{}, &runtime.KernelParamDefaultSpec{}, &runtime.KernelParamSpec{},
		&runtime.KernelParamStatus{}, &runtime.KmsgLogConfig{}, &runtime.LoadedKernelModule{}, &runtime.MachineResetSignal{},
		&runtime.MachineStatus{}, &runtime.MaintenanceServiceConfig{}, &runtime.MaintenanceServiceRequest{},
		&runtime.MetaKey{}, &runtime.MetaLoaded{}, &runtime.MountStatus{}, &runtime.OOMAction{}, &runtime.PlatformMetadata{},
		&runtime.SBOMItem{}, &runtime.SecurityState{}, &runtime.UniqueMachineToken{}, &runtime.Version{}, &runtime.WatchdogTimerConfig{},
		&runtime.WatchdogTimerStatus{},
		&secrets.API{}, &secrets.CertSAN{}, &secrets.EncryptionSalt{}, &secrets.EtcdRoot{}, &secrets.Etcd{},
		&secrets.Kubelet{}, &secrets.KubernetesDynamicCerts{}, &secrets.KubernetesRoot{}, &secrets.Kubernetes{},
		&secrets.MaintenanceRoot{}, &secrets.MaintenanceServiceCerts{}, &secrets.OSRoot{}, &secrets.Trustd{},
		&siderolink.Config{}, &siderolink.Status{}, &siderolink.Tunnel{},
		&timeres.AdjtimeStatus{}, &timeres.Status{},
		&v1alpha1.AcquireConfigSpec{}, &v1alpha1.AcquireConfigStatus{}, &v1alpha1.Service{},
	}
}
