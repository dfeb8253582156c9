package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

func (a *app) describeCommand() *cobra.Command {
	var scope scopeFlags
	cmd := &cobra.Command{
		Use:               "describe TYPE NAME… | TYPE/NAME…",
		Short:             "Show resources in detail, with what belongs to them",
		Example:           "  freehold describe tenant prod\n  freehold describe machine 0f8e… \n  freehold describe ng prod-worker -t prod",
		ValidArgsFunction: a.completeRefs(&scope),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := parseRefs(args)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return a.describe(cmd.Context(), refs, scope)
		},
	}
	scope.add(a, cmd)
	return cmd
}

func (a *app) describe(ctx context.Context, refs []ref, scope scopeFlags) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	for i, r := range refs {
		if i > 0 {
			a.printf("\n")
		}
		parent, err := scope.owner(r.kind)
		if err != nil {
			return err
		}
		if r.name == "" {
			return fmt.Errorf("name the %s to describe", r.plural)
		}
		o, err := client.Objects(c, r.Kind, parent).Get(ctx, r.name)
		if err != nil {
			return err
		}
		d := &description{w: a.out, now: a.Now()}
		d.metadata(o)
		if err := d.kind(ctx, c, r.Kind, parent, o); err != nil {
			return err
		}
		if d.err != nil {
			return d.err
		}
	}
	return nil
}

// description writes what describe shows. The first error of writing is kept.
type description struct {
	w   io.Writer
	now time.Time
	err error
}

func (d *description) line(name, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if text == "" {
		text = "-"
	}
	if name != "" {
		name += ":"
	}
	d.write(fmt.Sprintf("%-22s%s\n", name, text))
}

func (d *description) write(s string) {
	if _, err := io.WriteString(d.w, s); err != nil && d.err == nil {
		d.err = err
	}
}

func (d *description) pairs(name string, pairs map[string]string) {
	if len(pairs) == 0 {
		d.line(name, "<none>")
	}
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		d.line(name, "%s=%s", k, pairs[k])
		name = ""
	}
}

// section writes a table under a title, or that there is nothing.
func (d *description) section(title string, header []string, rows [][]string) {
	d.write("\n" + title + ":\n")
	if len(rows) == 0 {
		d.write("  <none>\n")
		return
	}
	var b strings.Builder
	t := &table{w: &b}
	t.add(header...)
	for _, r := range rows {
		t.add(r...)
	}
	_ = t.flush()
	for line := range strings.Lines(b.String()) {
		d.write("  " + line)
	}
}

func (d *description) metadata(o *client.Object) {
	m := o.Metadata
	d.line("Name", "%s", m.Name)
	d.line("UID", "%s", m.UID)
	d.line("Created", "%s", d.when(m.CreatedAt))
	if m.DeletionTimestamp != nil {
		d.line("Deletion asked for", "%s", d.when(*m.DeletionTimestamp))
		d.line("Waiting for", "%s", strings.Join(m.Finalizers, ", "))
	}
	d.line("Version", "resourceVersion %d, generation %d", m.ResourceVersion, m.Generation)
	d.pairs("Labels", m.Labels)
	d.pairs("Annotations", m.Annotations)
}

func (d *description) when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), age(d.now.Sub(t)))
}

func (d *description) kind(ctx context.Context, c *client.Client, k client.Kind, parent string, o *client.Object) error {
	switch k {
	case client.KindTenant:
		return d.tenant(ctx, c, o)
	case client.KindNodeGroup:
		return d.nodeGroup(ctx, c, parent, o)
	case client.KindMachine:
		return d.machine(o)
	case client.KindProvider:
		return d.provider(o)
	case client.KindUser:
		u, err := typed[client.UserSpec, client.UserStatus](o)
		d.line("Role", "%s", u.Spec.Role)
		d.line("Last login", "%s", ago(u.Status.LastLogin, d.now))
		d.line("API tokens", "%d", u.Status.ActiveTokens)
		return err
	case client.KindToken:
		t, err := typed[client.APITokenSpec, client.APITokenStatus](o)
		if t.Spec.ExpiresAt != nil {
			d.line("Expires", "%s", t.Spec.ExpiresAt.UTC().Format(time.RFC3339))
		}
		d.line("Last used", "%s", ago(t.Status.LastUsed, d.now))
		return err
	}
	return nil
}

