package main

import (
	"os"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/internal/agent/engine/supervise"
)

// superviseCommand is the process between the agent and a run's program.
func superviseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "supervise", Hidden: true, DisableFlagParsing: true,
		Run: func(*cobra.Command, []string) { os.Exit(supervise.Main()) },
	}
}
