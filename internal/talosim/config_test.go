package talosim_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"freehold.dev/freehold/internal/talosim"
)

// edit changes the v1alpha1 document of a config.
func edit(t *testing.T, data []byte, f func(*v1alpha1.Config)) []byte {
	t.Helper()
	cfg, err := configloader.NewFromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err = cfg.PatchV1Alpha1(func(c *v1alpha1.Config) error {
		f(c)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := cfg.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func activeConfig(t *testing.T, c *client.Client) config.Provider {
	t.Helper()
	r, err := safe.StateGetByID[*configres.MachineConfig](short(t), c.COSI, configres.ActiveID)
	if err != nil {
		t.Fatal(err)
	}
	return r.Provider()
}

func single(t *testing.T) (*talosim.Machine, *tenant, *client.Client, []byte) {
	t.Helper()
	sim := newSim(t, "")
	machines := addMachines(t, sim, 1)
	te := form(t, machines, 1)
	return machines[0], te, te.dial(t, machines[0].Address()), machines[0].Config()
}

func apply(t *testing.T, c *client.Client, data []byte, mode machineapi.ApplyConfigurationRequest_Mode) (*machineapi.ApplyConfiguration, error) {
	t.Helper()
	r, err := c.ApplyConfiguration(short(t), &machineapi.ApplyConfigurationRequest{Data: data, Mode: mode, TryModeTimeout: durationpb.New(50 * time.Millisecond)})
	if err != nil {
		return nil, err
	}
	return r.Messages[0], nil
}

func TestConfigIsReadByAdminsOnlyAndIsWhatWasApplied(t *testing.T) {
	m, te, c, data := single(t)
	got, err := activeConfig(t, c).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Error("the config that is read differs from the one that was applied")
	}
	reader, err := te.input.Options.SecretsBundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(role.Reader), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	rc, err := client.New(t.Context(), client.WithTLSConfig(clientTLS(t, te, reader)), client.WithEndpoints(m.Address().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if _, err := safe.StateGetByID[*configres.MachineConfig](short(t), rc.COSI, configres.ActiveID); client.StatusCode(err) != codes.PermissionDenied {
		t.Errorf("config for a reader: %v, want PermissionDenied", err)
	}
	if _, err := rc.Version(short(t)); err != nil {
		t.Errorf("version for a reader: %v", err)
	}
	if _, err := rc.MachineClient.Reboot(short(t), &machineapi.RebootRequest{}); client.StatusCode(err) != codes.PermissionDenied {
		t.Errorf("reboot by a reader: %v, want PermissionDenied", err)
	}
}

func TestChangeInPlaceKeepsTheBoot(t *testing.T) {
	m, _, c, data := single(t)
	boot := m.State().BootID
	next := edit(t, data, func(c *v1alpha1.Config) {
		c.MachineConfig.MachineNodeLabels = map[string]string{"zone": "a"}
		c.ClusterConfig.APIServerConfig.CertSANs = append(c.ClusterConfig.APIServerConfig.CertSANs, "api.example.org")
	})
	r, err := apply(t, c, next, machineapi.ApplyConfigurationRequest_AUTO)
	if err != nil || r.Mode != machineapi.ApplyConfigurationRequest_NO_REBOOT {
		t.Fatalf("apply: %v, %v; want it without a reboot", r, err)
	}
	kc, err := c.Kubeconfig(short(t))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node's new label", func() error {
		nodes, err := clientset(t, kc).CoreV1().Nodes().List(short(t), metav1.ListOptions{LabelSelector: "zone=a"})
		if err == nil && len(nodes.Items) != 1 {
			err = fmt.Errorf("%d nodes", len(nodes.Items))
		}
		return err
	})
	if m.State().BootID != boot || !bytes.Equal(m.Config(), next) {
		t.Error("the change in place rebooted the machine or was not kept")
	}
}

func TestChangeThatNeedsARebootRebootsOnlyWhenAllowed(t *testing.T) {
	m, _, c, data := single(t)
	boot := m.State().BootID
	next := edit(t, data, func(c *v1alpha1.Config) {
		c.MachineConfig.MachineUdev = &v1alpha1.UdevConfig{UdevRules: []string{`SUBSYSTEM=="drm", GROUP="44"`}}
	})
	if _, err := apply(t, c, next, machineapi.ApplyConfigurationRequest_NO_REBOOT); client.StatusCode(err) != codes.InvalidArgument {
		t.Errorf("no-reboot: %v, want InvalidArgument", err)
	}
	if _, err := apply(t, c, next, machineapi.ApplyConfigurationRequest_STAGED); err != nil {
		t.Fatal(err)
	}
	if m.State().BootID != boot {
		t.Error("a staged config rebooted the machine")
	}
	if len(activeConfig(t, c).RawV1Alpha1().MachineConfig.Udev().Rules()) != 0 {
		t.Error("a staged config is in force before a reboot")
	}
	r, err := apply(t, c, next, machineapi.ApplyConfigurationRequest_AUTO)
	if err != nil || r.Mode != machineapi.ApplyConfigurationRequest_REBOOT || !strings.Contains(r.ModeDetails, "udev") {
		t.Fatalf("auto: %v, %v; want a reboot because of udev", r, err)
	}
	eventually(t, "a new boot", func() error {
		if m.State().BootID == boot {
			return fmt.Errorf("still the old boot")
		}
		return nil
	})
	waitStage(t, c, runtime.MachineStageRunning, true)
	if len(activeConfig(t, c).RawV1Alpha1().MachineConfig.Udev().Rules()) != 1 {
		t.Error("the config is not in force after the reboot")
	}
}

func TestTriedConfigIsRolledBack(t *testing.T) {
	m, _, c, data := single(t)
	next := edit(t, data, func(c *v1alpha1.Config) { c.MachineConfig.MachineNodeLabels = map[string]string{"zone": "b"} })
	if _, err := apply(t, c, next, machineapi.ApplyConfigurationRequest_TRY); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the roll back", func() error {
		if activeConfig(t, c).Machine().NodeLabels()["zone"] != "" {
			return fmt.Errorf("still tried")
		}
		return nil
	})
	if !bytes.Equal(m.Config(), data) {
		t.Error("a tried config was kept")
	}
}