func (d *description) tenant(ctx context.Context, c *client.Client, o *client.Object) error {
	t, err := typed[cloud.TenantSpec, cloud.TenantStatus](o)
	if err != nil {
		return err
	}
	s := t.Status
	d.line("Phase", "%s", s.Phase)
	d.line("Ready", "%s", yes(s.Ready))
	d.line("Available", "%s", yes(s.Available))
	d.line("API ready", "%s", yes(s.APIReady))
	d.line("Control plane ready", "%s", yes(s.ControlPlaneReady))
	d.line("Machines", "%d healthy, %d connected, %d in total", s.Machines.Healthy, s.Machines.Connected, s.Machines.Total)
	d.line("Kubernetes", "%s", declared(t.Spec.KubernetesVersion, s.KubernetesVersion))
	d.line("Talos", "%s", declared(t.Spec.TalosVersion, s.TalosVersion))
	d.line("Endpoint", "%s", first(s.ControlPlaneEndpoint, t.Spec.ControlPlaneEndpoint))
	d.line("Pod network", "%s", strings.Join(t.Spec.PodNetwork, ", "))
	d.line("Service network", "%s", strings.Join(t.Spec.ServiceNetwork, ", "))
	d.line("CNI", "%s", strings.TrimSpace(first(t.Spec.Plugins.CNI.Type, "flannel")+" "+t.Spec.Plugins.CNI.Version))
	d.line("CSI", "%s", first(t.Spec.Plugins.CSI.Type, "none"))
	d.patches(t.Spec.ConfigPatches)
	d.conditions(s.Conditions)
	if err := d.groups(ctx, c, o.Metadata.Name); err != nil {
		return err
	}
	if err := d.machines(ctx, c, o.Metadata.Name, ""); err != nil {
		return err
	}
	return d.applies(ctx, c, o.Metadata.Name)
}

func declared(want, is string) string {
	if is == "" || is == want {
		return want
	}
	return fmt.Sprintf("%s (declared: %s)", is, want)
}

func (d *description) patches(patches []cloud.InlinePatch) {
	var names []string
	for _, p := range patches {
		names = append(names, p.Name)
	}
	d.line("Config patches", "%s", first(strings.Join(names, ", "), "<none>"))
}

func (d *description) conditions(conditions []cloud.Condition) {
	var rows [][]string
	for _, c := range conditions {
		rows = append(rows, []string{c.Type, string(c.Status), c.Reason, since(c.LastTransitionTime, d.now), c.Message})
	}
	d.section("Conditions", []string{"TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"}, rows)
}

func (d *description) groups(ctx context.Context, c *client.Client, tenant string) error {
	l, err := client.NodeGroups(c, tenant).List(ctx, client.ListOptions{})
	if err != nil {
		return err
	}
	var rows [][]string
	for _, g := range l.Items {
		rows = append(rows, []string{
			g.Metadata.Name, g.Metadata.Labels[cloud.LabelRole], g.Spec.ProviderClass, fmt.Sprint(g.Spec.Count), string(g.Status.Phase), ratio(g.Status.Machines),
		})
	}
	d.section("Node groups", []string{"NAME", "ROLE", "PROVIDER", "COUNT", "PHASE", "MACHINES"}, rows)
	return nil
}

func (d *description) machines(ctx context.Context, c *client.Client, tenant, group string) error {
	o := client.ListOptions{}
	if group != "" {
		o.Selector = cloud.LabelNodeGroup + "=" + group
	}
	l, err := client.TenantMachines(c, tenant).List(ctx, o)
	if err != nil {
		return err
	}
	var rows [][]string
	for i := range l.Items {
		m := &l.Items[i]
		rows = append(rows, []string{
			slotName(m), m.Metadata.Name, m.Metadata.Labels[cloud.LabelRole], string(m.Status.Stage), yes(m.Status.Ready), m.Spec.ManagementAddress, m.Status.LastError,
		})
	}
	slices.SortFunc(rows, slices.Compare)
	d.section("Machines", []string{"SLOT", "NAME", "ROLE", "STAGE", "READY", "ADDRESS", "ERROR"}, rows)
	return nil
}

