package talosim_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"

	"freehold.dev/freehold/internal/talosim"
)

func bootID(t *testing.T, c *client.Client) (string, error) {
	r, err := c.Read(short(t), "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return strings.TrimSpace(string(data)), err
}

func TestRebootIsSeenInEventsAndBootID(t *testing.T) {
	m, _, c, _ := single(t)
	before, err := bootID(t, c)
	if err != nil || before != m.State().BootID {
		t.Fatalf("boot id %q, %v; the machine's is %q", before, err, m.State().BootID)
	}
	stream, err := c.MachineClient.Events(short(t), &machineapi.EventsRequest{TailEvents: -1})
	if err != nil {
		t.Fatal(err)
	}
	if hello, err := stream.Recv(); err != nil || hello.Id != "" {
		t.Fatalf("first message %v, %v; want an empty one", hello, err)
	}
	r, err := c.MachineClient.Reboot(short(t), &machineapi.RebootRequest{})
	if err != nil {
		t.Fatal(err)
	}
	actor := r.Messages[0].ActorId
	var seen []string
	for {
		ev, err := stream.Recv()
		if err != nil {
			break
		}
		if ev.ActorId != actor {
			continue
		}
		e, err := client.UnmarshalEvent(ev)
		if err != nil {
			t.Fatal(err)
		}
		switch p := e.Payload.(type) {
		case *machineapi.SequenceEvent:
			seen = append(seen, fmt.Sprintf("%s %s", p.Sequence, p.Action))
		case *machineapi.MachineStatusEvent:
			seen = append(seen, p.Stage.String())
		}
	}
	if got := strings.Join(seen, ", "); got != "reboot START, REBOOTING, reboot STOP" {
		t.Errorf("events of the reboot: %s", got)
	}
	eventually(t, "a new boot id", func() error {
		after, err := bootID(t, c)
		if err == nil && after == before {
			err = errors.New("still the old one")
		}
		return err
	})
	waitStage(t, c, runtime.MachineStageRunning, true)
}

func TestLogsAreTailedPerService(t *testing.T) {
	_, _, c, _ := single(t)
	read := func(id string, tail int32) (string, error) {
		stream, err := c.Logs(short(t), constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD, id, false, tail)
		if err != nil {
			return "", err
		}
		r, err := client.ReadStream(stream)
		if err != nil {
			return "", err
		}
		data, err := io.ReadAll(r)
		return string(data), err
	}
	all, err := read("machined", -1)
	if err != nil || !strings.Contains(all, "service[apid](Running)") {
		t.Errorf("machined's log: %v\n%s", err, all)
	}
	if two, err := read("machined", 2); err != nil || strings.Count(two, "\n") != 2 {
		t.Errorf("two lines of machined's log: %v\n%s", err, two)
	}
	if _, err := read("nothing", -1); client.StatusCode(err) != codes.NotFound {
		t.Errorf("log of an unknown service: %v, want NotFound", err)
	}
	for _, id := range []string{"apid", "etcd", "kubelet", "trustd", "containerd"} {
		if out, err := read(id, -1); err != nil || out == "" {
			t.Errorf("log of %s: %q, %v", id, out, err)
		}
	}
}

func TestUpgradeChangesTheVersionAndKeepsTheData(t *testing.T) {
	m, _, c, _ := single(t)
	member, boot := m.State().EtcdMember, m.State().BootID
	if _, err := c.UpgradeWithOptions(short(t), client.WithUpgradeImage("ghcr.io/siderolabs/installer:v1.12.7")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new boot", func() error {
		if m.State().BootID == boot {
			return errors.New("not yet")
		}
		return nil
	})
	waitStage(t, c, runtime.MachineStageRunning, true)
	v, err := c.Version(short(t))
	if err != nil || v.Messages[0].Version.Tag != "v1.12.7" {
		t.Errorf("version %v, %v", v, err)
	}
	if m.State().EtcdMember != member {
		t.Error("the upgrade lost the etcd member")
	}
}

func TestShutdownStaysOffUntilPoweredOn(t *testing.T) {
	m, _, c, _ := single(t)
	if err := c.Shutdown(short(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "off", func() error {
		if s := m.State().Stage; s != "off" {
			return errors.New(s)
		}
		return nil
	})
	m.PowerOn()
	waitStage(t, c, runtime.MachineStageRunning, true)
}

func TestFolderBringsMachinesBackAsTheyWere(t *testing.T) {
	folder := t.TempDir()
	sim := newSim(t, folder)
	machines := addMachines(t, sim, 3)
	te := form(t, machines[:2], 1)
	before := machines[0].State()
	addr, worker, spare := machines[0].Address(), machines[1].Address(), machines[2].Address()
	uid := nodeUID(t, te, addr, before.Hostname)
	if err := sim.Close(); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sim = newSim(t, folder)
	if n := len(sim.Machines()); n != 3 {
		t.Fatalf("%d machines came back", n)
	}
	waitStage(t, te.dial(t, addr), runtime.MachineStageRunning, true)
	waitStage(t, te.dial(t, worker), runtime.MachineStageRunning, true)
	waitStage(t, insecure(t, spare), runtime.MachineStageMaintenance, true)
	after := sim.Machine(addr).State()
	if after.EtcdMember != before.EtcdMember || after.BootID == before.BootID || after.Hostname != before.Hostname || after.Applies != before.Applies {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if got := nodeUID(t, te, addr, before.Hostname); got != uid {
		t.Errorf("the Node was made anew: uid %s, was %s", got, uid)
	}
	if _, err := sim.Add(talosim.MachineSpec{Address: addr}); !errors.Is(err, talosim.ErrExists) {
		t.Errorf("adding it again: %v, want ErrExists", err)
	}
}

func TestClusterHealthIsCheckedByTheServer(t *testing.T) {
	sim := newSim(t, "")
	machines := addMachines(t, sim, 2)
	te := form(t, machines, 1)
	c := te.dial(t, machines[0].Address())
	check := func(limit time.Duration, nodes ...string) (string, error) {
		stream, err := c.ClusterHealthCheck(t.Context(), limit, &clusterapi.ClusterInfo{ControlPlaneNodes: nodes})
		if err != nil {
			return "", err
		}
		var out strings.Builder
		for {
			p, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return out.String(), nil
			}
			if err != nil {
				return out.String(), err
			}
			fmt.Fprintln(&out, p.Message)
		}
	}
	if out, err := check(deadline); err != nil || !strings.Contains(out, "waiting for all k8s nodes to report ready: OK") {
		t.Errorf("health: %v\n%s", err, out)
	}
	if _, err := check(500*time.Millisecond, "127.1.1.1"); client.StatusCode(err) != codes.DeadlineExceeded {
		t.Errorf("health with a node that is not there: %v", err)
	}
}
