package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	machinepb "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
	"freehold.dev/freehold/internal/talosim"
)

// rig is a store, simulated machines, and the two observing controllers at work.
type rig struct {
	t       *testing.T
	store   store.Store
	sim     *talosim.Sim
	secrets *fakeSecrets
	manager *reconcile.Manager
	prober  *Prober
	// timeout of one probe, long where no machine hangs: one that is slow is none that does not answer; interval and fast
	// between probes.
	timeout, interval, fast time.Duration
}

// fakeSecrets knows the secrets that a test gives it.
type fakeSecrets struct {
	mu      sync.Mutex
	tenants map[string]*talos.Secrets
	asked   int
}

func (f *fakeSecrets) TenantSecrets(_ context.Context, tenant string) (*talos.Secrets, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if s := f.tenants[tenant]; s != nil {
		return s, nil
	}
	return nil, errors.New("nothing was applied yet")
}

func (f *fakeSecrets) publish(tenant string, s *talos.Secrets) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tenants[tenant] = s
}

// rounds waits until the secrets were asked for n more times: until as many probes were made.
func (r *rig) rounds(n int) {
	r.t.Helper()
	asked := func() int {
		r.secrets.mu.Lock()
		defer r.secrets.mu.Unlock()
		return r.secrets.asked
	}
	until := asked() + n
	eventually(r.t, func() string {
		if asked() >= until {
			return ""
		}
		return "the machines are not probed"
	})
}

// unreachableAfter of the rig's controllers.
const unreachableAfter = 300 * time.Millisecond

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, timeout: 30 * time.Second, interval: 200 * time.Millisecond, fast: 50 * time.Millisecond, secrets: &fakeSecrets{tenants: map[string]*talos.Secrets{}}}
	var err error
	if r.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: cloud.Kinds()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.store.Close() })
	if r.sim, err = talosim.New(talosim.Options{Timing: talosim.Fast}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.sim.Close() })
	return r
}

// start runs the controllers until the end of the test.
func (r *rig) start() {
	r.t.Helper()
	creds := NewCredentials(r.secrets)
	r.manager = reconcile.New(r.store, nil, nil)
	r.prober = NewProber(ProberConfig{
		Store: r.store, Credentials: creds, Wake: func(m string) { r.manager.Wake(ProberName, m) },
		Interval: r.interval, FastInterval: r.fast, Timeout: r.timeout, UnreachableAfter: unreachableAfter,
	})
	status := NewStatus(StatusConfig{
		Store: r.store, Credentials: creds, Interval: 200 * time.Millisecond, FastInterval: 50 * time.Millisecond,
		Timeout: r.timeout, UnreachableAfter: unreachableAfter,
	})
	for _, c := range []reconcile.Controller{r.prober.Controller(), status.Controller()} {
		if err := r.manager.Add(c); err != nil {
			r.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.manager.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("manager: %v", err)
		}
		r.prober.Close()
	})
}

func (r *rig) update(f func(store.Tx) error) {
	r.t.Helper()
	if err := r.store.Update(r.t.Context(), f); err != nil {
		r.t.Fatal(err)
	}
}

// machines adds simulated machines and registers them, unassigned.
func (r *rig) machines(n int) []*talosim.Machine {
	r.t.Helper()
	addresses, err := talosim.FreeAddresses(n)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []*talosim.Machine
	for _, a := range addresses {
		m, err := r.sim.Add(talosim.MachineSpec{Address: a})
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, m)
		r.update(func(tx store.Tx) error {
			m := &cloud.Machine{Spec: cloud.MachineSpec{ManagementAddress: at(a)}}
			m.Name = "m-" + a.String()
			return cloud.Machines.Create(tx, m)
		})
	}
	return out
}

func at(a netip.Addr) string { return netip.AddrPortFrom(a, talosim.TalosPort).String() }

