package cli

import (
	"errors"
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

// noCommand is for a command whose arguments are commands: one that reaches it is none of them.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	_, above, _ := strings.Cut(cmd.CommandPath(), " ")
	text := fmt.Sprintf("there is no command %q", strings.TrimSpace(above+" "+args[0]))
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return &usageError{cmd.CommandPath(), errors.New(text)}
}
