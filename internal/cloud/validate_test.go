package cloud_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"

	. "freehold.dev/freehold/internal/cloud"
)

// fakeTalos knows Talos 1.12 with Kubernetes 1.30 to 1.35, and refuses what says that it is bad.
type fakeTalos struct{}

func (fakeTalos) CheckTalosVersion(v string) error {
	if !strings.HasPrefix(v, "1.12.") && !strings.HasPrefix(v, "1.11.") {
		return fmt.Errorf("Talos %s is not known", v)
	}
	return nil
}

func (fakeTalos) CheckVersions(talos, kubernetes string) error {
	if strings.HasPrefix(kubernetes, "1.29.") || strings.HasPrefix(talos, "1.11.") && strings.HasPrefix(kubernetes, "1.35.") {
		return errors.New("versions do not fit")
	}
	return nil
}

func (fakeTalos) CheckPatch(p string) error {
	if strings.Contains(p, "broken") {
		return errors.New("unknown keys")
	}
	return nil
}

func (fakeTalos) CheckConfig(c ConfigCheck) error {
	for _, p := range c.Patches {
		if strings.Contains(p, "unfit for "+string(c.Role)) {
			return errors.New("does not validate")
		}
	}
	return nil
}

type fakeProviders struct{}

func (fakeProviders) Classes() []string { return []string{"metal"} }

func (fakeProviders) CheckConfig(_ string, config json.RawMessage, _ int, at *field.Path) field.ErrorList {
	if strings.Contains(string(config), "colour") {
		return field.ErrorList{field.Forbidden(at.Child("colour"), "no such field")}
	}
	return nil
}

var rules = Rules{Talos: fakeTalos{}, Providers: fakeProviders{}}

func tenant(change ...func(*Tenant)) *Tenant {
	t := &Tenant{Spec: TenantSpec{
		KubernetesVersion: "1.35.0", TalosVersion: "1.12.6", ControlPlaneEndpoint: "https://prod.example.com:6443",
		PodNetwork: []string{"10.244.0.0/16"}, ServiceNetwork: []string{"10.96.0.0/12"},
	}}
	t.Name = "prod"
	for _, c := range change {
		c(t)
	}
	return t
}

func group(change ...func(*NodeGroup)) *NodeGroup {
	g := &NodeGroup{Spec: NodeGroupSpec{Count: 3, ProviderClass: "metal"}}
	g.Name = "prod/cp"
	g.Labels = map[string]string{LabelRole: "controlplane"}
	for _, c := range change {
		c(g)
	}
	return g
}

func machine(labels map[string]string) *Machine {
	m := &Machine{Spec: MachineSpec{ManagementAddress: "10.0.0.9"}}
	m.Name = "a1b2c3d4-e5f6-7890-abcd-ef1234567890"
	m.Labels = labels
	return m
}

func paths(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Field)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func expect(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, paths(errs)); diff != "" {
		t.Errorf("faulty fields (-want +got):\n%s\n%v", diff, errs)
	}
}

