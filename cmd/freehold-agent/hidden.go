package main

import (
	"os"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/supervise"
)

// superviseCommand is the process between the agent and a run's program.
func superviseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "supervise", Hidden: true, DisableFlagParsing: true,
		Run: func(*cobra.Command, []string) { os.Exit(supervise.Main()) },
	}
}

// streamHostCommand is the process that runs one pipeline.
func streamHostCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stream-host", Hidden: true, DisableFlagParsing: true,
		Run: func(*cobra.Command, []string) { os.Exit(benthos.Host()) },
	}
}
