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

// timeoutError is the cause of giving up a wait.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("gave up after %s", e.after) }

func (a *app) waitCommand() *cobra.Command {
	var scope scopeFlags
	var what string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait TYPE/NAME…",
		Short: "Wait until resources are as you want them",
		Long: `Wait until resources are as you want them:

  active, forming, …     the phase of a tenant or node group, the stage of a machine
  ready, available, …    a boolean of the status, such as apiReady
  condition=TYPE         a condition is True; condition=TYPE=False waits for another status
  delete                 the resource is gone`,
		Example:           "  freehold wait tenant/prod --for=active --timeout 10m\n  freehold wait ng/prod-worker -t prod --for=ready\n  freehold wait tenant/prod --for=delete",
		ValidArgsFunction: a.completeRefs(&scope),
		RunE: func(cmd *cobra.Command, args []string) error {
			targets, err := waitTargets(args, scope)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return a.wait(cmd.Context(), targets, what, timeout)
		},
	}
	scope.add(a, cmd)
	cmd.Flags().StringVar(&what, "for", "active", "what to wait for")
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Minute, "how long to wait")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(
		[]string{"active", "ready", "available", "delete", "condition="}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func waitTargets(args []string, scope scopeFlags) ([]target, error) {
	refs, err := parseRefs(args)
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, r := range refs {
		if r.name == "" {
			return nil, fmt.Errorf("name the %s to wait for", r.plural)
		}
		parent, err := scope.owner(r.kind)
		if err != nil {
			return nil, err
		}
		targets = append(targets, target{r, parent})
	}
	return targets, nil
}

func (a *app) wait(ctx context.Context, targets []target, what string, timeout time.Duration) error {
	met, err := condition(what)
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &timeoutError{timeout})
	defer cancel()
	for _, t := range targets {
		if t.Kind == client.KindTenant && (what == activeTenant || what == readyTenant || what == goneTenant) {
			err = a.followTenant(ctx, c, t.name, what)
		} else {
			err = a.waitFor(ctx, c, t, met)
		}
		if what == "delete" && client.IsNotFound(err) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("wait for %s: %w", t, err)
		}
		if what == "delete" {
			a.printf("%s deleted\n", t)
		} else {
			a.printf("%s condition met\n", t)
		}
	}
	return nil
}

// condition understands what to wait for. Its answer tells whether a resource (nil: it is gone) is so, and what it
// is instead.
func condition(what string) (func(*client.Object) (bool, string), error) {
	if what == "delete" {
		return func(o *client.Object) (bool, string) { return o == nil, "it still exists" }, nil
	}
	field, want, conditional := strings.Cut(what, "=")
	if what == "" || conditional && (field != "condition" || want == "") {
		return nil, fmt.Errorf("--for=%s: wait for a phase, a boolean of the status, condition=TYPE, or delete", what)
	}
	return func(o *client.Object) (bool, string) {
		if o == nil {
			return false, "it is gone"
		}
		if conditional {
			return hasCondition(o, want)
		}
		return hasState(o, what)
	}, nil
}

func hasCondition(o *client.Object, want string) (bool, string) {
	name, status, given := strings.Cut(want, "=")
	if !given {
		status = string(cloud.ConditionTrue)
	}
	var s struct {
		Conditions []cloud.Condition `json:"conditions"`
	}
	_ = json.Unmarshal(o.Status, &s)
	for _, c := range s.Conditions {
		if strings.EqualFold(c.Type, name) {
			return strings.EqualFold(string(c.Status), status), fmt.Sprintf("%s is %s: %s", c.Type, c.Status, first(c.Message, c.Reason))
		}
	}
	return false, "it has no condition " + name
}

func hasState(o *client.Object, want string) (bool, string) {
	var s map[string]any
	_ = json.Unmarshal(o.Status, &s)
	if behind := behindSpec(o); behind != "" && (strings.EqualFold(want, activeTenant) || strings.EqualFold(want, readyTenant)) {
		return false, behind
	}
	for _, field := range []string{"phase", "stage"} {
		if v, ok := s[field].(string); ok && strings.EqualFold(v, want) {
			return true, ""
		}
	}
	for field, v := range s {
		if b, ok := v.(bool); ok && strings.EqualFold(field, want) {
			return b, fmt.Sprintf("%s is %t", field, b)
		}
	}
	is, _ := s["phase"].(string)
	if is == "" {
		is, _ = s["stage"].(string)
	}
	return false, "it is " + first(is, "without status")
}

// behindSpec tells of a node group whose status does not know its count yet: that of before a change of it.
func behindSpec(o *client.Object) string {
	var g struct {
		Count *int `json:"count"`
	}
	var s cloud.NodeGroupStatus
	if json.Unmarshal(o.Spec, &g) != nil || g.Count == nil || json.Unmarshal(o.Status, &s) != nil || s.Machines.Total == *g.Count {
		return ""
	}
	return fmt.Sprintf("it has %d machines, and %d are declared", s.Machines.Total, *g.Count)
}

// waitFor follows a resource until met is content.
func (a *app) waitFor(ctx context.Context, c *client.Client, t target, met func(*client.Object) (bool, string)) error {
	why := ""
	for e, err := range client.Objects(c, t.Kind, t.parent).Watch(ctx, client.WatchOptions{Name: t.name, OnRetry: a.reconnecting()}) {
		if err != nil {
			var late *timeoutError
			if errors.As(err, &late) && why != "" {
				return fmt.Errorf("%w: %s", err, why)
			}
			return err
		}
		if e.Type == client.Bookmark {
			continue
		}
		o := &e.Object
		if e.Type == client.Deleted {
			o = nil
		}
		var ok bool
		if ok, why = met(o); ok {
			return nil
		}
		if o == nil {
			return errors.New(why)
		}
	}
	return errors.New(why)
}