func TestTenantFaultsNameTheirField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Tenant)
		want   []string
	}{
		"as it should be":          {func(*Tenant) {}, nil},
		"no networks":              {func(t *Tenant) { t.Spec.PodNetwork, t.Spec.ServiceNetwork = nil, nil }, nil},
		"no endpoint":              {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "" }, nil},
		"dual stack":               {func(t *Tenant) { t.Spec.PodNetwork = []string{"10.244.0.0/16", "fd00:10::/56"} }, nil},
		"no name":                  {func(t *Tenant) { t.Name = "" }, []string{"metadata.name"}},
		"name with a slash":        {func(t *Tenant) { t.Name = "a/b" }, []string{"metadata.name"}},
		"name in capitals":         {func(t *Tenant) { t.Name = "Prod" }, []string{"metadata.name"}},
		"long name":                {func(t *Tenant) { t.Name = strings.Repeat("a", 64) }, []string{"metadata.name"}},
		"name of a route":          {func(t *Tenant) { t.Name = "events" }, []string{"metadata.name"}},
		"bad label key":            {func(t *Tenant) { t.Labels = map[string]string{"a b": "x"} }, []string{"metadata.labels"}},
		"bad label value":          {func(t *Tenant) { t.Labels = map[string]string{"a": "x y"} }, []string{"metadata.labels[a]"}},
		"annotations too large":    {func(t *Tenant) { t.Annotations = map[string]string{"a": strings.Repeat("x", 300<<10)} }, []string{"metadata.annotations"}},
		"finalizer of ours":        {func(t *Tenant) { t.Finalizers = []string{"rezuscloud.io/own"} }, []string{"metadata.finalizers[0]"}},
		"the usual finalizers":     {func(t *Tenant) { t.Finalizers = []string{FinalizerMachines, FinalizerSecrets} }, nil},
		"finalizer twice":          {func(t *Tenant) { t.Finalizers = []string{"a.io/x", "a.io/x"} }, []string{"metadata.finalizers[1]"}},
		"finalizer without domain": {func(t *Tenant) { t.Finalizers = []string{"x"} }, []string{"metadata.finalizers[0]"}},
		"no versions":              {func(t *Tenant) { t.Spec.TalosVersion, t.Spec.KubernetesVersion = "", "" }, []string{"spec.kubernetesVersion", "spec.talosVersion"}},
		"version with v":           {func(t *Tenant) { t.Spec.TalosVersion = "v1.12.6" }, []string{"spec.talosVersion"}},
		"half a version":           {func(t *Tenant) { t.Spec.KubernetesVersion = "1.35" }, []string{"spec.kubernetesVersion"}},
		"unknown Talos":            {func(t *Tenant) { t.Spec.TalosVersion = "3.0.0" }, []string{"spec.talosVersion"}},
		"versions that do not fit": {func(t *Tenant) { t.Spec.KubernetesVersion = "1.29.0" }, []string{"spec.kubernetesVersion"}},
		"http endpoint":            {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "http://prod:6443" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint with path":       {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://prod:6443/k" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint with slash":      {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://prod:6443/" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint with user":       {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://u:secret@prod" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint with query":      {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://prod?x=1" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint without host":    {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://:6443" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint with bad port":   {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://prod:70000" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint in the pods":     {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://10.244.1.1:6443" }, []string{"spec.controlPlaneEndpoint"}},
		"endpoint everywhere":      {func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://0.0.0.0:6443" }, []string{"spec.controlPlaneEndpoint"}},
		"no network":               {func(t *Tenant) { t.Spec.PodNetwork = []string{"pods"} }, []string{"spec.podNetwork[0]"}},
		"host bits":                {func(t *Tenant) { t.Spec.PodNetwork = []string{"10.244.0.1/16"} }, []string{"spec.podNetwork[0]"}},
		"mapped network":           {func(t *Tenant) { t.Spec.PodNetwork = []string{"::ffff:10.244.0.0/112"} }, []string{"spec.podNetwork[0]"}},
		"everything":               {func(t *Tenant) { t.Spec.PodNetwork = []string{"0.0.0.0/0"} }, []string{"spec.podNetwork[0]", "spec.serviceNetwork[0]"}},
		"tiny service network":     {func(t *Tenant) { t.Spec.ServiceNetwork = []string{"10.96.0.0/30"} }, []string{"spec.serviceNetwork[0]"}},
		"huge service network":     {func(t *Tenant) { t.Spec.ServiceNetwork = []string{"11.0.0.0/8"} }, []string{"spec.serviceNetwork[0]"}},
		"networks overlap":         {func(t *Tenant) { t.Spec.ServiceNetwork = []string{"10.244.128.0/20"} }, []string{"spec.serviceNetwork[0]"}},
		"overlap in one list":      {func(t *Tenant) { t.Spec.PodNetwork = []string{"10.244.0.0/16", "10.244.3.0/24"} }, []string{"spec.podNetwork[1]"}},
		"two of one family":        {func(t *Tenant) { t.Spec.PodNetwork = []string{"10.244.0.0/16", "10.250.0.0/16"} }, []string{"spec.podNetwork[1]"}},
		"overlap with a default": {func(t *Tenant) {
			t.Spec.PodNetwork, t.Spec.ServiceNetwork = []string{"10.100.0.0/16"}, nil
		}, []string{"spec.podNetwork[0]"}},
		"services without pods of the family": {func(t *Tenant) {
			t.Spec.PodNetwork, t.Spec.ServiceNetwork = []string{"fd00:10::/56"}, nil
		}, []string{"spec.serviceNetwork"}},
		"unknown CNI":        {func(t *Tenant) { t.Spec.Plugins.CNI.Type = "calico" }, []string{"spec.plugins.cni.type"}},
		"cilium":             {func(t *Tenant) { t.Spec.Plugins.CNI = CNI{Type: "cilium", Version: "1.17.0", Values: "..."} }, nil},
		"cilium values":      {func(t *Tenant) { t.Spec.Plugins.CNI = CNI{Type: "cilium", Values: "- a"} }, []string{"spec.plugins.cni.values"}},
		"cilium version":     {func(t *Tenant) { t.Spec.Plugins.CNI = CNI{Type: "cilium", Version: "new"} }, []string{"spec.plugins.cni.version"}},
		"values for nothing": {func(t *Tenant) { t.Spec.Plugins.CNI = CNI{Version: "1.0.0", Values: "a: b"} }, []string{"spec.plugins.cni.values", "spec.plugins.cni.version"}},
		"unknown CSI":        {func(t *Tenant) { t.Spec.Plugins.CSI.Type = "ceph" }, []string{"spec.plugins.csi.type"}},
		"patch without name": {func(t *Tenant) { t.Spec.ConfigPatches = []InlinePatch{{Patch: "a: b"}} }, []string{"spec.configPatches[0].name"}},
		"patch without text": {func(t *Tenant) { t.Spec.ConfigPatches = []InlinePatch{{Name: "a", Patch: " "}} }, []string{"spec.configPatches[0].patch"}},
		"patch names a file": {func(t *Tenant) { t.Spec.ConfigPatches = []InlinePatch{{Name: "a", Patch: " @/etc/passwd"}} }, []string{"spec.configPatches[0].patch"}},
		"broken patch":       {func(t *Tenant) { t.Spec.ConfigPatches = []InlinePatch{{Name: "a", Patch: "broken: x"}} }, []string{"spec.configPatches[0].patch"}},
		"patch name twice": {func(t *Tenant) {
			t.Spec.ConfigPatches = []InlinePatch{{Name: "a", Patch: "a: b"}, {Name: "a", Patch: "a: b"}}
		}, []string{"spec.configPatches[1].name"}},
		"patch unfit for role": {func(t *Tenant) {
			t.Spec.ConfigPatches = []InlinePatch{{Name: "a", Patch: "a: b"}, {Name: "b", Patch: "unfit for worker"}}
		}, []string{"spec.configPatches[1].patch"}},
		"many at once": {func(t *Tenant) {
			t.Name, t.Spec.TalosVersion, t.Spec.ControlPlaneEndpoint = "A", "x", "ftp://x"
			t.Spec.Plugins.CSI.Type = "nfs"
		}, []string{"metadata.name", "spec.controlPlaneEndpoint", "spec.plugins.csi.type", "spec.talosVersion"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, TenantChange{New: tenant(c.change)}.Validate(rules), c.want...)
		})
	}
}

