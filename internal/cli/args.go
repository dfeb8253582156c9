package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// exactly wants one argument for each name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return &usageError{cmd.CommandPath(), fmt.Errorf("%s is missing", strings.Join(names[len(args):], " "))}
		}
		return atMost(len(names))(cmd, args)
	}
}

// atMost allows so many arguments.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return &usageError{cmd.CommandPath(), fmt.Errorf("unexpected argument %q", args[n])}
		}
		return nil
	}
}
