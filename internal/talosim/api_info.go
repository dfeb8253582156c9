package talosim

import (
	"context"
	"time"

	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	inspectapi "github.com/siderolabs/talos/pkg/machinery/api/inspect"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/version"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// secure refuses calls that the maintenance API does not have.
func secure(ctx context.Context) (*session, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return nil, errMaintenance
	}
	return c.s, nil
}

// Version implements the machine API.
func (*machineService) Version(ctx context.Context, _ *emptypb.Empty) (*machineapi.VersionResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	info := version.NewVersion()
	s.m.mu.Lock()
	info.Tag = s.m.versionLocked()
	s.m.mu.Unlock()
	info.GoVersion = constants.GoVersion
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{
		Version:  info,
		Platform: &machineapi.PlatformInfo{Name: "metal", Mode: "metal"},
		Features: &machineapi.FeaturesInfo{Rbac: true},
	}}}, nil
}

// Hostname implements the machine API.
func (*machineService) Hostname(ctx context.Context, _ *emptypb.Empty) (*machineapi.HostnameResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	return &machineapi.HostnameResponse{Messages: []*machineapi.Hostname{{Hostname: s.nodename()}}}, nil
}

// ServiceList implements the machine API.
func (*machineService) ServiceList(ctx context.Context, _ *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{Services: s.serviceInfos()}}}, nil
}

// restartable names the services that the API may restart.
var restartable = map[string]bool{"cri": true, "etcd": true, "kubelet": true, "trustd": true}

func (s *session) checkService(id string) error {
	if !s.hasService(id) {
		return status.Errorf(codes.Unknown, "service %q is not registered", id)
	}
	if !restartable[id] {
		return status.Errorf(codes.Unknown, "service %q doesn't support restart operation via API", id)
	}
	return nil
}

// ServiceRestart implements the machine API.
func (*machineService) ServiceRestart(ctx context.Context, in *machineapi.ServiceRestartRequest) (*machineapi.ServiceRestartResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.checkService(in.GetId()); err != nil {
		return nil, err
	}
	if in.GetId() == "etcd" {
		s.m.mu.Lock()
		s.etcdLeft = false
		s.m.mu.Unlock()
		s.stopEtcd(stateFinished, "Service finished successfully")
		s.m.changed()
	} else {
		s.setService(in.GetId(), stateFinished, "Service finished successfully")
		s.runService(in.GetId())
	}
	return &machineapi.ServiceRestartResponse{Messages: []*machineapi.ServiceRestart{{Resp: "Service \"" + in.GetId() + "\" restarted"}}}, nil
}

// Memory implements the machine API; values are in KiB, as in /proc/meminfo.
func (*machineService) Memory(ctx context.Context, _ *emptypb.Empty) (*machineapi.MemoryResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	total := uint64(s.m.rec.MemoryMiB) << 10
	return &machineapi.MemoryResponse{Messages: []*machineapi.Memory{{Meminfo: &machineapi.MemInfo{
		Memtotal: total, Memfree: total / 2, Memavailable: total * 3 / 4, Cached: total / 8, Buffers: total / 64,
		Active: total / 5, Inactive: total / 10, Slab: total / 40,
	}}}}, nil
}

// LoadAvg implements the machine API.
func (*machineService) LoadAvg(ctx context.Context, _ *emptypb.Empty) (*machineapi.LoadAvgResponse, error) {
	if _, err := secure(ctx); err != nil {
		return nil, err
	}
	return &machineapi.LoadAvgResponse{Messages: []*machineapi.LoadAvg{{Load1: 0.21, Load5: 0.18, Load15: 0.12}}}, nil
}