func TestPasswordInAnEndpointIsNotEchoed(t *testing.T) {
	errs := TenantChange{New: tenant(func(t *Tenant) { t.Spec.ControlPlaneEndpoint = "https://u:hunter2@prod" })}.Validate(rules)
	if s := fmt.Sprint(errs); strings.Contains(s, "hunter2") {
		t.Errorf("the password is in %s", s)
	}
}

func TestRunningTenantKeepsVersionsAndNetworks(t *testing.T) {
	next := tenant(func(t *Tenant) {
		t.Spec.TalosVersion, t.Spec.KubernetesVersion = "1.12.7", "1.34.0"
		t.Spec.PodNetwork, t.Spec.ServiceNetwork = []string{"10.50.0.0/16"}, []string{"10.60.0.0/16"}
		t.Spec.ControlPlaneEndpoint = "https://elsewhere:6443"
	})
	without := TenantChange{New: next, Old: tenant()}
	expect(t, without.Validate(rules))
	without.Machines = []*Machine{machine(nil)}
	expect(t, without.Validate(rules), "spec.kubernetesVersion", "spec.podNetwork", "spec.serviceNetwork", "spec.talosVersion")
	// A default that is written out is the same network.
	old := tenant(func(t *Tenant) { t.Spec.PodNetwork = nil })
	expect(t, TenantChange{New: tenant(), Old: old, Machines: without.Machines}.Validate(rules))
}

