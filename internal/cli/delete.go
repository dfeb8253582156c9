package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

func (a *app) deleteCommand() *cobra.Command {
	var scope scopeFlags
	var files []string
	var f deleteFlags
	cmd := &cobra.Command{
		Use:   "delete TYPE NAME… | TYPE/NAME… | -f FILE",
		Short: "Delete resources, and wait until they are gone",
		Long: "Delete resources, and wait until they are gone: until a tenant's machines are released, a machine is reset.\n" +
			"A machine that is deleted from its tenant is reset and forgotten; another takes its place, unless --scale-down lowers\n" +
			"its node group's count. To use it again, register it again.",
		Example:           "  freehold delete tenant prod\n  freehold delete ng gpu -t prod --wait=false\n  freehold delete -f prod.yaml",
		ValidArgsFunction: a.completeRefs(&scope),
		RunE: func(cmd *cobra.Command, args []string) error {
			targets, err := a.deletions(args, files, scope)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return a.delete(cmd.Context(), targets, f)
		},
	}
	scope.add(a, cmd)
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, folder or - (standard input) of resources to delete")
	cmd.Flags().BoolVar(&f.scaleDown, "scale-down", false, "for a tenant's machine: lower its node group's count, so that it is not replaced")
	cmd.Flags().BoolVar(&f.ignoreMissing, "ignore-not-found", false, "what does not exist is no error")
	addWaitFlags(cmd, &f.wait, &f.timeout, true, "wait until the resources are gone")
	return cmd
}

type deleteFlags struct {
	wait, scaleDown, ignoreMissing bool
	timeout                        time.Duration
}

// target is a resource with its owner.
type target struct {
	ref
	parent string
}

func (a *app) deletions(args, files []string, scope scopeFlags) ([]target, error) {
	var targets []target
	if len(files) > 0 {
		if len(args) > 0 {
			return nil, errors.New("names and files exclude each other")
		}
		manifests, err := a.readManifests(files)
		if err != nil {
			return nil, err
		}
		for _, m := range slices.Backward(manifests) { // what needs others goes first
			if m.name == "" {
				return nil, fmt.Errorf("%s: metadata.name is missing", m.where)
			}
			targets = append(targets, target{ref{m.kind, m.name}, m.parent})
		}
		return a.withoutOwned(targets), nil
	}
	refs, err := parseRefs(args)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		if r.name == "" {
			return nil, fmt.Errorf("name the %s to delete", r.plural)
		}
		parent, err := scope.owner(r.kind)
		if err != nil {
			return nil, err
		}
		targets = append(targets, target{r, parent})
	}
	return targets, nil
}

// withoutOwned leaves out node groups whose tenant is deleted too: they go with it, in the order that the server knows.
func (a *app) withoutOwned(targets []target) []target {
	tenants := map[string]bool{}
	for _, t := range targets {
		if t.Kind == client.KindTenant {
			tenants[t.name] = true
		}
	}
	return slices.DeleteFunc(targets, func(t target) bool {
		owned := t.Kind == client.KindNodeGroup && tenants[t.parent]
		if owned {
			a.printf("%s goes with tenant/%s\n", t, t.parent)
		}
		return owned
	})
}

func (a *app) delete(ctx context.Context, targets []target, f deleteFlags) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	var pending []target
	failed := false
	for _, t := range targets {
		t, err = locate(ctx, c, t)
		var gone *client.Object
		if err == nil {
			gone, err = client.Objects(c, t.Kind, t.parent).Delete(ctx, t.name, client.DeleteOptions{ScaleDown: f.scaleDown})
		}
		switch {
		case client.IsNotFound(err) && f.ignoreMissing:
			continue
		case err != nil:
			if ctx.Err() != nil || client.IsConnect(err) {
				return err
			}
			failed = true
			tell(a.err, err)
			continue
		case len(gone.Metadata.Finalizers) > 0 && f.wait:
			a.printf("%s is being deleted\n", t)
			pending = append(pending, t)
		case len(gone.Metadata.Finalizers) > 0:
			a.printf("%s is being deleted\n", t)
		default:
			a.printf("%s deleted\n", t)
		}
	}
	if err := a.waitGone(ctx, c, pending, f.timeout); err != nil {
		return err
	}
	if failed {
		return errTold
	}
	return nil
}

// locate finds the tenant of a machine that was named without it.
func locate(ctx context.Context, c *client.Client, t target) (target, error) {
	if t.Kind != client.KindMachine || t.parent != "" {
		return t, nil
	}
	m, err := client.Machines(c).Get(ctx, t.name)
	if err != nil {
		return t, err
	}
	t.parent = m.Metadata.Labels[cloud.LabelTenant]
	return t, nil
}

func (a *app) waitGone(ctx context.Context, c *client.Client, pending []target, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &timeoutError{timeout})
	defer cancel()
	for _, t := range pending {
		var err error
		if t.Kind == client.KindTenant {
			err = a.followTenant(ctx, c, t.name, goneTenant)
		} else {
			err = a.waitFor(ctx, c, t, func(o *client.Object) (bool, string) { return o == nil, "" })
		}
		if err != nil && !client.IsNotFound(err) {
			return fmt.Errorf("%s is not gone yet, its deletion goes on: %w", t, err)
		}
		a.printf("%s deleted\n", t)
	}
	return nil
}