// SystemStat implements the machine API.
func (*machineService) SystemStat(ctx context.Context, _ *emptypb.Empty) (*machineapi.SystemStatResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	up := time.Since(s.since).Seconds()
	cores := s.m.rec.Cores
	stat := &machineapi.SystemStat{
		BootTime: uint64(s.boot.Unix()), ProcessCreated: 4000, ProcessRunning: 1, ContextSwitches: uint64(up * 2000),
		CpuTotal: &machineapi.CPUStat{User: up * float64(cores) * 0.03, System: up * float64(cores) * 0.02, Idle: up * float64(cores) * 0.95},
	}
	for range cores {
		stat.Cpu = append(stat.Cpu, &machineapi.CPUStat{User: up * 0.03, System: up * 0.02, Idle: up * 0.95})
	}
	return &machineapi.SystemStatResponse{Messages: []*machineapi.SystemStat{stat}}, nil
}

// CPUInfo implements the machine API.
func (*machineService) CPUInfo(ctx context.Context, _ *emptypb.Empty) (*machineapi.CPUInfoResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	info := &machineapi.CPUsInfo{}
	for i := range s.m.rec.Cores {
		info.CpuInfo = append(info.CpuInfo, &machineapi.CPUInfo{
			Processor: uint32(i), VendorId: "Simulated", ModelName: processorName, CpuMhz: 2600, CpuCores: uint32(s.m.rec.Cores), Siblings: uint32(s.m.rec.Cores),
		})
	}
	return &machineapi.CPUInfoResponse{Messages: []*machineapi.CPUsInfo{info}}, nil
}

// Mounts implements the machine API.
func (*machineService) Mounts(ctx context.Context, _ *emptypb.Empty) (*machineapi.MountsResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	size := uint64(s.m.rec.DiskGiB) << 30
	return &machineapi.MountsResponse{Messages: []*machineapi.Mounts{{Stats: []*machineapi.MountStat{
		{Filesystem: "/dev/sda5", Size: 100 << 20, Available: 90 << 20, MountedOn: "/system/state"},
		{Filesystem: "/dev/sda6", Size: size - 3<<30, Available: size / 4 * 3, MountedOn: "/var"},
	}}}}, nil
}

// Processes implements the machine API.
func (*machineService) Processes(ctx context.Context, _ *emptypb.Empty) (*machineapi.ProcessesResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	out := &machineapi.Process{Processes: []*machineapi.ProcessInfo{
		{Pid: 1, State: "S", Threads: 20, Command: "init", Executable: "/sbin/init", Args: "/sbin/init", ResidentMemory: 80 << 20, VirtualMemory: 2 << 30},
	}}
	for i, info := range s.serviceInfos() {
		if info.State == stateRunning && info.Id != "machined" {
			out.Processes = append(out.Processes, &machineapi.ProcessInfo{
				Pid: int32(1000 + 10*i), Ppid: 1, State: "S", Threads: 12, Command: info.Id, Executable: "/" + info.Id, Args: "/" + info.Id,
				ResidentMemory: 60 << 20, VirtualMemory: 1 << 30,
			})
		}
	}
	return &machineapi.ProcessesResponse{Messages: []*machineapi.Process{out}}, nil
}

// Containers implements the machine API: those of the system namespace are the services.
func (*machineService) Containers(ctx context.Context, in *machineapi.ContainersRequest) (*machineapi.ContainersResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	out := &machineapi.Container{}
	if in.GetNamespace() == constants.SystemContainerdNamespace {
		for i, info := range s.serviceInfos() {
			if info.State == stateRunning {
				out.Containers = append(out.Containers, &machineapi.ContainerInfo{
					Namespace: in.GetNamespace(), Id: info.Id, PodId: info.Id, Name: info.Id, Pid: uint32(1000 + 10*i), Status: "RUNNING",
				})
			}
		}
	}
	return &machineapi.ContainersResponse{Messages: []*machineapi.Container{out}}, nil
}

// storageService is Talos' storage API; it works in maintenance mode too.
type storageService struct {
	storageapi.UnimplementedStorageServiceServer
}

