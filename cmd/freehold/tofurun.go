package main

import (
	"os"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/internal/cloud/talos/provider"
	"freehold.dev/freehold/internal/cloud/tofu"
)

// tofuRunCommand is the supervisor of one run of OpenTofu: the plane starts it as a process of its own, which
// outlives the plane.
func tofuRunCommand() *cobra.Command {
	return &cobra.Command{
		Use: "tofu-run", Hidden: true, DisableFlagParsing: true,
		// It handles its signals itself: one that asks it to stop leaves time to save the state.
		Run: func(cmd *cobra.Command, args []string) {
			os.Exit(tofu.RunMain(cmd.Context(), args, tofu.Providers{provider.Address: provider.New(version)}))
		},
	}
}
