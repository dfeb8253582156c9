package talosim_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func applyRequest(data []byte) *machineapi.ApplyConfigurationRequest {
	return &machineapi.ApplyConfigurationRequest{Data: data, Mode: machineapi.ApplyConfigurationRequest_AUTO}
}

func bootstrapRequest() *machineapi.BootstrapRequest { return &machineapi.BootstrapRequest{} }

func TestMachineWithoutConfigIsInMaintenance(t *testing.T) {
	sim := newSim(t, "")
	m := addMachines(t, sim, 1)[0]
	c := insecure(t, m.Address())
	waitStage(t, c, runtime.MachineStageMaintenance, true)
	if _, err := c.Version(short(t)); client.StatusCode(err) != codes.Unimplemented {
		t.Errorf("Version in maintenance: %v, want Unimplemented", err)
	}
	if _, err := c.Disks(short(t)); err != nil {
		t.Errorf("Disks in maintenance: %v", err)
	}
	_, err := c.ApplyConfiguration(short(t), applyRequest([]byte("version: v1alpha1\nmachine:\n  type: worker\n")))
	if client.StatusCode(err) != codes.InvalidArgument {
		t.Errorf("a config without cluster: %v, want InvalidArgument", err)
	}
	req := applyRequest(newTenant(t, "a", m.Address()).config(t, machine.TypeControlPlane))
	req.DryRun = true
	if _, err := c.ApplyConfiguration(short(t), req); err != nil {
		t.Errorf("dry run: %v", err)
	}
	req.DryRun, req.Mode = false, machineapi.ApplyConfigurationRequest_NO_REBOOT
	if _, err := c.ApplyConfiguration(short(t), req); client.StatusCode(err) != codes.Unimplemented {
		t.Errorf("mode no-reboot: %v, want Unimplemented", err)
	}
	if st := m.State(); st.Applies != 0 || st.Installed {
		t.Errorf("after no apply the machine has state %+v", st)
	}
}

func TestClusterFromNothingToNodesAndBack(t *testing.T) {
	sim := newSim(t, "")
	machines := addMachines(t, sim, 4)
	te := form(t, machines, 3)

	cp := te.dial(t, machines[0].Address())
	if err := cp.Bootstrap(short(t), bootstrapRequest()); client.StatusCode(err) != codes.AlreadyExists {
		t.Errorf("second bootstrap: %v, want AlreadyExists", err)
	}
	worker := te.dial(t, machines[3].Address())
	if err := worker.Bootstrap(short(t), bootstrapRequest()); client.StatusCode(err) != codes.FailedPrecondition {
		t.Errorf("bootstrap of a worker: %v, want FailedPrecondition", err)
	}
	eventually(t, "three voters in etcd", func() error {
		r, err := cp.EtcdMemberList(short(t), &machineapi.EtcdMemberListRequest{})
		if err != nil {
			return err
		}
		voters := 0
		for _, m := range r.Messages[0].Members {
			if !m.IsLearner {
				voters++
			}
		}
		if voters != 3 {
			return fmt.Errorf("members %v", r.Messages[0].Members)
		}
		return nil
	})

	kubeconfig, err := cp.Kubeconfig(short(t))
	if err != nil {
		t.Fatal(err)
	}
	cs := clientset(t, kubeconfig)
	eventually(t, "four ready nodes", func() error {
		nodes, err := cs.CoreV1().Nodes().List(short(t), metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, n := range nodes.Items {
			for _, c := range n.Status.Conditions {
				if c.Type == "Ready" && c.Status == "True" {
					ready++
				}
			}
		}
		if ready != 4 {
			return fmt.Errorf("%d nodes of %d ready", ready, len(nodes.Items))
		}
		return nil
	})
	if v, err := cs.Discovery().ServerVersion(); err != nil || v.GitVersion != "v1.35.0" {
		t.Errorf("server version %v, %v", v, err)
	}

	// A graceful reset of a control plane leaves etcd and ends in maintenance, with a new boot.
	before := machines[2].State()
	if err := te.dial(t, machines[2].Address()).Reset(short(t), true, true); err != nil {
		t.Fatal(err)
	}
	waitStage(t, insecure(t, machines[2].Address()), runtime.MachineStageMaintenance, true)
	after := machines[2].State()
	if after.BootID == before.BootID || after.Installed || after.Resets != 1 {
		t.Errorf("state after reset: %+v", after)
	}
	members, err := cp.EtcdMemberList(short(t), &machineapi.EtcdMemberListRequest{})
	if err != nil || len(members.Messages[0].Members) != 2 {
		t.Errorf("members after reset: %v, %v", members, err)
	}
}

func TestNodesFanOutAndNodeGoesToOne(t *testing.T) {
	sim := newSim(t, "")
	machines := addMachines(t, sim, 2)
	te := form(t, machines, 1)
	c := te.dial(t, machines[0].Address())
	gone := "127.255.255.254"
	reply, err := c.ServiceList(client.WithNodes(short(t), machines[0].Address().String(), machines[1].Address().String(), gone))
	var nodeErrs *client.NodeError
	if err == nil || (!errors.As(err, &nodeErrs) && client.StatusCode(err) != codes.Unavailable) {
		t.Errorf("fan-out with a node that is not there: %v", err)
	}
	if reply == nil || len(reply.Messages) != 2 || reply.Messages[0].Metadata.GetHostname() == "" {
		t.Errorf("fan-out answers %v", reply)
	}
	h, err := c.MachineClient.Hostname(client.WithNode(short(t), machines[1].Address().String()), &emptypb.Empty{})
	if err != nil || h.Messages[0].Hostname != machines[1].State().Hostname {
		t.Errorf("hostname by node: %v, %v", h, err)
	}
	nodes := client.WithNodes(short(t), machines[0].Address().String())
	if _, err := safe.StateGetByID[*runtime.MachineStatus](nodes, c.COSI, runtime.MachineStatusID); client.StatusCode(err) != codes.InvalidArgument {
		t.Errorf("COSI with nodes: %v, want InvalidArgument", err)
	}
	w := te.dial(t, machines[1].Address())
	if _, err := w.Version(client.WithNodes(short(t), machines[0].Address().String())); client.StatusCode(err) != codes.PermissionDenied {
		t.Errorf("proxying by a worker: %v, want PermissionDenied", err)
	}
}
