package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

func (a *app) createCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "create TYPE NAME | create -f FILE",
		Short:   "Create a resource",
		Example: "  freehold create tenant prod --control-planes 1 --workers 2\n  freehold create -f prod.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("%q cannot be created: choose one of tenant, node-group, machine, user, token, or -f FILE", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return cmd.Help()
			}
			return a.createFrom(cmd.Context(), file)
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file, folder or - (standard input) of resources to create")
	cmd.AddCommand(a.createTenantCommand(), a.createNodeGroupCommand(), a.createMachineCommand(), a.createUserCommand(), a.createTokenCommand())
	return cmd
}

// createFrom creates what a file declares; what exists already is an error.
func (a *app) createFrom(ctx context.Context, file string) error {
	manifests, err := a.readManifests([]string{file})
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	for _, m := range manifests {
		o, err := client.Objects(c, m.kind.Kind, m.parent).Create(ctx, m.object())
		if err != nil {
			return fmt.Errorf("%s: %w", m.where, err)
		}
		a.printf("%s/%s created\n", m.kind.singular, o.Metadata.Name)
	}
	return nil
}

// groupFlags describe the machines of a node group.
type groupFlags struct {
	provider  string
	selector  string
	addresses []string
}

func (f *groupFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.provider, "provider", "metal", "provider of the machines")
	cmd.Flags().StringVar(&f.selector, "selector", "", "metal: take unassigned machines with these labels")
	cmd.Flags().StringSliceVar(&f.addresses, "address", nil, "metal: take the machines at these addresses, HOST or HOST:PORT each")
}

// config is the providerConfig of a group of n machines, which take the first n addresses.
func (f *groupFlags) config(addresses []string) (json.RawMessage, error) {
	switch {
	case len(addresses) == 1:
		return json.Marshal(map[string]string{"address": addresses[0]})
	case len(addresses) > 1:
		return json.Marshal(map[string][]string{"addresses": addresses})
	case f.selector != "":
		return json.Marshal(map[string]string{"selector": f.selector})
	}
	return nil, nil
}

type tenantFlags struct {
	spec                   cloud.TenantSpec
	controlPlanes, workers int
	groups                 groupFlags
	labels                 map[string]string
	wait                   bool
	timeout                time.Duration
}

// Versions that a tenant gets unless others are asked for.
const (
	defaultTalos      = "1.12.6"
	defaultKubernetes = "1.35.0"
)

