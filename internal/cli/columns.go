package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

var tenantTable = tableOf{
	header: []string{"NAME", "PHASE", "READY", "MACHINES", "KUBERNETES", "TALOS", "AGE"},
	wide:   []string{"AVAILABLE", "API", "CONTROL-PLANE", "ENDPOINT"},
	cells: func(o *client.Object, now time.Time) ([]string, []string, error) {
		t, err := typed[cloud.TenantSpec, cloud.TenantStatus](o)
		s := t.Status
		return []string{
			o.Metadata.Name, string(s.Phase), yes(s.Ready), ratio(s.Machines), t.Spec.KubernetesVersion, t.Spec.TalosVersion,
			since(o.Metadata.CreatedAt, now),
		}, []string{yes(s.Available), yes(s.APIReady), yes(s.ControlPlaneReady), first(s.ControlPlaneEndpoint, t.Spec.ControlPlaneEndpoint)}, err
	},
}

var nodeGroupTable = tableOf{
	header: []string{"TENANT", "NAME", "ROLE", "PROVIDER", "COUNT", "PHASE", "MACHINES", "AGE"},
	wide:   []string{"READY", "TALOS"},
	cells: func(o *client.Object, now time.Time) ([]string, []string, error) {
		g, err := typed[cloud.NodeGroupSpec, cloud.NodeGroupStatus](o)
		l := o.Metadata.Labels
		return []string{
			l[cloud.LabelTenant], o.Metadata.Name, l[cloud.LabelRole], g.Spec.ProviderClass, strconv.Itoa(g.Spec.Count),
			string(g.Status.Phase), ratio(g.Status.Machines), since(o.Metadata.CreatedAt, now),
		}, []string{yes(g.Status.Ready), g.Spec.TalosVersion}, err
	},
}

var machineTable = tableOf{
	header: []string{"NAME", "TENANT", "NODE-GROUP", "ROLE", "STAGE", "READY", "ADDRESS", "AGE"},
	wide:   []string{"CONNECTED", "HOSTNAME", "TALOS", "KUBERNETES", "CPU", "MEMORY", "ERROR"},
	cells: func(o *client.Object, now time.Time) ([]string, []string, error) {
		m, err := typed[client.MachineSpec, cloud.MachineStatus](o)
		l, s := o.Metadata.Labels, m.Status
		cores, memory := 0, 0
		for _, p := range s.Hardware.Processors {
			cores += p.CoreCount
		}
		for _, d := range s.Hardware.MemoryModules {
			memory += d.SizeMB
		}
		return []string{
				o.Metadata.Name, l[cloud.LabelTenant], l[cloud.LabelNodeGroup], first(l[cloud.LabelRole], string(s.Role)),
				stageOf(l, s), yes(s.Ready), m.Spec.ManagementAddress, since(o.Metadata.CreatedAt, now),
			}, []string{
				yes(m.Spec.Connected), s.Network.Hostname, s.TalosVersion, s.KubernetesVersion, count(cores, ""), count(memory, "Mi"), s.LastError,
			}, err
	},
}

// stageOf is a machine's stage. One that is nobody's and waits for a configuration is told from one that was not seen yet.
func stageOf(labels map[string]string, s cloud.MachineStatus) string {
	if labels[cloud.LabelTenant] == "" && s.Maintenance && s.Stage == cloud.StageInitializing {
		return "maintenance"
	}
	return string(s.Stage)
}

var providerTable = tableOf{
	header: []string{"NAME", "TYPE", "MAPPINGS", "AGE"},
	cells: func(o *client.Object, now time.Time) ([]string, []string, error) {
		p, err := typed[cloud.ProviderSpec, cloud.ProviderStatus](o)
		var mappings []string
		for _, m := range p.Status.Mappings {
			mappings = append(mappings, m.TFType+"="+m.Resource)
		}
		return []string{o.Metadata.Name, p.Spec.Type, strings.Join(mappings, ","), since(o.Metadata.CreatedAt, now)}, nil, err
	},
}

var userTable = tableOf{
	header: []string{"NAME", "ROLE", "TOKENS", "LAST-LOGIN", "AGE"},
	cells: func(o *client.Object, now time.Time) ([]string, []string, error) {
		u, err := typed[client.UserSpec, client.UserStatus](o)
		return []string{
			o.Metadata.Name, u.Spec.Role, strconv.Itoa(u.Status.ActiveTokens), ago(u.Status.LastLogin, now), since(o.Metadata.CreatedAt, now),
		}, nil, err
	},
}

var tokenTable = tableOf{
	header: []string{"NAME", "USER", "EXPIRES", "LAST-USED", "AGE"},
	cells: func(o *client.Object, now time.Time) ([]string, []string, error) {
		t, err := typed[client.APITokenSpec, client.APITokenStatus](o)
		expires := "never"
		if e := t.Spec.ExpiresAt; e != nil && !e.IsZero() {
			if expires = "in " + age(e.Sub(now)); e.Before(now) {
				expires = "expired"
			}
		}
		return []string{
			o.Metadata.Name, o.Metadata.Labels["rezuscloud.io/user"], expires, ago(t.Status.LastUsed, now), since(o.Metadata.CreatedAt, now),
		}, nil, err
	},
}

// typed decodes a resource of any kind into its own types.
func typed[S, T any](o *client.Object) (client.Resource[S, T], error) {
	r := client.Resource[S, T]{Metadata: o.Metadata}
	if len(o.Spec) > 0 {
		if err := json.Unmarshal(o.Spec, &r.Spec); err != nil {
			return r, fmt.Errorf("spec of %s: %w", o.Metadata.Name, err)
		}
	}
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &r.Status); err != nil {
			return r, fmt.Errorf("status of %s: %w", o.Metadata.Name, err)
		}
	}
	return r, nil
}

func yes(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

func ratio(c cloud.MachineCounts) string { return fmt.Sprintf("%d/%d", c.Healthy, c.Total) }

func count(n int, unit string) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n) + unit
}

func ago(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "never"
	}
	return age(now.Sub(*t)) + " ago"
}
