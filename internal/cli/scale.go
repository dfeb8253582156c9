package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
)

func (a *app) scaleCommand() *cobra.Command {
	var scope scopeFlags
	var n int
	cmd := &cobra.Command{
		Use:     "scale node-group NAME --count N -t TENANT",
		Short:   "Change the number of machines of a node group",
		Example: "  freehold scale node-group prod-worker -t prod --count 5\n  freehold wait ng/prod-worker -t prod --for=active",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"node-group"}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeRefs(&scope)(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := parseRefs(args)
			switch {
			case err != nil:
			case len(refs) != 1 || refs[0].name == "":
				err = errors.New("name one node group")
			case refs[0].Kind != client.KindNodeGroup:
				err = fmt.Errorf("%s cannot be scaled: only node groups can", refs[0].plural)
			case !cmd.Flags().Changed("count"):
				err = errors.New("tell the number of machines with --count")
			default:
				_, err = scope.owner(refs[0].kind)
			}
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			before := 0
			_, err = client.NodeGroups(c, scope.tenant).Modify(cmd.Context(), refs[0].name, func(g *client.NodeGroup) error {
				before, g.Spec.Count = g.Spec.Count, n
				return nil
			})
			if err != nil {
				return err
			}
			if before == n {
				a.printf("%s unchanged: its count is %d\n", refs[0], n)
				return nil
			}
			a.printf("%s scaled from %d to %d\n", refs[0], before, n)
			return nil
		},
	}
	scope.add(a, cmd)
	cmd.Flags().IntVar(&n, "count", 0, "number of machines")
	return cmd
}
