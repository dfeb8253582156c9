// Command freehold is the management plane and its client: one program, as the server, as a sandbox on one computer,
// and on an operator's laptop.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/internal/cli"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(cli.Run(ctx, rootCommand()))
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "freehold",
		Short:   "A private cloud that its owner holds outright",
		Version: version,
	}
	root.SetVersionTemplate("freehold {{.Version}}\n")
	cli.Attach(root, cli.Options{Version: version})
	for _, c := range []*cobra.Command{serverCommand(), devCommand()} {
		c.GroupID = cli.GroupServer
		root.AddCommand(c)
	}
	root.AddCommand(versionCommand(), tofuRunCommand())
	root.AddCommand(agentCommands()...)
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs, GroupID: cli.GroupOther,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "freehold", version)
			return err
		},
	}
}
