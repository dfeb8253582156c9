package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var dryRun string
	cmd := &cobra.Command{
		Use:   "apply -f FILE|FOLDER|-",
		Short: "Create or update resources to be what files declare",
		Long: `Create or update resources to be what files declare.

A file holds YAML or JSON documents, each with kind (Tenant, NodeGroup, Machine or User), metadata and spec; a node
group names its tenant by tenant: or by the label rezuscloud.io/tenant. The output of get -o yaml is such a file.

The spec becomes what the file says, whole. Labels and annotations of the file are set, others are kept, and those
that the file gives as null are removed. What only the server writes (uid, resourceVersion, status, …) is not read.
Resources that the files do not name are left alone.`,
		Example: "  freehold apply -f prod.yaml\n  freehold apply -f clusters/ --dry-run=client\n  freehold get tenant prod -o yaml | freehold apply -f -",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return &usageError{cmd.CommandPath(), errors.New("name a file with -f")}
			}
			if dryRun != "none" && dryRun != "client" {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--dry-run=%s: it can be none or client", dryRun)}
			}
			return a.apply(cmd.Context(), files, dryRun == "client")
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, folder or - (standard input); may be repeated")
	cmd.Flags().StringVar(&dryRun, "dry-run", "none", "client: read the files, compare with the server, and tell what would change; nothing is sent, so the server validates nothing")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "client"
	return cmd
}

func (a *app) apply(ctx context.Context, files []string, dryRun bool) error {
	manifests, err := a.readManifests(files)
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	note := ""
	if dryRun {
		note = " (dry run)"
	}
	failed := false
	created := map[string]bool{}
	for i := range manifests {
		m := &manifests[i]
		name, outcome, err := (&applier{c: c, dryRun: dryRun, created: created}).apply(ctx, m)
		if err != nil {
			if ctx.Err() != nil || client.IsConnect(err) || client.IsUnauthorized(err) {
				return err
			}
			failed = true
			tell(a.err, fmt.Errorf("%s: %w", m.where, err))
			continue
		}
		created[m.id()] = true
		a.printf("%s/%s %s%s\n", m.kind.singular, name, outcome, note)
	}
	if failed {
		return errTold
	}
	return nil
}

type applier struct {
	c       *client.Client
	dryRun  bool
	created map[string]bool // by manifest id: would exist by now
}

// Outcomes of applying one manifest.
const (
	outcomeCreated    = "created"
	outcomeConfigured = "configured"
	outcomeUnchanged  = "unchanged"
)

// apply makes one resource what its manifest says: read, change, write, and again when someone else wrote it first.
func (p *applier) apply(ctx context.Context, m *manifest) (name, outcome string, err error) {
	objects := client.Objects(p.c, m.kind.Kind, m.parent)
	for range 10 {
		live, err := p.find(ctx, objects, m)
		switch {
		case client.IsNotFound(err) && p.dryRun:
			return first(m.name, "(new)"), outcomeCreated, p.checkParent(ctx, m)
		case client.IsNotFound(err):
			made, err := objects.Create(ctx, m.object())
			if client.IsConflict(err) && m.name != "" {
				if _, gone := objects.Get(ctx, m.name); gone == nil {
					continue // somebody made it first
				}
			}
			if err != nil {
				return "", "", err
			}
			return made.Metadata.Name, outcomeCreated, nil
		case err != nil:
			return "", "", err
		case live.Metadata.DeletionTimestamp != nil:
			return "", "", fmt.Errorf("it is being deleted: apply again when it is gone (freehold wait %s/%s --for=delete)", m.kind.singular, m.name)
		}
		next, changed, err := m.change(live)
		if err != nil {
			return "", "", err
		}
		name = live.Metadata.Name
		if !changed {
			return name, outcomeUnchanged, nil
		}
		if p.dryRun {
			return name, outcomeConfigured, nil
		}
		written, err := objects.Update(ctx, next)
		if client.IsConflict(err) && p.moved(ctx, objects, live) {
			continue
		}
		if err != nil {
			return "", "", err
		}
		if written.Metadata.ResourceVersion == live.Metadata.ResourceVersion {
			return name, outcomeUnchanged, nil // the server fills in what the file leaves out
		}
		return name, outcomeConfigured, nil
	}
	return "", "", errors.New("it is being changed by others all the time: try again")
}

