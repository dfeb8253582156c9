package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/agentapi"
)

const (
	// logWait is how long the node is asked to wait for a line; less than its answer may take.
	logWait = 8 * time.Second
	// logRetry is how long to leave alone a node that cannot answer.
	logRetry = 2 * time.Second
)

type logFlags struct {
	follow, timestamps bool
	tail               int
}

func (a *app) streamLogsCommand() *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use: "logs", Short: "Print a stream's log, fetched from its node",
		Long: "Print a stream's log, fetched from its node: what the program wrote, what the engine says, and, marked, what the agent\n" +
			"did. The node keeps a bounded part of it.",
		Example: "  freehold stream logs local/orders\n  freehold stream logs orders --node local -f --tail 20 --timestamps",
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on printing what comes")
	cmd.Flags().IntVar(&f.tail, "tail", 100, "how many of the last lines to begin with")
	cmd.Flags().BoolVar(&f.timestamps, "timestamps", false, "print the time and the source of each line")
	return a.streamCommandFor(cmd, func(ctx context.Context, r streamRef) error {
		if f.tail < 1 {
			return &usageError{cmd.CommandPath(), fmt.Errorf("--tail takes a number above 0, not %d", f.tail)}
		}
		h, err := a.hubAPI()
		if err != nil {
			return err
		}
		return a.logs(ctx, h, r, f)
	})
}

func (a *app) logs(ctx context.Context, h client.Hub, r streamRef, f logFlags) error {
	o := client.LogOptions{Limit: f.tail}
	trouble := a.reconnecting()
	for started := false; ; {
		got, err := h.Logs(ctx, r.node, r.stream, o)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !f.follow || !started || !mayRecover(err):
			return err
		default:
			trouble(err)
			if err := pause(ctx, logRetry); err != nil {
				return err
			}
			continue
		}
		started = true
		for _, line := range got.Items {
			a.printf("%s\n", f.text(line))
		}
		if !f.follow {
			return nil
		}
		// The node waits for the next line. One that never logged has no cursor to wait behind.
		o = client.LogOptions{After: got.Next, Limit: logPage, Wait: logWait}
		if got.Next == 0 {
			if err := pause(ctx, logRetry/4); err != nil {
				return err
			}
		}
	}
}

// logPage is how many lines are asked for at once while following.
const logPage = 1000

func (f *logFlags) text(l agentapi.LogLine) string {
	text := strings.TrimRight(l.Text, "\r\n")
	switch {
	case f.timestamps:
		return fmt.Sprintf("%s %-6s %s", l.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00"), l.Source, text)
	case l.Source == "agent":
		return "agent: " + text
	}
	return text
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
