package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"freehold.dev/freehold/client"
)

// scopeFlags tell whose resources are meant.
type scopeFlags struct {
	tenant, user string
	all          bool
}

func (f *scopeFlags) add(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.tenant, "tenant", "t", "", "the tenant of node groups and machines")
	cmd.Flags().StringVar(&f.user, "user", "", "the user of tokens")
	_ = cmd.RegisterFlagCompletionFunc("tenant", a.completeNames(client.KindTenant))
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeNames(client.KindUser))
}

// parent is the one that owns resources of the kind: "" for all of them.
func (f *scopeFlags) parent(k *kind) string {
	switch {
	case k.scope == "user":
		return f.user
	case k.scope == "tenant" || k.Kind == client.KindMachine:
		return f.tenant
	}
	return ""
}

// owner is parent for a kind that needs one.
func (f *scopeFlags) owner(k *kind) (string, error) {
	p := f.parent(k)
	if p == "" && k.scope == "tenant" {
		return "", fmt.Errorf("%s belong to a tenant: name it with -t TENANT", k.plural)
	}
	if p == "" && k.scope == "user" {
		return "", fmt.Errorf("%s belong to a user: name it with --user NAME", k.plural)
	}
	return p, nil
}

func (a *app) getCommand() *cobra.Command {
	var scope scopeFlags
	var out outputFlags
	var selector string
	var watch bool
	cmd := &cobra.Command{
		Use:   "get TYPE [NAME…] | TYPE/NAME…",
		Short: "List resources, or show some by name",
		Long: "List resources, or show some by name.\n\nTypes: tenants (tn), node-groups (ng), machines (m), providers, users, tokens.\n" +
			"Without -t, node groups are those of every tenant, and machines those of every tenant and of none.",
		Example: "  freehold get tenants\n  freehold get machines -t prod -o wide\n  freehold get ng -l rezuscloud.io/role=worker\n" +
			"  freehold get tenant prod -o yaml > prod.yaml\n  freehold get tenants -w",
		ValidArgsFunction: a.completeRefs(&scope),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := parseRefs(args)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return a.get(cmd.Context(), refs, scope, out, selector, watch)
		},
	}
	scope.add(a, cmd)
	out.add(cmd)
	cmd.Flags().BoolVarP(&scope.all, "all-tenants", "A", false, "node groups and machines of every tenant")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "label selector, such as env=prod,tier!=db")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep printing what changes")
	cmd.Flags().BoolVar(&out.events, "output-watch-events", false, "with -w, tell what happened to each")
	return cmd
}

func (a *app) get(ctx context.Context, refs []ref, scope scopeFlags, out outputFlags, selector string, watch bool) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	if scope.all {
		scope.tenant = ""
	}
	out.allTenants, out.watch = scope.tenant == "", watch
	p, err := a.newPrinter(out)
	if err != nil {
		return err
	}
	named := refs[0].name != ""
	switch {
	case watch:
		if len(refs) > 1 {
			return errors.New("one type, or one resource, can be watched at a time")
		}
		return a.follow(ctx, c, p, refs[0], scope, selector)
	case named && selector != "":
		return errors.New("a selector and names exclude each other")
	case named:
		return a.getNamed(ctx, c, p, refs, scope)
	}
	for _, r := range refs {
		items, revision, err := listAll(ctx, c, r.kind, scope, selector)
		if err != nil {
			return err
		}
		if len(items) == 0 && p.tabular() {
			a.notef("No %s found%s.\n", r.plural, in(scope.parent(r.kind)))
			continue
		}
		if err := p.list(r.kind, items, revision, false); err != nil {
			return err
		}
	}
	return nil
}

func in(parent string) string {
	if parent == "" {
		return ""
	}
	return " in " + parent
}