// Disks implements the storage API.
func (*storageService) Disks(ctx context.Context, _ *emptypb.Empty) (*storageapi.DisksResponse, error) {
	s := callFrom(ctx).s
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return &storageapi.DisksResponse{Messages: []*storageapi.Disks{{Disks: []*storageapi.Disk{{
		Size: uint64(s.m.rec.DiskGiB) << 30, Model: diskModel, DeviceName: "/dev/sda", Serial: diskSerial(s.m.rec), Type: storageapi.Disk_SSD,
		BusPath: diskBus, SystemDisk: s.m.rec.Disk != nil, Subsystem: "/sys/class/block",
	}}}}}, nil
}

// timeService is Talos' time API.
type timeService struct {
	timeapi.UnimplementedTimeServiceServer
}

// Time implements the time API.
func (t *timeService) Time(ctx context.Context, _ *emptypb.Empty) (*timeapi.TimeResponse, error) {
	return t.TimeCheck(ctx, &timeapi.TimeRequest{Server: constants.DefaultNTPServer})
}

// TimeCheck implements the time API.
func (*timeService) TimeCheck(ctx context.Context, in *timeapi.TimeRequest) (*timeapi.TimeResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	return &timeapi.TimeResponse{Messages: []*timeapi.Time{{
		Server: in.GetServer(), Localtime: timestamppb.New(s.m.now()), Remotetime: timestamppb.New(time.Now()),
	}}}, nil
}

// clusterService is Talos' cluster API.
type clusterService struct {
	clusterapi.UnimplementedClusterServiceServer
}

// inspectService is Talos' inspection API.
type inspectService struct {
	inspectapi.UnimplementedInspectServiceServer
}

// ControllerRuntimeDependencies implements the inspection API: a simulated machine has no controllers.
func (*inspectService) ControllerRuntimeDependencies(ctx context.Context, _ *emptypb.Empty) (*inspectapi.ControllerRuntimeDependenciesResponse, error) {
	if _, err := secure(ctx); err != nil {
		return nil, err
	}
	return &inspectapi.ControllerRuntimeDependenciesResponse{Messages: []*inspectapi.ControllerRuntimeDependency{{}}}, nil
}

// LogsContainers implements the machine API: it lists whose logs there are.
func (*machineService) LogsContainers(ctx context.Context, _ *emptypb.Empty) (*machineapi.LogsContainersResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	out := &machineapi.LogsContainer{}
	for _, info := range s.serviceInfos() {
		out.Ids = append(out.Ids, info.Id)
	}
	return &machineapi.LogsContainersResponse{Messages: []*machineapi.LogsContainer{out}}, nil
}

// NetworkDeviceStats implements the machine API.
func (*machineService) NetworkDeviceStats(ctx context.Context, _ *emptypb.Empty) (*machineapi.NetworkDeviceStatsResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	bytes := uint64(time.Since(s.since).Seconds() * 2000)
	device := &machineapi.NetDev{Name: linkName, RxBytes: bytes, TxBytes: bytes, RxPackets: bytes / 500, TxPackets: bytes / 500}
	return &machineapi.NetworkDeviceStatsResponse{Messages: []*machineapi.NetworkDeviceStats{{Total: device, Devices: []*machineapi.NetDev{device}}}}, nil
}

// DiskStats implements the machine API.
func (*machineService) DiskStats(ctx context.Context, _ *emptypb.Empty) (*machineapi.DiskStatsResponse, error) {
	s, err := secure(ctx)
	if err != nil {
		return nil, err
	}
	done := uint64(time.Since(s.since).Seconds() * 10)
	disk := &machineapi.DiskStat{Name: "sda", ReadCompleted: done, WriteCompleted: done, ReadSectors: done * 8, WriteSectors: done * 8}
	return &machineapi.DiskStatsResponse{Messages: []*machineapi.DiskStats{{Total: disk, Devices: []*machineapi.DiskStat{disk}}}}, nil
}
