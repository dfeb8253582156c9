package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

func (a *app) streamWatchCommand() *cobra.Command {
	var nodes nodeFlag
	var out outputFlags
	var convergence string
	cmd := &cobra.Command{
		Use: "watch [STREAM]", Short: "Print what happens to streams, as it happens", Args: atMost(1),
		Long: "Print the streams that exist and then every change, with what happened (ADDED, MODIFIED, DELETED), until interrupted. Lost\n" +
			"connections are resumed.",
		Example: "  freehold stream watch\n  freehold stream watch --node local --convergence blocked\n" +
			"  freehold stream watch local/orders -o jsonpath='{.object.convergence}'",
		ValidArgsFunction: a.completeStreams(&nodes),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := client.StreamWatch{Node: nodes.node, Convergence: hub.ConvergenceState(convergence), OnRetry: a.reconnecting()}
			if len(args) == 1 {
				r, err := nodes.ref(args[0])
				if err != nil {
					return &usageError{cmd.CommandPath(), err}
				}
				o.Node, o.Stream = r.node, r.stream
			}
			return a.watchStreams(cmd.Context(), o, out)
		},
	}
	nodes.add(a, cmd, "the streams of this node only")
	out.addFormat(cmd)
	addConvergenceFlag(cmd, &convergence)
	return cmd
}

// streamRoom are the widths of the watch's columns, which do not move while it goes on.
var streamRoom = []int{8, 8, 16, 7, 8, 28, 8, 3, 5}

func (a *app) watchStreams(ctx context.Context, o client.StreamWatch, out outputFlags) error {
	p, err := a.newPrinter(out)
	if err != nil {
		return err
	}
	h, err := a.hubAPI()
	if err != nil {
		return err
	}
	t := &table{w: a.out, widths: slices.Clone(streamRoom)}
	if p.tabular() && !out.noHeaders {
		t.add(append([]string{"EVENT"}, p.wideCells(streamNoun.header, streamNoun.wide)...)...)
		if err := t.flush(); err != nil {
			return err
		}
	}
	for e, err := range h.Watch(ctx, o) {
		switch {
		case err != nil:
			return err
		case e.Type == client.Bookmark || e.Object.StreamID == hub.NodeConfig && o.Stream == "":
			continue
		case p.f.format == "name":
			_, err = fmt.Fprintf(p.w, "%s/%s\n", streamNoun.singular, streamNoun.name(&e.Object))
		case !p.tabular():
			err = p.structured(e)
		default:
			t.add(append([]string{e.Type}, p.wideCells(streamNoun.cells(&e.Object, p.now()))...)...)
			err = t.flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
