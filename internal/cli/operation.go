package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

var operationNoun = noun[client.Operation]{
	singular: "operation", plural: "operations",
	header: []string{"OPERATION", "RESOURCE", "WHAT", "ASKED-FOR", "STATE", "ATTEMPTS", "BY", "AGE", "TOOK"},
	wide:   []string{"CORRELATION", "FAILURE"},
	name:   func(o *client.Operation) string { return o.IntentID },
	cells: func(o *client.Operation, now time.Time) ([]string, []string) {
		want, took, failure := words(string(o.DesiredState), o.ConfigVersion), "", ""
		if o.FinishedAt != nil {
			took = seconds(o.FinishedAt.Sub(o.CreatedAt))
		}
		if o.Failure != nil {
			failure = failureText(o.Failure)
		}
		return []string{
			o.IntentID, hub.StreamName(o.NodeID, o.ResourceID), string(o.Operation), want, string(o.State), fmt.Sprint(o.Attempts),
			o.Principal, since(o.CreatedAt, now), took,
		}, []string{o.CorrelationID, failure}
	},
}

func (a *app) operationCommand() *cobra.Command {
	return parentCommand("operation", "See what was asked of nodes, and what became of it",
		"See what was asked of nodes, and what became of it. Every change that the server accepted is an operation: it converges, is blocked,\n"+
			"is cancelled, or is superseded by a later one.",
		a.operationListCommand(), a.operationShowCommand(), a.operationCancelCommand())
}

func (a *app) operationListCommand() *cobra.Command {
	var out outputFlags
	var f client.OperationFilter
	var limit int
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List operations, the newest first", Args: atMost(0),
		Example: "  freehold operation list --node local --stream orders\n  freehold operation list --state blocked -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(a, out, operationNoun, func(h client.Hub) ([]client.Operation, error) { return h.Operations(cmd.Context(), f, limit) })
		},
	}
	cmd.Flags().StringVarP(&f.Node, "node", "n", "", "those of this node only")
	cmd.Flags().StringVar(&f.Resource, "stream", "", "those of streams of this name only; "+hub.NodeConfig+" is a node's own configuration")
	cmd.Flags().StringVar(&f.Operation, "operation", "", "those that do this only: set_state, restart, config_apply or config_rollback")
	cmd.Flags().StringVar(&f.State, "state", "", "those in this state only: accepted, converging, converged, retrying, blocked, superseded or cancelled")
	cmd.Flags().StringVar(&f.CorrelationID, "correlation-id", "", "those of this request only")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many to list; 0: all that are kept")
	_ = cmd.RegisterFlagCompletionFunc("node", a.completeNodes())
	out.addFormat(cmd)
	return cmd
}

func (a *app) operationShowCommand() *cobra.Command {
	var out outputFlags
	cmd := &cobra.Command{
		Use: "show OPERATION", Short: "Show an operation: what was asked for, what was tried, what came of it", Args: exactly("OPERATION"),
		Example: "  freehold operation show intent-4-17", ValidArgsFunction: a.completeOperations(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(a, out, operationNoun, func(h client.Hub) (*client.Operation, error) { return h.Operation(cmd.Context(), args[0]) },
				func(d *description, _ client.Hub, o *client.Operation) error { d.operation(o); return nil })
		},
	}
	out.addFormat(cmd)
	return cmd
}

func (d *description) operation(o *client.Operation) {
	want := hub.Desired{State: o.DesiredState, Generation: o.Generation, ConfigVersion: o.ConfigVersion, ActionID: o.ActionID}
	d.line("Operation", "%s", o.IntentID)
	d.line("Resource", "%s", hub.StreamName(o.NodeID, o.ResourceID))
	d.line("What", "%s", o.Operation)
	d.line("Asked for", "%s", desiredText(&want))
	d.line("State", "%s", o.State)
	d.line("Convergence", "%s", convergenceText(o.Convergence, o.ConvergenceReason))
	d.line("Observed", "%s", first(observedText(o.Observed), "<nothing yet>"))
	if o.Failure != nil {
		d.line("Failure", "%s", failureText(o.Failure))
	}
	d.line("By", "%s, request %s", o.Principal, o.CorrelationID)
	d.line("Accepted", "%s", d.when(o.CreatedAt))
	if o.FinishedAt != nil {
		d.line("Ended", "%s, after %s", d.when(*o.FinishedAt), seconds(o.FinishedAt.Sub(o.CreatedAt)))
	}
	retry := fmt.Sprintf("%d of %d", o.Retry.Count, o.Retry.Budget)
	if o.Retry.NextAt != nil {
		retry += ", the next in " + age(o.Retry.NextAt.Sub(d.now))
	}
	d.line("Retries", "%s", retry)
	if o.Attempt == nil {
		d.line("Attempts", "%d", o.Attempts)
		return
	}
	d.line("Attempt", "%s, %s (attempt %d)", o.AttemptID, o.Attempt.State, o.Attempts)
	for _, step := range []struct {
		name string
		at   *time.Time
	}{{"  Sent", o.Attempt.DispatchedAt}, {"  Acknowledged", o.Attempt.AcknowledgedAt}, {"  Ended", o.Attempt.FinishedAt}} {
		if step.at != nil {
			d.line(step.name, "%s", d.when(*step.at))
		}
	}
	if o.Attempt.Result != nil {
		d.line("  Result", "%s", failureText(o.Attempt.Result))
	}
}

func (a *app) operationCancelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel OPERATION", Short: "Cancel an operation: what was not sent to the node is not sent any more", Args: exactly("OPERATION"),
		Long: "Cancel an operation: what was not sent to the node is not sent any more, and the stream is blocked until its next change. What\n" +
			"was sent is not undone; the operation goes on to show what came of it.",
		Example: "  freehold operation cancel intent-4-17", ValidArgsFunction: a.completeOperations(),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.hubAPI()
			if err != nil {
				return err
			}
			o, err := h.CancelOperation(cmd.Context(), args[0], client.MutationOptions{})
			if err != nil {
				return err
			}
			a.printf("operation/%s %s\n", o.IntentID, o.State)
			if o.Attempt != nil && o.Attempt.State != hub.Suppressed && o.Attempt.State != hub.Claimed {
				a.notef("It was sent to the node before (%s): what the node does of it is not undone.\n", o.Attempt.State)
			}
			return nil
		},
	}
	return cmd
}

func (a *app) completeOperations() completer {
	return a.completeWith(func(ctx context.Context, h client.Hub) ([]string, error) {
		ops, err := h.Operations(ctx, client.OperationFilter{}, 50)
		var names []string
		for i := range ops {
			names = append(names, ops[i].IntentID)
		}
		return names, err
	})
}
