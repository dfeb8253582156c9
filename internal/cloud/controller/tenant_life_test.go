package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/provider"
	talosprovider "freehold.dev/freehold/internal/cloud/talos/provider"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
	"freehold.dev/freehold/internal/talosim"
)

// TestMain lets the test binary be the supervisor, as the server's binary is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "tofu-run" {
		os.Exit(tofu.RunMain(context.Background(), os.Args[2:], tofu.Providers{talosprovider.Address: talosprovider.New("test")}))
	}
	if len(os.Args) == 3 && os.Args[1] == "plane" {
		// A plane of its own process, to be killed.
		if _, err := startPlane(os.Args[2], slog.New(slog.DiscardHandler), nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(m.Run())
}

// plane is a whole Cloud plane without its API.
type plane struct {
	store   store.Store
	applier *apply.Service
	stop    func() error
}

// startPlane starts a plane on a folder.
func startPlane(folder string, log *slog.Logger, config func(*apply.Config)) (*plane, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := sqlite.Open(ctx, filepath.Join(folder, "freehold.db"), sqlite.Options{Kinds: cloud.Kinds()})
	if err != nil {
		cancel()
		return nil, err
	}
	p := &plane{store: s}
	binary, err := tofu.Find(ctx, os.Getenv("FREEHOLD_TOFU"))
	if err != nil {
		cancel()
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		cancel()
		return nil, err
	}
	root, err := secrets.Open(ctx, s, filepath.Join(folder, "root.key"))
	if err != nil {
		cancel()
		return nil, err
	}
	m := reconcile.New(s, log, nil)
	cfg := apply.Config{
		Store: s, Folder: filepath.Join(folder, "tofu"), Root: root, Tofu: binary,
		Self: []string{self, "tofu-run"}, Logger: log, Wake: func(t string) { m.Wake(TenantName, t) },
		Deadline: 5 * time.Minute, Grace: 10 * time.Second, BackoffMin: time.Second,
	}
	if config != nil {
		config(&cfg)
	}
	if p.applier, err = apply.New(ctx, cfg); err != nil {
		cancel()
		return nil, errors.Join(err, s.Close())
	}
	creds := NewCredentials(p.applier)
	prober := NewProber(ProberConfig{Store: s, Credentials: creds, Interval: 500 * time.Millisecond, FastInterval: 100 * time.Millisecond,
		UnreachableAfter: 3 * time.Second, Wake: func(id string) { m.Wake(ProberName, id) }})
	status := NewStatus(StatusConfig{Store: s, Credentials: creds, Interval: time.Second, FastInterval: 200 * time.Millisecond, UnreachableAfter: 3 * time.Second})
	tenant := NewTenant(TenantConfig{Store: s, Applier: p.applier, Modules: provider.Default(), Logger: log,
		Debounce: 200 * time.Millisecond, Patience: 2 * time.Second, MachineTimeout: 30 * time.Second, TeardownTimeout: 30 * time.Second})
	for _, c := range []reconcile.Controller{tenant.Controller(), prober.Controller(), status.Controller()} {
		if err := m.Add(c); err != nil {
			cancel()
			return nil, err
		}
	}
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	p.stop = func() error {
		cancel()
		err := <-done
		prober.Close()
		closing, over := context.WithTimeout(context.Background(), 60*time.Second)
		defer over()
		return errors.Join(err, p.applier.Close(closing), s.Close())
	}
	return p, nil
}

// region is a plane with simulated machines.
type region struct {
	*testing.T
	*plane
	sim    *talosim.Sim
	folder string
	config func(*apply.Config)
}

// newRegion answers a region of the test's own. Tests of regions mostly wait for machines, and run beside each other.
func newRegion(t *testing.T, config func(*apply.Config)) *region {
	t.Helper()
	t.Parallel()
	r := &region{T: t, folder: t.TempDir(), config: config}
	var err error
	if r.sim, err = talosim.New(talosim.Options{Timing: talosim.Fast}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.sim.Close() })
	r.start()
	t.Cleanup(r.end)
	return r
}

// start starts the plane; end stops it in order.
func (r *region) start() {
	r.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(r.Output(), nil))
	}
	p, err := startPlane(r.folder, log, r.config)
	if err != nil {
		r.Fatal(err)
	}
	r.plane = p
}

func (r *region) end() {
	if r.plane == nil {
		return
	}
	if err := r.plane.stop(); err != nil {
		r.Error(err)
	}
	r.plane = nil
}

func (r *region) update(f func(store.Tx) error) {
	r.Helper()
	if err := r.store.Update(r.Context(), f); err != nil {
		r.Fatal(err)
	}
}