// checkParent finds out, for a dry run, that a new node group's tenant exists or would by now.
func (p *applier) checkParent(ctx context.Context, m *manifest) error {
	if m.kind.Kind != client.KindNodeGroup || p.created[string(client.KindTenant)+"//"+m.parent] {
		return nil
	}
	_, err := client.Tenants(p.c).Get(ctx, m.parent)
	return err
}

// moved tells whether the conflict was about the revision.
func (p *applier) moved(ctx context.Context, objects client.Collection[json.RawMessage, json.RawMessage], live *client.Object) bool {
	now, err := objects.Get(ctx, live.Metadata.Name)
	return err != nil || now.Metadata.ResourceVersion != live.Metadata.ResourceVersion
}

// find reads the resource that a manifest declares. A machine without a name is the one at its address.
func (p *applier) find(ctx context.Context, objects client.Collection[json.RawMessage, json.RawMessage], m *manifest) (*client.Object, error) {
	if m.name != "" {
		return objects.Get(ctx, m.name)
	}
	var spec client.MachineSpec
	if err := json.Unmarshal(m.spec, &spec); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	want, err := cloud.ParseMachineAddress(spec.ManagementAddress)
	if err != nil {
		return nil, fmt.Errorf("spec.managementAddress: %w", err)
	}
	all, err := objects.List(ctx, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range all.Items {
		var s client.MachineSpec
		if json.Unmarshal(all.Items[i].Spec, &s) == nil {
			if got, err := cloud.ParseMachineAddress(s.ManagementAddress); err == nil && got == want {
				return &all.Items[i], nil
			}
		}
	}
	return nil, &client.Error{Code: 404, Reason: "NotFound", Message: "no machine at " + spec.ManagementAddress}
}

// change is the live resource as the manifest wants it, and whether that differs.
func (m *manifest) change(live *client.Object) (*client.Object, bool, error) {
	next := *live
	next.Metadata.Labels = merged(live.Metadata.Labels, m.labels)
	next.Metadata.Annotations = merged(live.Metadata.Annotations, m.annotations)
	spec, err := m.specFor(live)
	if err != nil {
		return nil, false, err
	}
	next.Spec = spec
	same, err := sameJSON(live.Spec, spec)
	if err != nil {
		return nil, false, err
	}
	return &next, !same || !maps.Equal(next.Metadata.Labels, live.Metadata.Labels) ||
		!maps.Equal(next.Metadata.Annotations, live.Metadata.Annotations), nil
}

// specFor is the manifest's spec, without what is an observation of the server's.
func (m *manifest) specFor(live *client.Object) (json.RawMessage, error) {
	if m.kind.Kind != client.KindMachine {
		return m.spec, nil
	}
	var want, have map[string]any
	if err := errors.Join(json.Unmarshal(m.spec, &want), json.Unmarshal(live.Spec, &have)); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	delete(want, "connected")
	if connected, ok := have["connected"]; ok {
		want["connected"] = connected
	}
	if sameAddress(want["managementAddress"], have["managementAddress"]) {
		want["managementAddress"] = have["managementAddress"]
	}
	return json.Marshal(want)
}

// sameAddress: one may be written with the default port, the other without.
func sameAddress(a, b any) bool {
	s, _ := a.(string)
	t, _ := b.(string)
	x, errX := cloud.ParseMachineAddress(s)
	y, errY := cloud.ParseMachineAddress(t)
	return errX == nil && errY == nil && x == y
}

// sameJSON compares values: neither the order of keys nor empty ones make a difference.
func sameJSON(a, b json.RawMessage) (bool, error) {
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		return false, err
	}
	if err := json.Unmarshal(b, &y); err != nil {
		return false, err
	}
	return reflect.DeepEqual(pruned(x), pruned(y)), nil
}

// pruned drops keys whose value is null, or an empty object, list or text.
func pruned(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			switch e := pruned(e).(type) {
			case nil:
			case string:
				if e != "" {
					out[k] = e
				}
			case map[string]any:
				if len(e) > 0 {
					out[k] = e
				}
			case []any:
				if len(e) > 0 {
					out[k] = e
				}
			default:
				out[k] = e
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = pruned(v[i])
		}
		return out
	}
	return v
}