func TestTenantChangeIsCheckedAgainstItsNodeGroups(t *testing.T) {
	g := group(func(g *NodeGroup) { g.Spec.TalosVersion = "1.11.0" })
	old := tenant(func(t *Tenant) { t.Spec.KubernetesVersion = "1.34.0" })
	expect(t, TenantChange{New: tenant(), Old: old, Groups: []*NodeGroup{g}}.Validate(rules), "spec.kubernetesVersion")
}

func TestDeletingTenantTakesNoNewSpec(t *testing.T) {
	old := tenant()
	at := old.CreatedAt
	old.DeletionTimestamp = &at
	old.Finalizers = []string{FinalizerMachines, "example.com/backup"}
	same := *old
	same.Finalizers = []string{FinalizerMachines}
	expect(t, TenantChange{New: &same, Old: old}.Validate(rules))
	changed := *tenant(func(t *Tenant) { t.Spec.KubernetesVersion = "1.34.0" })
	changed.Finalizers = append([]string{"example.com/late"}, old.Finalizers...)
	expect(t, TenantChange{New: &changed, Old: old}.Validate(rules), "metadata.finalizers[0]", "spec")
}

func TestOnlyForceRemovesThePlanesFinalizers(t *testing.T) {
	old, next := tenant(), tenant()
	old.Finalizers = []string{FinalizerMachines, FinalizerSecrets, "example.com/x"}
	next.Finalizers = []string{FinalizerMachines}
	expect(t, TenantChange{New: next, Old: old}.Validate(rules), "metadata.finalizers")
	expect(t, TenantChange{New: next, Old: old, Force: true}.Validate(rules))
	if diff := cmp.Diff([]string{FinalizerSecrets}, RemovedFinalizers(&next.Metadata, &old.Metadata)); diff != "" {
		t.Error(diff)
	}
}

