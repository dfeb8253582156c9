package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/hub"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the node's streams and its connection to the server", Args: cobra.NoArgs,
		Long: `Shows what the agent knows, from the agent when it runs, else from what it left in its data folder.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, _ := cmd.Flags().GetString("data")
			s, err := agent.ReadStatus(cmd.Context(), data)
			if err != nil {
				return err
			}
			switch output, _ := cmd.Flags().GetString("output"); output {
			case "json":
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(s)
			case "table":
				return printStatus(cmd.OutOrStdout(), s)
			default:
				return fmt.Errorf("--output: %q is neither table nor json", output)
			}
		},
	}
	dataFlag(cmd)
	cmd.Flags().StringP("output", "o", "table", "table or json")
	return cmd
}

func printStatus(out io.Writer, s *agent.Status) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("NODE\t%s", s.NodeID)
	line("AGENT\t%s", describeAgent(s))
	line("HUB\t%s", describeHub(s))
	if s.Problem != "" {
		line("PROBLEM\t%s", s.Problem)
	}
	line("")
	line("STREAM\tSTATE\tWANTED\tGENERATION\tCONFIG\tRESTARTS\tPROBLEM")
	for _, st := range s.Streams {
		if st.State == hub.Absent {
			continue
		}
		line("%s\t%s\t%s\t%d\t%s\t%d\t%s", st.StreamID, st.State, st.Target.State, st.Generation, st.ConfigVersion, st.Restarts, describeError(st.Error))
	}
	return w.Flush()
}

func describeAgent(s *agent.Status) string {
	if !s.Running {
		return "not running"
	}
	return fmt.Sprintf("running since %s (pid %d, version %s)", s.StartedAt.Format(time.RFC3339), s.PID, s.Version)
}

func describeHub(s *agent.Status) string {
	switch {
	case !s.Running:
		return s.Hub.Server
	case s.Hub.Connected:
		return fmt.Sprintf("%s, connected since %s", s.Hub.Server, s.Hub.Since.Format(time.RFC3339))
	case s.Hub.Code == "":
		return s.Hub.Server + ", connecting"
	}
	return fmt.Sprintf("%s, not connected since %s: %s (%s)", s.Hub.Server, s.Hub.Since.Format(time.RFC3339), s.Hub.Error, s.Hub.Code)
}

func describeError(f *hub.Failure) string {
	if f == nil {
		return ""
	}
	first, _, _ := strings.Cut(f.Message, "\n")
	return fmt.Sprintf("%s: %s", f.Code, first)
}
