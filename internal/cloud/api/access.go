package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// Lifetimes of the client certificates that are handed out.
const (
	minTTL = time.Minute
	maxTTL = 366 * 24 * time.Hour
)

const yamlType = "application/yaml"

type accessInput struct {
	TenantPath
	TTL string `query:"ttl" default:"24h" doc:"How long the client certificate lives: a duration such as 8h, at most 8784h (a year)."`
}

type fileOutput struct {
	ContentType        string `header:"Content-Type"`
	ContentDisposition string `header:"Content-Disposition"`
	Body               []byte
}

func (s *service) registerAccess(a *rest.API) {
	rest.Register(a, rest.Operation{
		Method: http.MethodGet, Path: tenantsPath + "/{name}/kubeconfig", ID: "get-kubeconfig", Access: rest.Edit,
		Summary: "Make a kubeconfig", Tags: []string{"Tenants"}, Produces: yamlType,
		Description: "A kubeconfig of a cluster administrator, with a client certificate of its own that carries the caller's name. Each one is audited.",
	}, s.kubeconfig)
	rest.Register(a, rest.Operation{
		Method: http.MethodGet, Path: tenantsPath + "/{name}/talosconfig", ID: "get-talosconfig", Access: rest.Edit,
		Summary: "Make a talosconfig", Tags: []string{"Tenants"}, Produces: yamlType,
		Description: "A talosconfig of an administrator for the tenant's machines, with a client certificate of its own. Each one is audited.",
	}, s.talosconfig)
}

func (s *service) kubeconfig(ctx context.Context, in *accessInput) (*fileOutput, error) {
	ttl, err := parseTTL(in.TTL)
	if err != nil {
		return nil, err
	}
	tenant, _, err := s.reachable(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	endpoint := cloud.EndpointOf(tenant)
	if endpoint == "" {
		return nil, rest.Conflict("tenant %q has no control-plane endpoint yet: it is known when the first control-plane machine is", in.Name)
	}
	secrets, err := s.secrets(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	file, err := talos.Kubeconfig(secrets, talos.KubeconfigRequest{
		Tenant: in.Name, Endpoint: endpoint, User: s.Caller(ctx).User, TTL: ttl,
	})
	if err != nil {
		return nil, fmt.Errorf("make a kubeconfig of tenant %q: %w", in.Name, err)
	}
	return s.issue(ctx, tenant, "kubeconfig", ttl, file)
}

func (s *service) talosconfig(ctx context.Context, in *accessInput) (*fileOutput, error) {
	ttl, err := parseTTL(in.TTL)
	if err != nil {
		return nil, err
	}
	tenant, machines, err := s.reachable(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	endpoints, nodes := talosAddresses(machines)
	if len(endpoints) == 0 {
		return nil, rest.Conflict("tenant %q has no control-plane machine yet: its talosconfig would reach nothing", in.Name)
	}
	secrets, err := s.secrets(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	file, err := talos.Talosconfig(secrets, talos.TalosconfigRequest{Tenant: in.Name, Endpoints: endpoints, Nodes: nodes, TTL: ttl})
	if err != nil {
		return nil, fmt.Errorf("make a talosconfig of tenant %q: %w", in.Name, err)
	}
	return s.issue(ctx, tenant, "talosconfig", ttl, file)
}

func parseTTL(text string) (time.Duration, error) {
	ttl, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fault("ttl", "Invalid value: must be a duration such as 8h or 30m")
	case ttl < minTTL:
		return 0, fault("ttl", fmt.Sprintf("Invalid value: must be at least %s", minTTL))
	case ttl > maxTTL:
		return 0, fault("ttl", fmt.Sprintf("Invalid value: must be at most %.0fh (a year)", maxTTL.Hours()))
	}
	return ttl, nil
}

// reachable reads a tenant that is not being deleted, and its machines.
func (s *service) reachable(ctx context.Context, name string) (*cloud.Tenant, []*cloud.Machine, error) {
	var tenant *cloud.Tenant
	var machines []*cloud.Machine
	err := s.Store.View(ctx, func(r store.Reader) (err error) {
		if tenant, err = cloud.Tenants.Get(r, name); err != nil {
			return named(err, "tenant", name)
		}
		if tenant.Deleting() {
			return rest.Conflict("tenant %q is being deleted", name)
		}
		machines, err = machinesOf(r, "tenant", name)
		return err
	})
	return tenant, machines, err
}

// talosAddresses are the addresses of the control-plane machines, and of all machines, sorted. The port is left out
// where it is Talos' own.
func talosAddresses(machines []*cloud.Machine) (endpoints, nodes []string) {
	for _, m := range machines {
		a, ok := addressOf(m)
		if !ok || m.Deleting() {
			continue
		}
		nodes = append(nodes, a.Host)
		if cloud.Role(m.Labels[cloud.LabelRole]) != cloud.RoleControlPlane {
			continue
		}
		endpoint := a.Host
		if a.Port != cloud.DefaultTalosPort {
			endpoint = a.String()
		}
		endpoints = append(endpoints, endpoint)
	}
	slices.Sort(endpoints)
	slices.Sort(nodes)
	return endpoints, slices.Compact(nodes)
}

func (s *service) secrets(ctx context.Context, tenant string) (*talos.Secrets, error) {
	secrets, err := s.Secrets.TenantSecrets(ctx, tenant)
	if errors.Is(err, store.ErrNotFound) {
		return nil, rest.Conflict("tenant %q has no secrets yet: they are made by its first apply", tenant)
	}
	return secrets, err
}

// issue records who got a credential, and hands it out.
func (s *service) issue(ctx context.Context, tenant *cloud.Tenant, what string, ttl time.Duration, file []byte) (*fileOutput, error) {
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		return s.audit(ctx, tx, auditEntry{
			Action: "issue-" + what, Kind: cloud.Tenants.Kind.Name, Name: tenant.Name, UID: tenant.UID,
			Detail: map[string]string{"ttl": ttl.String()},
		})
	})
	if err != nil {
		return nil, err
	}
	return &fileOutput{
		ContentType:        yamlType,
		ContentDisposition: fmt.Sprintf(`attachment; filename="%s.%s.yaml"`, tenant.Name, what),
		Body:               file,
	}, nil
}
