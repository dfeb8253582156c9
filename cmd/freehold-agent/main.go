// Command freehold-agent keeps the streams of a node true: it dials the hub, takes over what is declared for the node,
// and runs it, with the hub or without.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/agent/engine/process"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "freehold-agent", Short: "Keeps the streams of a node true", Version: version,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) },
	}
	root.SetVersionTemplate("freehold-agent {{.Version}}\n")
	root.AddCommand(enrollCommand(), runCommand(), statusCommand(), versionCommand(), superviseCommand(), streamHostCommand())
	return root
}

const envPrefix = "FREEHOLD_AGENT_"

// fromEnvironment takes what is not given as a flag from FREEHOLD_AGENT_<NAME>.
func fromEnvironment(f *pflag.FlagSet) (err error) {
	f.VisitAll(func(flag *pflag.Flag) {
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		if value, found := os.LookupEnv(name); found && !flag.Changed && err == nil {
			if err = f.Set(flag.Name, value); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
		}
	})
	return err
}

func dataFlag(cmd *cobra.Command) {
	cmd.Flags().String("data", "/var/lib/freehold-agent", "the folder that holds everything of this node; it is as secret as the node's identity")
}

// config is what each command needs to know of the agent.
func config(cmd *cobra.Command) (agent.Config, error) {
	exe, err := os.Executable()
	if err != nil {
		return agent.Config{}, err
	}
	data, _ := cmd.Flags().GetString("data")
	return agent.Config{
		Data: data, Version: version,
		SuperviseCommand: []string{exe, "supervise"}, HostCommand: []string{exe, "stream-host"},
		Environment: os.LookupEnv, BaseEnvironment: process.BaseEnv(os.Environ()),
	}, nil
}

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run", Short: "Run the agent", Args: cobra.NoArgs,
		Long: `Runs the streams of this node until it is stopped by SIGINT or SIGTERM; they are drained then. The node has to be
enrolled. What was accepted runs with the server gone, too, and after a reboot. Logs go to the standard error, as JSON.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config(cmd)
			if err != nil {
				return err
			}
			c.LogLevel = &slog.LevelVar{}
			level, _ := cmd.Flags().GetString("log-level")
			if err := c.LogLevel.UnmarshalText([]byte(level)); err != nil {
				return fmt.Errorf("--log-level: %w", err)
			}
			c.Logger = slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: c.LogLevel}))
			return agent.Run(cmd.Context(), c)
		},
	}
	dataFlag(cmd)
	cmd.Flags().String("log-level", "info", "debug, info, warn or error; the node-wide configuration may change it")
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "freehold-agent", version)
			return err
		},
	}
}