// getNamed prints what is found of the named resources, then tells what is missing.
func (a *app) getNamed(ctx context.Context, c *client.Client, p *printer, refs []ref, scope scopeFlags) error {
	var errs []error
	found := map[client.Kind][]client.Object{}
	var order []*kind
	for _, r := range refs {
		parent, err := scope.owner(r.kind)
		if err != nil {
			return err
		}
		o, err := client.Objects(c, r.Kind, parent).Get(ctx, r.name)
		switch {
		case client.IsNotFound(err):
			errs = append(errs, err)
			continue
		case err != nil:
			return err
		}
		if len(found[r.Kind]) == 0 {
			order = append(order, r.kind)
		}
		found[r.Kind] = append(found[r.Kind], *o)
	}
	for _, k := range order {
		if err := p.list(k, found[k.Kind], 0, len(refs) == 1); err != nil {
			return err
		}
	}
	for _, err := range errs {
		tell(a.err, err)
	}
	if len(errs) > 0 {
		return errTold
	}
	return nil
}

// listAll reads every resource of a kind in the scope, those of scoped kinds owner by owner.
func listAll(ctx context.Context, c *client.Client, k *kind, scope scopeFlags, selector string) ([]client.Object, int64, error) {
	o := client.ListOptions{Selector: selector}
	if parent := scope.parent(k); parent != "" || k.scope == "" {
		l, err := client.Objects(c, k.Kind, parent).List(ctx, o)
		if err != nil {
			return nil, 0, err
		}
		return l.Items, l.Metadata.ResourceVersion, nil
	}
	ownerKind := client.KindTenant
	if k.scope == "user" {
		ownerKind = client.KindUser
	}
	owners, err := client.Objects(c, ownerKind, "").List(ctx, client.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	return listOwned(ctx, c, k, owners, o)
}

func listOwned(ctx context.Context, c *client.Client, k *kind, owners *client.List[client.Object], o client.ListOptions) ([]client.Object, int64, error) {
	lists := make([][]client.Object, len(owners.Items))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, owner := range owners.Items {
		g.Go(func() error {
			l, err := client.Objects(c, k.Kind, owner.Metadata.Name).List(ctx, o)
			if client.IsNotFound(err) {
				return nil // its owner went meanwhile
			}
			if err != nil {
				return err
			}
			lists[i] = l.Items
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, 0, err
	}
	var all []client.Object
	for _, l := range lists {
		all = append(all, l...)
	}
	return all, owners.Metadata.ResourceVersion, nil
}

// follow prints what exists and then what changes, until ctx ends.
func (a *app) follow(ctx context.Context, c *client.Client, p *printer, r ref, scope scopeFlags, selector string) error {
	parent, err := scope.owner(r.kind)
	if err != nil {
		return err
	}
	o := client.WatchOptions{Name: r.name, Selector: selector, OnRetry: a.reconnecting()}
	var initial []client.Object
	started := false
	for e, err := range client.Objects(c, r.Kind, parent).Watch(ctx, o) {
		switch {
		case err != nil:
			return err
		case e.Type == client.Bookmark:
			if !started && p.tabular() && len(initial) > 0 && !p.f.events {
				err = p.rows(r.kind, initial, "")
			}
			started = true
		case !started && p.tabular() && !p.f.events:
			initial = append(initial, e.Object) // one table, not one for each
		default:
			err = p.event(r.kind, e.Type, &e.Object)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reconnecting tells once that a connection was lost.
func (a *app) reconnecting() func(error) {
	told := ""
	return func(err error) {
		if text := err.Error(); text != told {
			told = text
			a.notef("Warning: %v; trying again\n", err)
		}
	}
}

func (a *app) watchCommand() *cobra.Command {
	var scope scopeFlags
	var out outputFlags
	var selector string
	cmd := &cobra.Command{
		Use:   "watch TYPE [NAME]",
		Short: "Print what happens to resources, as it happens",
		Long:  "Print what exists and then every change, with what happened (ADDED, MODIFIED, DELETED), until interrupted. Lost connections are resumed.",
		Example: "  freehold watch machines\n  freehold watch machines -t prod -o wide\n" +
			"  freehold watch tenant prod -o jsonpath='{.object.status.phase}'",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeRefs(&scope),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := parseRefs(args)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			out.events = true
			return a.get(cmd.Context(), refs, scope, out, selector, true)
		},
	}
	scope.add(a, cmd)
	out.add(cmd)
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "label selector, such as env=prod,tier!=db")
	return cmd
}