func (r *rig) machine(m *talosim.Machine) *cloud.Machine {
	r.t.Helper()
	var out *cloud.Machine
	err := r.store.View(r.t.Context(), func(rd store.Reader) (err error) {
		out, err = cloud.Machines.Get(rd, "m-"+m.Address().String())
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) tenant(name string) *cloud.Tenant {
	r.t.Helper()
	var out *cloud.Tenant
	err := r.store.View(r.t.Context(), func(rd store.Reader) (err error) {
		out, err = cloud.Tenants.Get(rd, name)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) revision() (rev int64) {
	r.t.Helper()
	err := r.store.View(r.t.Context(), func(rd store.Reader) error { rev = rd.Revision(); return nil })
	if err != nil {
		r.t.Fatal(err)
	}
	return rev
}

// eventually waits until ok answers "", or fails with what it last answered.
func eventually(t *testing.T, ok func() string) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen: %s", missing)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// untilMachine waits until the machine's status is as wanted.
func (r *rig) untilMachine(m *talosim.Machine, what string, ok func(cloud.MachineStatus) bool) cloud.MachineStatus {
	r.t.Helper()
	var last cloud.MachineStatus
	eventually(r.t, func() string {
		if last = r.machine(m).Status; ok(last) {
			return ""
		}
		return fmt.Sprintf("machine %s: %s; its status is %+v", m.Address(), what, last)
	})
	return last
}

func (r *rig) untilTenant(name, what string, ok func(cloud.TenantStatus) bool) cloud.TenantStatus {
	r.t.Helper()
	var last cloud.TenantStatus
	eventually(r.t, func() string {
		if last = r.tenant(name).Status; ok(last) {
			return ""
		}
		return fmt.Sprintf("tenant %s: %s; its status is %+v", name, what, last)
	})
	return last
}

// cluster is a tenant with one control-plane group "cp" and one worker group "w" of the given machines.
type cluster struct {
	name    string
	secrets *talos.Secrets
	cp, w   []*talosim.Machine
}

// madeSecrets are the secrets of clusters by name. They take seconds to make: tests share them.
var madeSecrets struct {
	mu sync.Mutex
	of map[string]*talos.Secrets
}

func secretsOf(t testing.TB, cluster string) *talos.Secrets {
	t.Helper()
	madeSecrets.mu.Lock()
	defer madeSecrets.mu.Unlock()
	if s := madeSecrets.of[cluster]; s != nil {
		return s
	}
	s, err := talos.NewSecrets("1.12.6")
	if err != nil {
		t.Fatal(err)
	}
	if madeSecrets.of == nil {
		madeSecrets.of = map[string]*talos.Secrets{}
	}
	madeSecrets.of[cluster] = s
	return s
}

// declare stores the tenant and binds the machines to it.
func (r *rig) declare(name string, machines []*talosim.Machine, controlPlanes int) *cluster {
	r.t.Helper()
	secrets := secretsOf(r.t, name)
	c := &cluster{name: name, secrets: secrets, cp: machines[:controlPlanes], w: machines[controlPlanes:]}
	r.update(func(tx store.Tx) error {
		t := &cloud.Tenant{Spec: cloud.TenantSpec{
			KubernetesVersion: "1.35.0", TalosVersion: "1.12.6",
			ControlPlaneEndpoint: fmt.Sprintf("https://%s:%d", c.cp[0].Address(), talosim.KubernetesPort),
		}}
		t.Name = name
		if err := cloud.Tenants.Create(tx, t); err != nil {
			return err
		}
		for group, role := range map[string]cloud.Role{"cp": cloud.RoleControlPlane, "w": cloud.RoleWorker} {
			of := c.cp
			if role == cloud.RoleWorker {
				of = c.w
			}
			g := &cloud.NodeGroup{Spec: cloud.NodeGroupSpec{Count: len(of), ProviderClass: "metal"}}
			g.Name = cloud.SubName(name, group)
			g.Labels = map[string]string{cloud.LabelTenant: name, cloud.LabelRole: string(role)}
			if err := cloud.NodeGroups.Create(tx, g); err != nil {
				return err
			}
			for _, m := range of {
				bound, err := cloud.Machines.Get(tx, "m-"+m.Address().String())
				if err != nil {
					return err
				}
				bound.Labels = map[string]string{cloud.LabelTenant: name, cloud.LabelNodeGroup: group, cloud.LabelRole: string(role)}
				if err := cloud.Machines.Update(tx, bound); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return c
}

// configure sends each machine its configuration, and bootstraps etcd on the first control plane.
func (r *rig) configure(c *cluster) {
	r.t.Helper()
	t := r.tenant(c.name)
	for role, machines := range map[cloud.Role][]*talosim.Machine{cloud.RoleControlPlane: c.cp, cloud.RoleWorker: c.w} {
		g := &cloud.NodeGroup{}
		g.Labels = map[string]string{cloud.LabelRole: string(role)}
		text, err := talos.Generate(configInput(t, g), c.secrets)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, m := range machines {
			r.apply(m, text)
		}
	}
	r.bootstrap(c)
}

func (r *rig) apply(m *talosim.Machine, text []byte) {
	r.t.Helper()
	api, err := client.New(r.t.Context(), client.WithEndpoints(at(m.Address())), client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer api.Close()
	eventually(r.t, func() string {
		_, err := api.ApplyConfiguration(r.t.Context(), &machinepb.ApplyConfigurationRequest{Data: text})
		if err != nil {
			return "apply: " + err.Error()
		}
		return ""
	})
}

func (r *rig) bootstrap(c *cluster) {
	r.t.Helper()
	ca, cert, key, err := c.secrets.ClientCredentials(time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, func() string {
		api, err := client.New(r.t.Context(), client.WithEndpoints(at(c.cp[0].Address())),
			client.WithTLSConfig(&tls.Config{RootCAs: certPool(ca), Certificates: []tls.Certificate{pair}}))
		if err != nil {
			return err.Error()
		}
		defer api.Close()
		ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
		defer cancel()
		if err := api.Bootstrap(ctx, &machinepb.BootstrapRequest{}); err != nil {
			return "bootstrap: " + err.Error()
		}
		return ""
	})
}

// secured answers an administrator's client for a machine of the cluster.
func (r *rig) secured(c *cluster, m *talosim.Machine) *machineapi.Client {
	r.t.Helper()
	var creds machineapi.Credentials
	var err error
	if creds.CA, creds.Certificate, creds.Key, err = c.secrets.ClientCredentials(time.Hour); err != nil {
		r.t.Fatal(err)
	}
	api, err := machineapi.DialSecured(at(m.Address()), creds)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(api.Close)
	return api
}
