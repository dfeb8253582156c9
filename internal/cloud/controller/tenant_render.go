package controller

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/apply"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/cloud/tofu"
)

// talosSource is where the Talos provider comes from: ours is served under this name, and the published one answers
// to it as well.
const talosSource = "siderolabs/talos"

// bootstrapAddress is the resource that starts etcd.
const bootstrapAddress = "talos_machine_bootstrap.cluster"

// plan is a rendered configuration.
type plan struct {
	config []byte
	digest string
	stages []tofu.Stage
	slots  []string // sorted
	// bootstraps: the configuration says that etcd is started.
	bootstraps bool
	// waits tells why nothing can be applied yet; pending what is left out for now.
	waits, pending string
	// exclude are the resources of machines that are in the state and do not answer: an apply leaves them as they are.
	// silent are those of the machines that stay.
	exclude, silent []string
}

// goal is the digest of what an apply of the plan makes true.
func (p *plan) goal() string {
	if len(p.exclude) == 0 {
		return p.digest
	}
	return p.digest + " without " + strings.Join(p.exclude, ", ")
}

// behind tells which machines are not as declared when the goal is reached.
func (p *plan) behind() string {
	text := p.pending
	if len(p.silent) > 0 {
		text = "these do not answer and are changed when they do: " + list(p.silent)
		if p.pending != "" {
			text += "; " + p.pending
		}
	}
	return text
}

// machineAddress is the resource that is a slot's machine.
func machineAddress(slot string) string {
	return fmt.Sprintf("talos_machine_configuration_apply.machine[%q]", slot)
}

// leaveOut leaves a machine that does not answer as it is.
func (p *plan) leaveOut(rec *apply.Record, m *cloud.Machine) {
	slot := slotOf(m)
	p.exclude = append(p.exclude, machineAddress(slot))
	if slot == rec.Bootstrap && !rec.Bootstrapped {
		p.exclude = append(p.exclude, bootstrapAddress)
	}
}

func machineText(m *cloud.Machine) string {
	return fmt.Sprintf("%s (machine %s at %s)", slotOf(m), m.Name, m.Spec.ManagementAddress)
}

// render makes the tenant's configuration of the machines that are bound. The same objects give the same bytes.
func (c *Tenant) render(w *world) (*plan, error) {
	p := &plan{}
	rec := w.record
	var unasked, silent, leaving []string
	shown := map[string][]*cloud.Machine{} // by group
	controlPlane := false
	for _, m := range w.machines {
		slot, known := slotOf(m), w.inState(m)
		goes := rec.IsRemoving(slot) && (!known || w.removalReady(slot))
		switch {
		case known && away(m):
			p.leaveOut(rec, m)
			if goes {
				// It stays in the configuration until it can go: without it there would be something to apply, and an
				// apply of that does nothing.
				leaving = append(leaving, machineText(m))
			} else {
				p.silent = append(p.silent, machineText(m))
			}
		case goes:
			continue
		case !known && away(m):
			// It would only hold up the others. It joins when it answers.
			silent = append(silent, machineText(m))
			continue
		case !known && !m.Status.Connected:
			unasked = append(unasked, machineText(m))
			continue
		}
		group := m.Labels[cloud.LabelNodeGroup]
		shown[group] = append(shown[group], m)
		p.slots = append(p.slots, slot)
		controlPlane = controlPlane || isControlPlane(m)
	}
	slices.Sort(p.slots)
	var pending []string
	if len(silent) > 0 {
		pending = append(pending, "these do not answer and join later: "+list(silent))
	}
	if len(leaving) > 0 {
		pending = append(pending, "these do not answer and are removed when they do: "+list(leaving))
	}
	p.pending = joined(pending)
	if len(unasked) > 0 {
		p.waits = "these were not asked yet whether they answer: " + list(unasked)
		return p, nil
	}
	endpoint := cmp.Or(w.tenant.Spec.ControlPlaneEndpoint, rec.Endpoint)
	if len(rec.Slots) == 0 && (rec.Bootstrap == "" || !controlPlane) {
		p.waits = cmp.Or(p.pending, "there is no control-plane machine yet")
		return p, nil
	}
	t := newTFConfig(w.tenant)
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		if err := c.renderGroup(t, w, name, shown[name], endpoint); err != nil {
			return nil, err
		}
	}
	p.bootstraps = controlPlane && (rec.Bootstrapped || slices.Contains(p.slots, rec.Bootstrap))
	if p.bootstraps {
		if err := t.bootstrap(rec.BootstrapNode, c.cfg.MachineTimeout); err != nil {
			return nil, err
		}
	}
	p.config = t.encode()
	sum := sha256.Sum256(p.config)
	p.digest = hex.EncodeToString(sum[:])
	if rec.State == nil {
		// The secrets are durable before any machine gets a configuration that is made with them: a run that is killed
		// leaves no machine that nobody has the keys of.
		p.stages = append(p.stages, tofu.Stage{Name: "secrets", Config: newTFConfig(w.tenant).encode()})
	}
	p.stages = append(p.stages, tofu.Stage{Name: "machines", Config: p.config, Exclude: p.exclude})
	return p, nil
}

func (w *world) removalReady(slot string) bool {
	for _, r := range w.record.Removing {
		if r.Slot == slot {
			return r.Ready
		}
	}
	return false
}

