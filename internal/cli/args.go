package cli

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

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

// onInterrupt calls f on SIGINT or SIGTERM until stop is called.
func onInterrupt(f func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	done := make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
			f()
		case <-done:
		}
	}()
	return func() { signal.Stop(signals); close(done) }
}
