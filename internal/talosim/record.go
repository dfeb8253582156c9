package talosim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/version"
)

// MachineSpec is the hardware of a machine. Only Address is required.
type MachineSpec struct {
	// Address is the machine's own loopback address.
	Address netip.Addr `json:"address"`
	// UUID of the hardware; empty: derived from the address.
	UUID string `json:"uuid,omitempty"`
	// Cores of its one processor; 0 means 4.
	Cores int `json:"cores,omitempty"`
	// MemoryMiB of its one module; 0 means 8192.
	MemoryMiB int `json:"memoryMiB,omitempty"`
	// DiskGiB of its system disk /dev/sda; 0 means 64.
	DiskGiB int `json:"diskGiB,omitempty"`
	// TalosVersion of the image that it boots while nothing is installed; empty: the machinery's version.
	TalosVersion string `json:"talosVersion,omitempty"`
}

// record is all that a machine keeps while it is off.
type record struct {
	MachineSpec
	// Disk is nil while nothing is installed.
	Disk *disk `json:"disk,omitempty"`
	// Off: it was shut down and waits for somebody to press its button.
	Off     bool `json:"off,omitempty"`
	Boots   int  `json:"boots"`
	Applies int  `json:"applies"`
	Resets  int  `json:"resets"`
}

// disk is an installed system disk.
type disk struct {
	TalosVersion string `json:"talosVersion"`
	// Config is the persistent machine config, in force at the next boot.
	Config []byte `json:"config"`
	// NodeID is the discovery identity; it lives as long as the installation.
	NodeID string `json:"nodeId"`
	// EtcdMember is the id of the etcd member whose data is here; 0: the data directory is empty.
	EtcdMember uint64 `json:"etcdMember,omitempty"`
}

func newRecord(spec MachineSpec) (*record, error) {
	if !spec.Address.Is4() || !spec.Address.IsLoopback() {
		return nil, fmt.Errorf("address %q of a simulated machine must be in 127.0.0.0/8", spec.Address)
	}
	if spec.UUID == "" {
		spec.UUID = uuid.NewSHA1(uuid.NameSpaceURL, []byte("talosim:"+spec.Address.String())).String()
	} else if _, err := uuid.Parse(spec.UUID); err != nil {
		return nil, fmt.Errorf("machine %s: uuid: %w", spec.Address, err)
	}
	for _, f := range []struct {
		value    *int
		fallback int
	}{{&spec.Cores, 4}, {&spec.MemoryMiB, 8192}, {&spec.DiskGiB, 64}} {
		if *f.value < 0 {
			return nil, fmt.Errorf("machine %s: cores, memory and disk must not be negative", spec.Address)
		}
		if *f.value == 0 {
			*f.value = f.fallback
		}
	}
	if spec.TalosVersion == "" {
		spec.TalosVersion = version.Tag
	}
	if !strings.HasPrefix(spec.TalosVersion, "v") {
		spec.TalosVersion = "v" + spec.TalosVersion
	}
	return &record{MachineSpec: spec}, nil
}

// folder keeps records; the empty one keeps nothing.
type folder string

func (f folder) machinePath(addr netip.Addr) string {
	return filepath.Join(string(f), "machines", addr.String()+".json")
}

func (f folder) clusterPath(id string) string {
	return filepath.Join(string(f), "clusters", id+".json")
}

func (f folder) load() (machines []*record, clusters []*clusterRecord, err error) {
	if f == "" {
		return nil, nil, nil
	}
	if machines, err = loadAll[record](filepath.Join(string(f), "machines")); err != nil {
		return nil, nil, err
	}
	if clusters, err = loadAll[clusterRecord](filepath.Join(string(f), "clusters")); err != nil {
		return nil, nil, err
	}
	return machines, clusters, nil
}

func loadAll[T any](dir string) ([]*T, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the simulation: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("folder of the simulation: %w", err)
	}
	var list []*T
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("folder of the simulation: %w", err)
		}
		v := new(T)
		if err := json.Unmarshal(data, v); err != nil {
			return nil, fmt.Errorf("%s is not readable as a record of the simulation (remove it to go on without it): %w", path, err)
		}
		list = append(list, v)
	}
	return list, nil
}

func (f folder) saveMachine(r *record) error {
	if f == "" {
		return nil
	}
	return writeJSON(f.machinePath(r.Address), r)
}

func (f folder) saveCluster(r *clusterRecord) error {
	if f == "" {
		return nil
	}
	return writeJSON(f.clusterPath(r.ID), r)
}

func (f folder) removeMachine(addr netip.Addr) error { return f.remove(f.machinePath(addr)) }

func (f folder) removeCluster(id string) error { return f.remove(f.clusterPath(id)) }

func (f folder) remove(path string) error {
	if f == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeJSON replaces a file whole: a reader, and a restart after a kill, sees the old or the new.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}
