package cloud

import (
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Machine is a physical or virtual machine; unassigned until a tenant owns it (LabelTenant). Its stored name, a
// UUID, never changes.
type Machine = store.Resource[MachineSpec, MachineStatus]

// Machines is the kind of Machine. Index "tenant" is the owning tenant, "" for unassigned machines; index
// "group" is "<tenant>/<node group>". Management addresses are unique: claim "machine-address".
var Machines = store.Type[MachineSpec, MachineStatus]{Kind: store.Kind{
	Name: "machine", Version: 1,
	Indexes: map[string]func(*store.Object) []string{
		"tenant": func(o *store.Object) []string { return []string{o.Labels[LabelTenant]} },
		"group": func(o *store.Object) []string {
			return []string{SubName(o.Labels[LabelTenant], o.Labels[LabelNodeGroup])}
		},
	},
}}

// MachineSpec projects the tenant's TF state; for an unassigned machine it is what was registered.
type MachineSpec struct {
	// ManagementAddress is where the Talos API listens: "host" or "host:port" (default port 50000).
	ManagementAddress string `json:"managementAddress,omitempty"`
}

// Stage of a machine's life.
type Stage string

// The stages.
const (
	StageInitializing Stage = "initializing" // Talos booting, no config applied yet
	StageInstalling   Stage = "installing"
	StageConfiguring  Stage = "configuring" // config applied, services starting
	StageReady        Stage = "ready"
	StageRestarting   Stage = "restarting"
	StageStopping     Stage = "stopping"
	StageOff          Stage = "off"
	StageUpdating     Stage = "updating"
	StageRemoving     Stage = "removing"
)

// MachineStatus is what the prober saw last; its one writer is the prober (stages removing and updating: the
// controller that removes or upgrades).
type MachineStatus struct {
	// Connected is served under spec, where the spec shows it; it is an observation all the same.
	Connected         bool      `json:"connected"`
	Stage             Stage     `json:"stage,omitempty"`
	Ready             bool      `json:"ready"`
	Role              Role      `json:"role,omitempty"`
	TalosVersion      string    `json:"talosVersion,omitempty"`
	KubernetesVersion string    `json:"kubernetesVersion,omitempty"`
	ConfigUpToDate    bool      `json:"configUpToDate"`
	Maintenance       bool      `json:"maintenance"`
	Hardware          Hardware  `json:"hardware,omitzero"`
	Network           Network   `json:"network,omitzero"`
	Schematic         Schematic `json:"schematic,omitzero"`
	LastError         string    `json:"lastError"`
	// DisconnectedAt is when Connected turned false; nil while it is true.
	DisconnectedAt *time.Time `json:"disconnectedAt,omitempty"`
	// BootID of the running kernel; a new one proves a restart.
	BootID string `json:"bootId,omitempty"`
}

// Hardware as the machine reports it.
type Hardware struct {
	UUID          string         `json:"uuid,omitempty"`
	Processors    []Processor    `json:"processors,omitempty"`
	MemoryModules []MemoryModule `json:"memoryModules,omitempty"`
	BlockDevices  []BlockDevice  `json:"blockDevices,omitempty"`
}

// Processor is one socket.
type Processor struct {
	CoreCount   int    `json:"coreCount"`
	Description string `json:"description,omitempty"`
}

// MemoryModule is one module; its size is in MiB.
type MemoryModule struct {
	SizeMB int `json:"sizeMb"`
}

// BlockDevice is one disk; its size is in bytes.
type BlockDevice struct {
	Name       string `json:"name,omitempty"`
	Size       int64  `json:"size"`
	Type       string `json:"type,omitempty"`
	SystemDisk bool   `json:"systemDisk"`
}

// Network as the machine reports it.
type Network struct {
	Hostname        string   `json:"hostname,omitempty"`
	Addresses       []string `json:"addresses,omitempty"`
	DefaultGateways []string `json:"defaultGateways,omitempty"`
}

// Schematic is the image schematic the machine was made from.
type Schematic struct {
	ID         string   `json:"id,omitempty"`
	Extensions []string `json:"extensions,omitempty"`
}
