package api

import (
	"maps"
	"slices"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/wire"
)

func wireTenant(t *cloud.Tenant) client.Tenant {
	w := client.Tenant{Metadata: wire.Metadata(&t.Metadata, t.Name), Spec: t.Spec, Status: t.Status}
	if t.Deleting() {
		w.Status.Phase = cloud.PhaseRemoving
	}
	return w
}

func wireNodeGroup(g *cloud.NodeGroup) client.NodeGroup {
	_, name := cloud.SplitName(g.Name)
	w := client.NodeGroup{Metadata: wire.Metadata(&g.Metadata, name), Spec: g.Spec, Status: g.Status}
	if g.Deleting() {
		w.Status.Phase = cloud.PhaseRemoving
	}
	return w
}

func wireMachine(m *cloud.Machine) client.Machine {
	return client.Machine{
		Metadata: wire.Metadata(&m.Metadata, m.Name),
		Spec:     client.MachineSpec{ManagementAddress: m.Spec.ManagementAddress, Connected: m.Status.Connected},
		Status:   m.Status,
	}
}

func wireProvider(p *cloud.Provider) client.Provider {
	w := client.Provider{Metadata: wire.Metadata(&p.Metadata, p.Name), Spec: p.Spec, Status: p.Status}
	if w.Status.Mappings == nil {
		w.Status.Mappings = []cloud.Mapping{}
	}
	return w
}

// declare takes over what a client may set of metadata. Finalizers that are left out stay.
func declare(m *store.Metadata, in *client.Metadata) {
	m.Labels, m.Annotations = maps.Clone(in.Labels), maps.Clone(in.Annotations)
	if in.Finalizers != nil {
		m.Finalizers = slices.Clone(in.Finalizers)
	}
}

// withFinalizers adds what creation adds.
func withFinalizers(have, add []string) []string {
	for _, f := range add {
		if !slices.Contains(have, f) {
			have = append(have, f)
		}
	}
	return have
}

// precondition checks a body against the object that the path names.
func precondition(in *client.Metadata, name string, revision int64) error {
	var causes []rest.Cause
	if in.Name != "" && in.Name != name {
		causes = append(causes, rest.Cause{Field: "metadata.name", Message: "Invalid value: the path names " + name + ": names cannot change"})
	}
	switch {
	case in.ResourceVersion == 0:
		causes = append(causes, rest.Cause{Field: "metadata.resourceVersion", Message: "Required value: send the resourceVersion that you read"})
	case in.ResourceVersion < 0:
		causes = append(causes, rest.Cause{Field: "metadata.resourceVersion", Message: "Invalid value: must be the resourceVersion that you read"})
	}
	if len(causes) > 0 {
		return rest.Invalid(causes...)
	}
	if in.ResourceVersion != revision {
		return rest.Modified()
	}
	return nil
}