func (a *app) createTenantCommand() *cobra.Command {
	var f tenantFlags
	cmd := &cobra.Command{
		Use:   "tenant NAME",
		Short: "Create a tenant: a Kubernetes cluster",
		Long: "Create a tenant: a Kubernetes cluster. With --control-planes and --workers its two node groups are created too,\n" +
			"named NAME-control-plane and NAME-worker.",
		Example: "  freehold create tenant prod --control-planes 3 --workers 5 --wait\n" +
			"  freehold create tenant lab --control-planes 1 --address 10.0.0.9\n" +
			"  freehold create tenant prod --kubernetes-version 1.34.2 --endpoint https://prod.example.com:6443",
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.createTenant(cmd.Context(), args[0], &f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.spec.KubernetesVersion, "kubernetes-version", defaultKubernetes, "version of Kubernetes")
	fl.StringVar(&f.spec.TalosVersion, "talos-version", defaultTalos, "version of Talos")
	fl.StringVar(&f.spec.ControlPlaneEndpoint, "endpoint", "", "URL of the Kubernetes API; default: that of the first control-plane machine")
	fl.StringSliceVar(&f.spec.PodNetwork, "pod-network", nil, "CIDRs of the pods")
	fl.StringSliceVar(&f.spec.ServiceNetwork, "service-network", nil, "CIDRs of the services")
	fl.StringVar(&f.spec.Plugins.CNI.Type, "cni", "", "pod network: flannel (default), cilium or none")
	fl.IntVar(&f.controlPlanes, "control-planes", 0, "number of control-plane machines")
	fl.IntVar(&f.workers, "workers", 0, "number of worker machines")
	fl.StringToStringVar(&f.labels, "labels", nil, "labels, as KEY=VALUE")
	f.groups.add(cmd)
	addWaitFlags(cmd, &f.wait, &f.timeout, false, "wait until the tenant is active and ready")
	return cmd
}

func addWaitFlags(cmd *cobra.Command, wait *bool, timeout *time.Duration, byDefault bool, usage string) {
	cmd.Flags().BoolVar(wait, "wait", byDefault, usage)
	cmd.Flags().DurationVar(timeout, "timeout", 15*time.Minute, "how long to wait")
}

// nodeGroups are the groups that the flags ask for: the control plane takes the first addresses.
func (f *tenantFlags) nodeGroups(tenant string) ([]*client.NodeGroup, error) {
	if f.controlPlanes < 0 || f.workers < 0 {
		return nil, errors.New("numbers of machines cannot be negative")
	}
	if n := len(f.groups.addresses); n > 0 && n != f.controlPlanes+f.workers {
		return nil, fmt.Errorf("give one --address for each machine, those of the control plane first: %d given, %d needed", n, f.controlPlanes+f.workers)
	}
	if f.workers > 0 && f.controlPlanes == 0 {
		return nil, errors.New("workers need a control plane: give --control-planes too")
	}
	var groups []*client.NodeGroup
	addresses := f.groups.addresses
	for _, part := range []struct {
		name  string
		role  cloud.Role
		count int
	}{{tenant + "-control-plane", cloud.RoleControlPlane, f.controlPlanes}, {tenant + "-worker", cloud.RoleWorker, f.workers}} {
		if part.count == 0 {
			continue
		}
		mine := addresses[:min(part.count, len(addresses))]
		addresses = addresses[len(mine):]
		g, err := f.groups.nodeGroup(part.name, part.role, part.count, mine)
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func (f *groupFlags) nodeGroup(name string, role cloud.Role, n int, addresses []string) (*client.NodeGroup, error) {
	cfg, err := f.config(addresses)
	return &client.NodeGroup{
		Metadata: client.Metadata{Name: name, Labels: map[string]string{cloud.LabelRole: string(role)}},
		Spec:     cloud.NodeGroupSpec{Count: n, ProviderClass: f.provider, ProviderConfig: cfg},
	}, err
}

func (a *app) createTenant(ctx context.Context, name string, f *tenantFlags) error {
	groups, err := f.nodeGroups(name)
	if err != nil {
		return err
	}
	if f.wait && len(groups) == 0 {
		return errors.New("a tenant without machines does not become active: give --control-planes, or leave --wait out")
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	in := &client.Tenant{Metadata: client.Metadata{Name: name, Labels: f.labels}, Spec: f.spec}
	if _, err := client.Tenants(c).Create(ctx, in); err != nil {
		return err
	}
	a.printf("tenant/%s created\n", name)
	for _, g := range groups {
		if _, err := client.NodeGroups(c, name).Create(ctx, g); err != nil {
			return fmt.Errorf("node group %s was not created, though its tenant was: %w", g.Metadata.Name, err)
		}
		a.printf("node-group/%s created\n", g.Metadata.Name)
	}
	if !f.wait {
		return nil
	}
	return a.waitForTenant(ctx, c, name, readyTenant, f.timeout)
}

func (a *app) createNodeGroupCommand() *cobra.Command {
	var tenant, role string
	var n int
	var f groupFlags
	cmd := &cobra.Command{
		Use:     "node-group [NAME]",
		Aliases: []string{"nodegroup", "ng"},
		Short:   "Create a node group: machines of one role in a tenant",
		Long:    "Create a node group: machines of one role in a tenant. Without NAME the server names it after the tenant and role.",
		Example: "  freehold create node-group gpu -t prod --role worker --count 2 --selector gpu=yes",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if tenant == "" {
				return &usageError{cmd.CommandPath(), errors.New("name the tenant with -t TENANT")}
			}
			if len(f.addresses) > 0 && !cmd.Flags().Changed("count") {
				n = len(f.addresses)
			}
			g, err := f.nodeGroup(strings.Join(args, ""), cloud.Role(role), n, f.addresses)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			made, err := client.NodeGroups(c, tenant).Create(cmd.Context(), g)
			if err != nil {
				return err
			}
			a.printf("node-group/%s created\n", made.Metadata.Name)
			return nil
		},
	}
	cmd.Flags().StringVarP(&tenant, "tenant", "t", "", "the tenant")
	cmd.Flags().StringVar(&role, "role", string(cloud.RoleWorker), "role of the machines: controlplane or worker")
	cmd.Flags().IntVar(&n, "count", 1, "number of machines")
	f.add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("tenant", a.completeNames(client.KindTenant))
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"controlplane", "worker"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) createMachineCommand() *cobra.Command {
	var address string
	var labels map[string]string
	cmd := &cobra.Command{
		Use:     "machine --address HOST[:PORT]",
		Aliases: []string{"m"},
		Short:   "Register a machine that runs Talos in maintenance mode",
		Example: "  freehold create machine --address 10.0.0.9 --labels rack=b,gpu=yes",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("the server names machines itself: tell where it is with --address %s", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if address == "" {
				return &usageError{cmd.CommandPath(), errors.New("tell where it is with --address HOST")}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			made, err := client.Machines(c).Create(cmd.Context(), &client.Machine{
				Metadata: client.Metadata{Labels: labels}, Spec: client.MachineSpec{ManagementAddress: address},
			})
			if err != nil {
				return err
			}
			a.printf("machine/%s created\n", made.Metadata.Name)
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "address", "", "where its Talos API listens; default port: 50000")
	cmd.Flags().StringToStringVar(&labels, "labels", nil, "labels, as KEY=VALUE")
	return cmd
}