func TestNodeGroupFaultsNameTheirField(t *testing.T) {
	config := func(s string) func(*NodeGroup) {
		return func(g *NodeGroup) { g.Spec.ProviderConfig = json.RawMessage(s) }
	}
	for name, c := range map[string]struct {
		change func(*NodeGroup)
		want   []string
	}{
		"as it should be":           {func(*NodeGroup) {}, nil},
		"no role":                   {func(g *NodeGroup) { g.Labels = nil }, []string{"metadata.labels[rezuscloud.io/role]"}},
		"unknown role":              {func(g *NodeGroup) { g.Labels[LabelRole] = "etcd" }, []string{"metadata.labels[rezuscloud.io/role]"}},
		"other tenant":              {func(g *NodeGroup) { g.Labels[LabelTenant] = "dev" }, []string{"metadata.labels[rezuscloud.io/tenant]"}},
		"own tenant":                {func(g *NodeGroup) { g.Labels[LabelTenant] = "prod" }, nil},
		"name of a route":           {func(g *NodeGroup) { g.Name = "prod/events" }, []string{"metadata.name"}},
		"two slashes":               {func(g *NodeGroup) { g.Name = "prod/a/b" }, []string{"metadata.name"}},
		"negative count":            {func(g *NodeGroup) { g.Spec.Count = -1 }, []string{"spec.count"}},
		"huge count":                {func(g *NodeGroup) { g.Spec.Count = 1 << 40 }, []string{"spec.count"}},
		"no control plane at all":   {func(g *NodeGroup) { g.Spec.Count = 0 }, []string{"spec.count"}},
		"no workers for now":        {func(g *NodeGroup) { g.Spec.Count, g.Labels[LabelRole] = 0, "worker" }, nil},
		"no class":                  {func(g *NodeGroup) { g.Spec.ProviderClass = "" }, []string{"spec.providerClass"}},
		"unknown class":             {func(g *NodeGroup) { g.Spec.ProviderClass = "cloud9" }, []string{"spec.providerClass"}},
		"config is a list":          {config(`[1]`), []string{"spec.providerConfig"}},
		"config is a string":        {config(`"x"`), []string{"spec.providerConfig"}},
		"config is null":            {config(`null`), nil},
		"config has a bad key":      {config(`{"colour":1}`), []string{"spec.providerConfig.colour"}},
		"address twice":             {config(`{"addresses":["10.0.0.5","10.0.0.5:50000"]}`), []string{"spec.providerConfig.addresses[1]"}},
		"address taken":             {config(`{"address":"10.0.0.7"}`), []string{"spec.providerConfig.address"}},
		"address among the pods":    {config(`{"address":"10.244.0.7"}`), []string{"spec.providerConfig.address"}},
		"bad version":               {func(g *NodeGroup) { g.Spec.TalosVersion = "latest" }, []string{"spec.talosVersion"}},
		"version that does not fit": {func(g *NodeGroup) { g.Spec.TalosVersion = "1.11.0" }, []string{"spec.talosVersion"}},
		"patch unfit for role": {func(g *NodeGroup) {
			g.Spec.ConfigPatches = []InlinePatch{{Name: "a", Patch: "unfit for controlplane"}}
		}, []string{"spec.configPatches[0].patch"}},
		"patch unfit for another role": {func(g *NodeGroup) {
			g.Spec.ConfigPatches = []InlinePatch{{Name: "a", Patch: "unfit for worker"}}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			change := NodeGroupChange{New: group(c.change), Tenant: tenant(), Taken: map[string]string{"10.0.0.7:50000": "dev/cp"}}
			expect(t, change.Validate(rules), c.want...)
		})
	}
}

func TestNodeGroupKeepsRoleAndClass(t *testing.T) {
	next := group(func(g *NodeGroup) {
		g.Labels[LabelRole] = "worker"
		g.Spec.ProviderClass, g.Spec.TalosVersion = "other", "1.12.1"
	})
	change := NodeGroupChange{New: next, Old: group(), Tenant: tenant(), Machines: []*Machine{machine(nil)}}
	expect(t, change.Validate(rules), "metadata.labels[rezuscloud.io/role]", "spec.providerClass", "spec.talosVersion")
}

func TestEvenControlPlanesAreWarnedOf(t *testing.T) {
	count := func(n int) *NodeGroup { return group(func(g *NodeGroup) { g.Spec.Count = n }) }
	worker := group(func(g *NodeGroup) { g.Labels[LabelRole] = "worker" })
	for _, c := range []struct {
		new    *NodeGroup
		others []*NodeGroup
		want   int
	}{
		{count(1), nil, 0}, {count(3), []*NodeGroup{worker}, 0}, {count(2), nil, 1},
		{count(1), []*NodeGroup{count(2)}, 0}, {count(1), []*NodeGroup{count(1)}, 1}, {count(8), nil, 2}, {worker, nil, 0},
	} {
		if got := (NodeGroupChange{New: c.new, Others: c.others, Tenant: tenant()}).Warnings(); len(got) != c.want {
			t.Errorf("warnings %q, want %d", got, c.want)
		}
	}
}