func TestRefusedConfigTellsWhy(t *testing.T) {
	sim := newSim(t, "")
	m := addMachines(t, sim, 1)[0]
	data := newTenant(t, "a", m.Address()).config(t, machine.TypeControlPlane)
	c := insecure(t, m.Address())
	waitStage(t, c, runtime.MachineStageMaintenance, true)
	if err := m.Inject(talosim.Fault{Kind: talosim.RefuseConfig, Reason: "the disk is too small"}); err != nil {
		t.Fatal(err)
	}
	_, err := c.ApplyConfiguration(short(t), applyRequest(data))
	if client.StatusCode(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "the disk is too small") {
		t.Errorf("refused config: %v", err)
	}
	if err := m.Clear(talosim.RefuseConfig); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ApplyConfiguration(short(t), applyRequest(data)); err != nil {
		t.Errorf("after the fault is cleared: %v", err)
	}
}

func TestConfigWithUnsupportedKubernetesIsRefused(t *testing.T) {
	sim := newSim(t, "")
	m := addMachines(t, sim, 1)[0]
	data := newTenant(t, "a", m.Address()).config(t, machine.TypeControlPlane)
	data = bytes.ReplaceAll(data, []byte(":v1.35.0"), []byte(":v1.99.0"))
	c := insecure(t, m.Address())
	waitStage(t, c, runtime.MachineStageMaintenance, true)
	if _, err := c.ApplyConfiguration(short(t), applyRequest(data)); client.StatusCode(err) != codes.InvalidArgument {
		t.Errorf("Kubernetes 1.99: %v, want InvalidArgument", err)
	}
}