func (c *Tenant) renderGroup(t *tfConfig, w *world, name string, machines []*cloud.Machine, endpoint string) error {
	g := w.group(name)
	if g == nil {
		return fmt.Errorf("node group %q is gone, and machines of it are still there", name)
	}
	module, ok := c.cfg.Modules.Get(g.Spec.ProviderClass)
	if !ok {
		return fmt.Errorf("node group %q: provider class %q is not one of %s", name, g.Spec.ProviderClass, strings.Join(c.cfg.Modules.Classes(), ", "))
	}
	in := provider.Group{Name: name, Config: g.Spec.ProviderConfig}
	for _, m := range machines {
		in.Slots = append(in.Slots, provider.Slot{Key: slotOf(m), Address: m.Spec.ManagementAddress})
	}
	f, err := module.Render(in)
	if err != nil {
		return fmt.Errorf("node group %q: %w", name, err)
	}
	input := configInput(w.tenant, g)
	input.Endpoint = endpoint
	return t.group(name, input, f, c.cfg.MachineTimeout, c.cfg.TeardownTimeout)
}

// tfConfig is a main.tf.json in the making. Maps are encoded with sorted keys.
type tfConfig struct {
	required  map[string]provider.Required
	groups    map[string]any // by group: its machine configuration
	machines  map[string]any // by slot
	resources map[string]map[string]any
}

func newTFConfig(t *cloud.Tenant) *tfConfig {
	return &tfConfig{
		required: map[string]provider.Required{"talos": {Source: talosSource}},
		groups:   map[string]any{}, machines: map[string]any{},
		resources: map[string]map[string]any{"talos_machine_secrets": {"cluster": map[string]any{
			"talos_version": "v" + t.Spec.TalosVersion,
			// Secrets are made once; no later version of Talos is a reason to make others.
			"lifecycle": map[string]any{"ignore_changes": "all", "prevent_destroy": false},
		}}},
	}
}

// group adds a node group: one machine configuration, applied to each of its slots.
func (t *tfConfig) group(name string, in talos.ConfigInput, f provider.Fragment, timeout, teardown time.Duration) error {
	patches := make([]string, len(in.Patches))
	for i, p := range in.Patches {
		patches[i] = literal(p)
	}
	t.groups[name] = map[string]any{
		"cluster_name": literal(in.Cluster), "cluster_endpoint": literal(in.Endpoint), "machine_type": string(in.Role),
		"talos_version": "v" + in.TalosVersion, "kubernetes_version": in.KubernetesVersion, "config_patches": patches,
	}
	for slot, node := range f.Nodes {
		t.machines[slot] = map[string]any{"group": name, "node": node.Node, "endpoint": node.Endpoint}
	}
	for kind, named := range f.Resources {
		for n, body := range named {
			if t.resources[kind] == nil {
				t.resources[kind] = map[string]any{}
			}
			if _, taken := t.resources[kind][n]; taken {
				return fmt.Errorf("node group %q: resource %s.%s exists already", name, kind, n)
			}
			t.resources[kind][n] = body
		}
	}
	maps.Copy(t.required, f.Required)
	t.resources["talos_machine_configuration_apply"] = map[string]any{"machine": map[string]any{
		"for_each":                    "${local.machines}",
		"client_configuration":        "${talos_machine_secrets.cluster.client_configuration}",
		"machine_configuration_input": "${data.talos_machine_configuration.group[each.value.group].machine_configuration}",
		"node":                        "${each.value.node}",
		"endpoint":                    "${each.value.endpoint}",
		"on_destroy":                  map[string]any{"graceful": false, "reboot": true, "reset": true},
		"timeouts":                    map[string]any{"create": seconds(timeout), "update": seconds(timeout), "delete": seconds(teardown)},
	}}
	return nil
}

// bootstrap starts etcd on a machine, once. It waits for the machine by itself: a dependency on the configurations
// would make it wait for those of all the other machines too.
func (t *tfConfig) bootstrap(address string, timeout time.Duration) error {
	f, err := provider.Metal{}.Render(provider.Group{Slots: []provider.Slot{{Key: "bootstrap", Address: address}}})
	if err != nil {
		return err
	}
	t.resources["talos_machine_bootstrap"] = map[string]any{"cluster": map[string]any{
		"client_configuration": "${talos_machine_secrets.cluster.client_configuration}",
		"node":                 f.Nodes["bootstrap"].Node,
		"endpoint":             f.Nodes["bootstrap"].Endpoint,
		"timeouts":             map[string]any{"create": seconds(timeout)},
		"lifecycle":            map[string]any{"ignore_changes": "all"},
	}}
	return nil
}

func (t *tfConfig) encode() []byte {
	root := map[string]any{
		"terraform": map[string]any{
			"required_providers": t.required,
			"backend":            map[string]any{"http": map[string]any{}},
			"encryption":         tofu.Encryption(""),
		},
		"resource": t.resources,
	}
	if len(t.groups) > 0 {
		root["locals"] = map[string]any{"groups": t.groups, "machines": t.machines}
		root["data"] = map[string]any{"talos_machine_configuration": map[string]any{"group": map[string]any{
			"for_each":           "${local.groups}",
			"cluster_name":       "${each.value.cluster_name}",
			"cluster_endpoint":   "${each.value.cluster_endpoint}",
			"machine_type":       "${each.value.machine_type}",
			"machine_secrets":    "${talos_machine_secrets.cluster.machine_secrets}",
			"talos_version":      "${each.value.talos_version}",
			"kubernetes_version": "${each.value.kubernetes_version}",
			"config_patches":     "${each.value.config_patches}",
			"docs":               false,
			"examples":           false,
		}}}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		panic("encode a configuration of strings and maps: " + err.Error())
	}
	return b.Bytes()
}

// literal keeps a string from being read as a template: what an operator wrote is never evaluated.
func literal(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(s)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%ds", max(1, int(d/time.Second))) }