// register adds n simulated machines and registers them as unassigned.
func (r *region) register(n int) []netip.Addr {
	r.Helper()
	addrs, err := talosim.FreeAddresses(n)
	if err != nil {
		r.Fatal(err)
	}
	for _, a := range addrs {
		if _, err := r.sim.Add(talosim.MachineSpec{Address: a}); err != nil {
			r.Fatal(err)
		}
	}
	r.update(func(tx store.Tx) error {
		for _, a := range addrs {
			m := &cloud.Machine{Spec: cloud.MachineSpec{ManagementAddress: a.String()}}
			m.Name = uuid.NewString()
			parsed, _ := cloud.ParseMachineAddress(a.String())
			if err := tx.Claim(cloud.ClaimMachineAddress, parsed.String(), m.Name); err != nil {
				return err
			}
			if err := cloud.Machines.Create(tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	return addrs
}

func (r *region) createTenant(name string, controlPlanes, workers int) {
	r.Helper()
	r.update(func(tx store.Tx) error {
		t := &cloud.Tenant{Spec: cloud.TenantSpec{KubernetesVersion: "1.35.0", TalosVersion: "1.12.6"}}
		t.Name, t.Finalizers = name, []string{cloud.FinalizerMachines, cloud.FinalizerSecrets}
		if err := cloud.Tenants.Create(tx, t); err != nil {
			return err
		}
		if err := createGroup(tx, name, "cp", cloud.RoleControlPlane, controlPlanes, nil); err != nil {
			return err
		}
		return createGroup(tx, name, "w", cloud.RoleWorker, workers, nil)
	})
}

func createGroup(tx store.Tx, tenant, name string, role cloud.Role, count int, config json.RawMessage) error {
	g := &cloud.NodeGroup{Spec: cloud.NodeGroupSpec{Count: count, ProviderClass: "metal", ProviderConfig: config}}
	g.Name, g.Finalizers = cloud.SubName(tenant, name), cloud.NodeGroupFinalizers
	g.Labels = map[string]string{cloud.LabelTenant: tenant, cloud.LabelRole: string(role)}
	return cloud.NodeGroups.Create(tx, g)
}

func (r *region) scale(tenant, group string, count int) {
	r.Helper()
	r.update(func(tx store.Tx) error {
		g, err := cloud.NodeGroups.Get(tx, cloud.SubName(tenant, group))
		if err != nil {
			return err
		}
		g.Spec.Count = count
		return cloud.NodeGroups.Update(tx, g)
	})
}

func (r *region) delete(kind, name string) {
	r.Helper()
	r.update(func(tx store.Tx) error {
		_, err := tx.Delete(kind, name, 0)
		return err
	})
}

// look answers the world of a tenant; nil without one.
func (r *region) look(tenant string) *world {
	r.Helper()
	var w *world
	err := r.store.View(r.Context(), func(tx store.Reader) (err error) {
		w, err = readWorld(tx, tenant)
		return err
	})
	if err != nil {
		return nil
	}
	return w
}

func (r *region) unassigned() []*cloud.Machine {
	r.Helper()
	var out []*cloud.Machine
	err := r.store.View(r.Context(), func(tx store.Reader) (err error) {
		out, _, err = cloud.Machines.List(tx, store.Query{Index: "tenant", Value: ""})
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return out
}

func (r *region) until(what string, ok func() bool) {
	r.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			r.dump()
			r.Fatalf("not in time: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (r *region) dump() {
	var tenants []*cloud.Tenant
	_ = r.store.View(context.Background(), func(tx store.Reader) (err error) {
		tenants, _, err = cloud.Tenants.List(tx, store.Query{})
		return err
	})
	for _, t := range tenants {
		w := r.look(t.Name)
		if w == nil {
			continue
		}
		status, _ := json.Marshal(t.Status)
		record, _ := json.Marshal(w.record)
		r.Logf("tenant %s: %s\n record %s", t.Name, status, record)
		for _, m := range w.machines {
			s, _ := json.Marshal(m.Status)
			r.Logf("  %s %s %v %s", slotOf(m), m.Spec.ManagementAddress, m.Finalizers, s)
		}
		applies, _ := r.applier.Applies(context.Background(), t.Name, 5)
		for _, a := range applies {
			raw, _ := json.Marshal(a)
			r.Logf("  apply %s", raw)
		}
	}
	for _, m := range r.unassigned() {
		s, _ := json.Marshal(m.Status)
		r.Logf("unassigned %s %s", m.Spec.ManagementAddress, s)
	}
}

// settled: the tenant is active and its last apply made what is declared.
func (r *region) settled(tenant string, machines int) func() bool {
	return func() bool {
		w := r.look(tenant)
		return w != nil && w.tenant.Status.Phase == cloud.PhaseActive && w.tenant.Status.Ready && w.applied() &&
			len(w.machines) == machines && len(w.record.Removing) == 0 && w.record.Run == nil
	}
}

func (w *world) applied() bool {
	return slices.ContainsFunc(w.tenant.Status.Conditions, func(c cloud.Condition) bool {
		return c.Type == cloud.ConditionApplied && c.Status == cloud.ConditionTrue
	})
}

// idle: every simulated machine is back in maintenance mode, with nothing of a cluster on it.
func (r *region) idle() bool {
	for _, m := range r.sim.Machines() {
		if m.Config() != nil || m.State().Stage != "maintenance" {
			return false
		}
	}
	return true
}

// scan finds secrets in what the plane has written.
func (r *region) scan(tenant string) {
	r.Helper()
	secrets, err := r.applier.TenantSecrets(r.Context(), tenant)
	if err != nil {
		r.Fatal(err)
	}
	bundle := secrets.Bundle()
	needles := map[string]string{
		"bootstrap token": bundle.Secrets.BootstrapToken, "encryption secret": bundle.Secrets.SecretboxEncryptionSecret,
		"cluster secret": bundle.Cluster.Secret, "trustd token": bundle.TrustdInfo.Token,
		"Talos CA key": string(bundle.Certs.OS.Key), "Kubernetes CA key": string(bundle.Certs.K8s.Key),
	}
	err = filepath.WalkDir(r.folder, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o600 {
			r.Errorf("%s has mode %v", path, info.Mode())
		}
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for what, needle := range needles {
			if needle != "" && strings.Contains(string(raw), needle) {
				r.Errorf("%s holds the %s", path, what)
			}
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
}

func TestTenantLivesAndDies(t *testing.T) {
	r := newRegion(t, nil)
	r.register(5)
	r.createTenant("prod", 1, 2)
	r.until("prod is active", r.settled("prod", 3))
	r.scan("prod")
	first := r.look("prod")
	for _, m := range first.machines {
		if !m.Status.ConfigUpToDate {
			t.Errorf("%s: its configuration is not the one that is declared", slotOf(m))
		}
	}

	r.scale("prod", "w", 3)
	r.until("prod has four machines", r.settled("prod", 4))

	r.scale("prod", "w", 1)
	r.until("prod has two machines", r.settled("prod", 2))
	if w := r.look("prod"); slotOf(w.machines[1]) != "w-0" {
		t.Errorf("the highest slots go first, but %s stays", slotOf(w.machines[1]))
	}
	r.until("three machines are unassigned and wait", func() bool {
		free := r.unassigned()
		return len(free) == 3 && !slices.ContainsFunc(free, func(m *cloud.Machine) bool { return rank(m) != waiting })
	})

	boots := r.boots()
	r.update(func(tx store.Tx) error {
		p, err := cloud.Tenants.Get(tx, "prod")
		if err != nil {
			return err
		}
		p.Spec.ControlPlaneEndpoint = fmt.Sprintf("https://%s:6443", strings.TrimSuffix(first.machines[0].Spec.ManagementAddress, ":50000"))
		p.Spec.ConfigPatches = []cloud.InlinePatch{{Name: "sysctl", Patch: "machine:\n  sysctls:\n    vm.overcommit_memory: \"1\"\n"}}
		g, err := cloud.NodeGroups.Get(tx, "prod/w")
		if err != nil {
			return err
		}
		g.Spec.ConfigPatches = []cloud.InlinePatch{{Name: "core", Patch: "machine:\n  sysctls:\n    kernel.core_pattern: \"${a}%{b}\"\n"}}
		return errors.Join(cloud.Tenants.Update(tx, p), cloud.NodeGroups.Update(tx, g))
	})
	r.until("the change is applied", func() bool {
		w := r.look("prod")
		return r.settled("prod", 2)() && w.record.Last.Digest != first.record.Applied && strings.Contains(string(r.sim.Machine(netip.MustParseAddr(w.machines[1].Spec.ManagementAddress)).Config()), "${a}%{b}")
	})
	applies, err := r.applier.Applies(t.Context(), "prod", 1)
	if err != nil || len(applies) != 1 || applies[0].Plan.Destroy != 0 || applies[0].Plan.Add != 0 || applies[0].Plan.Change != 2 {
		t.Errorf("the last apply: %+v, %v", applies, err)
	}
	for a, id := range r.boots() {
		if boots[a] != id {
			t.Errorf("%s rebooted for a change that needs no reboot", a)
		}
	}

	r.delete(cloud.Tenants.Kind.Name, "prod")
	r.until("prod is gone", func() bool { return r.look("prod") == nil })
	r.until("all machines are in maintenance mode", r.idle)
	r.until("all machines are unassigned and wait", func() bool {
		free := r.unassigned()
		return len(free) == 5 && !slices.ContainsFunc(free, func(m *cloud.Machine) bool { return rank(m) != waiting })
	})
	if left, _ := filepath.Glob(filepath.Join(r.folder, "tofu", first.tenant.UID)); len(left) > 0 {
		t.Errorf("the tenant's folder is still there")
	}
	err = r.store.View(t.Context(), func(tx store.Reader) error {
		blobs, err := tx.Blobs("cloud/tenants/")
		if len(blobs) > 0 {
			t.Errorf("of the tenant is left: %v", blobs)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// boots answers the boot id of each machine that has one.
func (r *region) boots() map[string]string {
	out := map[string]string{}
	for _, w := range []*world{r.look("prod")} {
		for _, m := range w.machines {
			out[m.Spec.ManagementAddress] = m.Status.BootID
		}
	}
	return out
}