func TestDefaultNodeGroupNames(t *testing.T) {
	names := map[string]bool{}
	taken := func(n string) bool { return names[n] }
	for _, want := range []string{"prod-control-plane", "prod-control-plane-2", "prod-control-plane-3"} {
		got := DefaultGroupName("prod", RoleControlPlane, taken)
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		names[got] = true
	}
	if got := DefaultGroupName("prod", RoleWorker, taken); got != "prod-worker" {
		t.Errorf("got %q", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		tenant := rapid.StringMatching(`[a-z]([a-z0-9-]{0,61}[a-z0-9])?`).Draw(t, "tenant")
		n := rapid.IntRange(0, 12).Draw(t, "taken")
		name := DefaultGroupName(tenant, RoleWorker, func(string) bool { n--; return n >= 0 })
		if errs := ValidateName(name, nil); len(errs) > 0 {
			t.Fatalf("%q: %v", name, errs)
		}
	})
}

func TestMachineFaultsNameTheirField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Machine)
		want   []string
	}{
		"as it should be":  {func(*Machine) {}, nil},
		"no UUID":          {func(m *Machine) { m.Name = "rack-1" }, []string{"metadata.name"}},
		"UUID in capitals": {func(m *Machine) { m.Name = strings.ToUpper(m.Name) }, []string{"metadata.name"}},
		"no address":       {func(m *Machine) { m.Spec.ManagementAddress = "" }, []string{"spec.managementAddress"}},
		"URL":              {func(m *Machine) { m.Spec.ManagementAddress = "https://10.0.0.9" }, []string{"spec.managementAddress"}},
		"server labels":    {func(m *Machine) { m.Labels = map[string]string{LabelTenant: "prod", LabelRole: "worker"} }, []string{"metadata.labels[rezuscloud.io/role]", "metadata.labels[rezuscloud.io/tenant]"}},
		"slot":             {func(m *Machine) { m.Annotations = map[string]string{AnnotationSlot: "0"} }, []string{"metadata.annotations[rezuscloud.io/slot]"}},
		"own labels":       {func(m *Machine) { m.Labels = map[string]string{"rack": "4"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(nil)
			c.change(m)
			expect(t, MachineChange{New: m}.Validate(), c.want...)
		})
	}
}

func TestAssignedMachineKeepsItsAddressAndServerLabels(t *testing.T) {
	old := machine(map[string]string{LabelTenant: "prod", LabelNodeGroup: "cp"})
	next := machine(map[string]string{LabelTenant: "dev", "rack": "4"})
	next.Spec.ManagementAddress = "10.0.0.10"
	next.Annotations = map[string]string{AnnotationDeleteMachine: "true"}
	expect(t, MachineChange{New: next, Old: old}.Validate(), "metadata.labels[rezuscloud.io/tenant]", "spec.managementAddress")
	next.Labels, next.Spec = map[string]string{"rack": "4"}, old.Spec
	expect(t, MachineChange{New: next, Old: old}.Validate())
	KeepServerLabels(next, old)
	if next.Labels[LabelTenant] != "prod" || next.Labels[LabelNodeGroup] != "cp" || next.Labels["rack"] != "4" {
		t.Errorf("labels %v", next.Labels)
	}
}

func TestMachineAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.9": "10.0.0.9:50000", "10.0.0.9:50000": "10.0.0.9:50000", "10.0.0.9:6": "10.0.0.9:6",
		"fd00::5": "[fd00::5]:50000", "[fd00::5]:50001": "[fd00::5]:50001", "FD00:0::5": "[fd00::5]:50000",
		"Node-1.Lab": "node-1.lab:50000", "127.1.2.3": "127.1.2.3:50000",
	} {
		a, err := ParseMachineAddress(in)
		if err != nil || a.String() != want {
			t.Errorf("%q: %q, %v; want %q", in, a, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "a b", "10.0.0.300", "10.0.0.9:", "10.0.0.9:0", "10.0.0.9:65536", "10.0.0.9:+5", ":50000", "[fd00::5]", "fe80::1%eth0",
		"::ffff:10.0.0.9", "0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "http://x", "x/y", "user@host", "-a", "1.2.3",
	} {
		if a, err := ParseMachineAddress(in); err == nil {
			t.Errorf("%q was taken for %q", in, a)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, err := ParseMachineAddress(rapid.String().Draw(t, "text"))
		if err != nil {
			return
		}
		if again, err := ParseMachineAddress(a.String()); err != nil || again != a {
			t.Fatalf("%q is not canonical: %v, %v", a, again, err)
		}
	})
}

func TestCanonicalConfigIsOneForm(t *testing.T) {
	a, err := CanonicalConfig(json.RawMessage(` {"b": 1.50, "a": {"y":[1, 2],"x":9007199254740993}}`))
	if err != nil || string(a) != `{"a":{"x":9007199254740993,"y":[1,2]},"b":1.50}` {
		t.Errorf("%s, %v", a, err)
	}
	if c, err := CanonicalConfig(json.RawMessage(" null")); c != nil || err != nil {
		t.Errorf("%s, %v", c, err)
	}
}

func TestDeletionKeepsTheControlPlaneUnderWorkers(t *testing.T) {
	cp, second := group(), group(func(g *NodeGroup) { g.Name = "prod/cp-2" })
	worker := group(func(g *NodeGroup) { g.Name, g.Labels = "prod/w", map[string]string{LabelRole: "worker"} })
	gone := tenant()
	at := gone.CreatedAt
	gone.DeletionTimestamp = &at
	going := *second
	going.DeletionTimestamp = &at
	for name, c := range map[string]struct {
		g       *NodeGroup
		tenant  *Tenant
		others  []*NodeGroup
		workers int
		refused bool
	}{
		"last, with workers":          {cp, tenant(), []*NodeGroup{worker}, 0, true},
		"last, workers still leaving": {cp, tenant(), nil, 2, true},
		"last, alone":                 {cp, tenant(), nil, 0, false},
		"another stays":               {cp, tenant(), []*NodeGroup{worker, second}, 1, false},
		"another is leaving":          {cp, tenant(), []*NodeGroup{worker, &going}, 1, true},
		"tenant is leaving":           {cp, gone, []*NodeGroup{worker}, 1, false},
		"workers":                     {worker, tenant(), []*NodeGroup{cp}, 1, false},
	} {
		if err := MayDeleteNodeGroup(c.g, c.tenant, c.others, c.workers); errors.Is(err, ErrRefused) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyControlPlaneMachineStays(t *testing.T) {
	cp := machine(map[string]string{LabelTenant: "prod", LabelRole: "controlplane"})
	other := machine(map[string]string{LabelTenant: "prod", LabelRole: "controlplane"})
	other.Name = "b"
	worker := machine(map[string]string{LabelTenant: "prod", LabelRole: "worker"})
	if err := MayDeleteMachine(cp, tenant(), []*Machine{cp, worker}); !errors.Is(err, ErrRefused) {
		t.Errorf("the only one: %v", err)
	}
	if err := MayDeleteMachine(cp, tenant(), []*Machine{cp, other}); err != nil {
		t.Errorf("one of two: %v", err)
	}
	if err := MayDeleteMachine(worker, tenant(), []*Machine{cp, worker}); err != nil {
		t.Errorf("a worker: %v", err)
	}
}