// applies shows the latest applies; a server that does not offer them is not asked for more.
func (d *description) applies(ctx context.Context, c *client.Client, tenant string) error {
	list, err := c.Applies(ctx, tenant, 5)
	if client.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var rows [][]string
	for _, a := range list {
		took := inSeconds(a.Seconds)
		plan := fmt.Sprintf("+%d ~%d -%d", a.Plan.Add, a.Plan.Change, a.Plan.Destroy)
		if a.Result == client.ApplyRunning && a.Plan == (client.PlanSummary{}) {
			plan = "" // not made yet
		}
		rows = append(rows, []string{
			a.ID, a.Trigger, a.Result, plan, seconds(took), since(a.StartedAt, d.now), a.Error,
		})
	}
	d.section("Applies", []string{"ID", "TRIGGER", "RESULT", "PLAN", "TOOK", "AGE", "ERROR"}, rows)
	return nil
}

func (d *description) nodeGroup(ctx context.Context, c *client.Client, tenant string, o *client.Object) error {
	g, err := typed[cloud.NodeGroupSpec, cloud.NodeGroupStatus](o)
	if err != nil {
		return err
	}
	d.line("Phase", "%s", g.Status.Phase)
	d.line("Ready", "%s", yes(g.Status.Ready))
	d.line("Count", "%d", g.Spec.Count)
	d.line("Machines", "%d healthy, %d connected, %d in total", g.Status.Machines.Healthy, g.Status.Machines.Connected, g.Status.Machines.Total)
	d.line("Provider", "%s", g.Spec.ProviderClass)
	d.line("Provider config", "%s", string(present(g.Spec.ProviderConfig)))
	d.line("Talos", "%s", first(g.Spec.TalosVersion, "the tenant's"))
	d.patches(g.Spec.ConfigPatches)
	d.conditions(g.Status.Conditions)
	return d.machines(ctx, c, tenant, o.Metadata.Name)
}

func (d *description) machine(o *client.Object) error {
	m, err := typed[client.MachineSpec, cloud.MachineStatus](o)
	if err != nil {
		return err
	}
	s := m.Status
	d.line("Address", "%s", m.Spec.ManagementAddress)
	d.line("Tenant", "%s", first(o.Metadata.Labels[cloud.LabelTenant], "<unassigned>"))
	d.line("Stage", "%s", s.Stage)
	d.line("Ready", "%s", yes(s.Ready))
	d.line("Connected", "%s", yes(m.Spec.Connected))
	d.line("Maintenance", "%s", yes(s.Maintenance))
	d.line("Config up to date", "%s", yes(s.ConfigUpToDate))
	d.line("Role", "%s", s.Role)
	d.line("Talos", "%s", s.TalosVersion)
	d.line("Kubernetes", "%s", s.KubernetesVersion)
	d.line("Hostname", "%s", s.Network.Hostname)
	d.line("Addresses", "%s", strings.Join(s.Network.Addresses, ", "))
	d.line("Gateways", "%s", strings.Join(s.Network.DefaultGateways, ", "))
	d.line("Schematic", "%s", strings.TrimSpace(s.Schematic.ID+" "+strings.Join(s.Schematic.Extensions, ", ")))
	d.line("Boot ID", "%s", s.BootID)
	d.line("Last error", "%s", first(s.LastError, "<none>"))
	d.hardware(s.Hardware)
	return nil
}

func (d *description) hardware(h cloud.Hardware) {
	if h.UUID != "" {
		d.line("Hardware UUID", "%s", h.UUID)
	}
	for _, p := range h.Processors {
		d.line("Processor", "%d cores  %s", p.CoreCount, p.Description)
	}
	for _, m := range h.MemoryModules {
		d.line("Memory", "%d MiB", m.SizeMB)
	}
	for _, b := range h.BlockDevices {
		system := ""
		if b.SystemDisk {
			system = "  (system)"
		}
		d.line("Disk", "%s  %.1f GiB  %s%s", b.Name, float64(b.Size)/(1<<30), b.Type, system)
	}
}

func (d *description) provider(o *client.Object) error {
	p, err := typed[cloud.ProviderSpec, cloud.ProviderStatus](o)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, m := range p.Status.Mappings {
		rows = append(rows, []string{m.TFType, m.Resource})
	}
	d.section("Mappings", []string{"TF TYPE", "RESOURCE"}, rows)
	if len(p.Status.ConfigSchema) > 0 {
		d.write("\nProvider config (JSON schema):\n")
		data, err := toYAML(p.Status.ConfigSchema)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			d.write("  " + line)
		}
	}
	return nil
}
