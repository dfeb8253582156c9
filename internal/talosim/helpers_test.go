package talosim_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"freehold.dev/freehold/internal/talosim"
)

const deadline = 60 * time.Second

// impatient makes a client try again soon after a connection failed.
var impatient = client.WithGRPCDialOptions(grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, Jitter: 0.1, MaxDelay: 50 * time.Millisecond},
	MinConnectTimeout: 5 * time.Second,
}))

// eventually polls until f is satisfied.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func newSim(t *testing.T, folder string) *talosim.Sim {
	t.Helper()
	sim, err := talosim.New(talosim.Options{Folder: folder, Timing: talosim.Fast, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sim.Close() })
	return sim
}

func addMachines(t *testing.T, sim *talosim.Sim, n int) []*talosim.Machine {
	t.Helper()
	addrs, err := talosim.FreeAddresses(n)
	if err != nil {
		t.Fatal(err)
	}
	var list []*talosim.Machine
	for _, a := range addrs {
		m, err := sim.Add(talosim.MachineSpec{Address: a})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}

// sharedBundle is made once: its RSA key takes longer than a test. Each test has a simulation of its own.
var sharedBundle = sync.OnceValues(func() (*secrets.Bundle, error) {
	return secrets.NewBundle(secrets.NewClock(), config.TalosVersionCurrent)
})

// tenant is a cluster's secrets and configs.
type tenant struct {
	name     string
	input    *generate.Input
	endpoint netip.Addr
}

func newTenant(t *testing.T, name string, endpoint netip.Addr) *tenant {
	t.Helper()
	contract, err := config.ParseContractFromVersion("v1.12.6")
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := sharedBundle()
	if err != nil {
		t.Fatal(err)
	}
	in, err := generate.NewInput(name, fmt.Sprintf("https://%s:6443", endpoint), "1.35.0",
		generate.WithVersionContract(contract), generate.WithSecretsBundle(bundle), generate.WithEndpointList([]string{endpoint.String()}),
		generate.WithInstallDisk("/dev/sda"))
	if err != nil {
		t.Fatal(err)
	}
	return &tenant{name: name, input: in, endpoint: endpoint}
}

func (te *tenant) config(t *testing.T, typ machine.Type) []byte {
	t.Helper()
	cfg, err := te.input.Config(typ)
	if err != nil {
		t.Fatal(err)
	}
	data, err := cfg.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (te *tenant) talosconfig(t *testing.T) *clientconfig.Config {
	t.Helper()
	tc, err := te.input.Talosconfig()
	if err != nil {
		t.Fatal(err)
	}
	return tc
}

// dial connects to one machine's secured API.
func (te *tenant) dial(t *testing.T, addr netip.Addr) *client.Client {
	t.Helper()
	c, err := client.New(t.Context(), client.WithConfig(te.talosconfig(t)), client.WithEndpoints(addr.String()), impatient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func insecure(t *testing.T, addr netip.Addr) *client.Client {
	t.Helper()
	c, err := client.New(t.Context(), client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(addr.String()), impatient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func stage(t *testing.T, c *client.Client) (*runtime.MachineStatusSpec, error) {
	r, err := safe.StateGetByID[*runtime.MachineStatus](short(t), c.COSI, runtime.MachineStatusID)
	if err != nil {
		return nil, err
	}
	return r.TypedSpec(), nil
}

func waitStage(t *testing.T, c *client.Client, want runtime.MachineStage, ready bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("stage %s ready=%t", want, ready), func() error {
		st, err := stage(t, c)
		if err != nil {
			return err
		}
		if st.Stage != want || st.Status.Ready != ready {
			return fmt.Errorf("stage %s, ready %t, unmet %v", st.Stage, st.Status.Ready, st.Status.UnmetConditions)
		}
		return nil
	})
}

func applyMaintenance(t *testing.T, m *talosim.Machine, data []byte) {
	t.Helper()
	c := insecure(t, m.Address())
	waitStage(t, c, runtime.MachineStageMaintenance, true)
	if _, err := c.ApplyConfiguration(short(t), applyRequest(data)); err != nil {
		t.Fatal(err)
	}
}

// form makes a cluster of machines: the first n are control planes, the others workers.
func form(t *testing.T, machines []*talosim.Machine, controlPlanes int) *tenant {
	t.Helper()
	te := newTenant(t, "prod", machines[0].Address())
	for i, m := range machines {
		typ := machine.TypeWorker
		if i < controlPlanes {
			typ = machine.TypeControlPlane
		}
		applyMaintenance(t, m, te.config(t, typ))
	}
	c := te.dial(t, machines[0].Address())
	eventually(t, "bootstrap", func() error { return c.Bootstrap(short(t), bootstrapRequest()) })
	for _, m := range machines {
		waitStage(t, te.dial(t, m.Address()), runtime.MachineStageRunning, true)
	}
	return te
}

func clientset(t *testing.T, kubeconfig []byte) *kubernetes.Clientset {
	t.Helper()
	rest, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func nodeUID(t *testing.T, te *tenant, addr netip.Addr, name string) string {
	t.Helper()
	kc, err := te.dial(t, addr).Kubeconfig(short(t))
	if err != nil {
		t.Fatal(err)
	}
	n, err := clientset(t, kc).CoreV1().Nodes().Get(short(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(n.UID)
}
