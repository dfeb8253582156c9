package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

var configNoun = noun[client.ConfigVersion]{
	singular: "config", plural: "config versions",
	header: []string{"VERSION", "ENGINE", "SIZE", "BY", "AGE", "DESCRIPTION"},
	wide:   []string{"DIGEST"},
	name:   func(v *client.ConfigVersion) string { return v.ConfigVersion },
	cells: func(v *client.ConfigVersion, now time.Time) ([]string, []string) {
		return []string{v.ConfigVersion, string(v.Engine), fmt.Sprint(v.Size), v.Principal, since(v.CreatedAt, now), v.Description}, []string{v.Digest}
	},
}

func (a *app) configCommand() *cobra.Command {
	cmd := parentCommand("config", "Publish and check the configurations that streams run with",
		"Publish and check the configurations that streams run with.\n\nA config version is content that never changes, named cfg-N: a Benthos pipeline, a process, or a node's own configuration. The\n"+
			"same content published again is the same version. (The servers that this client knows are under freehold context.)",
		a.configPublishCommand(), a.configValidateCommand(), a.configListCommand(), a.configShowCommand())
	cmd.AddCommand(a.kubectlContexts()...)
	return cmd
}

func (a *app) configPublishCommand() *cobra.Command {
	var f configFlags
	var out outputFlags
	cmd := &cobra.Command{
		Use: "publish -f FILE", Short: "Publish a configuration as a config version", Args: atMost(0),
		Long: "Publish a configuration as a config version. It is checked by what is to run it first; faults are told one a line, as\n" +
			"file:line:column: message, and nothing is published.",
		Example: "  freehold config publish -f orders.yaml\n  V=$(freehold config publish -f orders.yaml -o jsonpath={.config_version})",
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.newPrinter(out)
			if err != nil {
				return err
			}
			name, content, err := f.required(a, cmd)
			if err != nil {
				return err
			}
			h, err := a.hubAPI()
			if err != nil {
				return err
			}
			got, err := a.publish(cmd.Context(), h, name, content)
			switch {
			case err != nil:
				return err
			case p.f.format == "name":
				a.printf("config/%s\n", got.ConfigVersion)
				return nil
			case !p.tabular():
				return p.structured(got)
			}
			a.printf("config %s: %s, from %s (%s)\n", got.ConfigVersion, got.Engine, name, got.Digest)
			return nil
		},
	}
	f.add(cmd)
	f.addDescription(cmd)
	out.addFormat(cmd)
	return cmd
}

// required is read for commands that need a file.
func (f *configFlags) required(a *app, cmd *cobra.Command) (string, client.ConfigContent, error) {
	if f.file == "" {
		return "", client.ConfigContent{}, &usageError{cmd.CommandPath(), errors.New("name a file with -f")}
	}
	return f.read(a)
}

func (a *app) configValidateCommand() *cobra.Command {
	var f configFlags
	cmd := &cobra.Command{
		Use: "validate -f FILE", Short: "Check a configuration, and publish nothing", Args: atMost(0),
		Long:    "Check a configuration by what is to run it. Faults are told one a line, as file:line:column: message, with status 1.",
		Example: "  freehold config validate -f orders.yaml\n  freehold config validate -f collector.yaml --engine process",
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, content, err := f.required(a, cmd)
			if err != nil {
				return err
			}
			h, err := a.hubAPI()
			if err != nil {
				return err
			}
			got, err := h.ValidateConfig(cmd.Context(), content)
			if err != nil {
				return err
			}
			if !got.Valid {
				a.tellLints(name, got.Lints)
				return errTold
			}
			a.printf("%s: no faults found (%s)\n", name, content.Engine)
			return nil
		},
	}
	f.add(cmd)
	return cmd
}

func (a *app) configListCommand() *cobra.Command {
	var out outputFlags
	var limit int
	var engine string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List config versions, the newest first", Args: atMost(0),
		Example: "  freehold config list\n  freehold config list --limit 0 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(a, out, configNoun, func(h client.Hub) ([]client.ConfigVersion, error) {
				return h.Configs(cmd.Context(), hub.Engine(engine), limit)
			})
		},
	}
	cmd.Flags().StringVar(&engine, "engine", "", "those of this engine only: benthos, process or node")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many to list; 0: all")
	out.addFormat(cmd)
	return cmd
}

func (a *app) configShowCommand() *cobra.Command {
	var out outputFlags
	var raw bool
	cmd := &cobra.Command{
		Use: "show CONFIG-VERSION", Short: "Show a config version and its content", Args: exactly("CONFIG-VERSION"),
		Example:           "  freehold config show cfg-17\n  freehold config show cfg-17 --raw > orders.yaml",
		ValidArgsFunction: a.completeConfigs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			version := strings.TrimPrefix(args[0], "config/")
			read := func(h client.Hub) (*client.ConfigVersion, error) { return h.Config(cmd.Context(), version) }
			if raw {
				h, err := a.hubAPI()
				if err != nil {
					return err
				}
				v, err := read(h)
				if err != nil {
					return err
				}
				_, err = io.WriteString(a.out, v.Content)
				return err
			}
			return show(a, out, configNoun, read, func(d *description, _ client.Hub, v *client.ConfigVersion) error {
				d.configVersion(v)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the content and nothing else")
	out.addFormat(cmd)
	return cmd
}

func (d *description) configVersion(v *client.ConfigVersion) {
	d.line("Version", "%s", v.ConfigVersion)
	d.line("Engine", "%s", v.Engine)
	d.line("Digest", "%s", v.Digest)
	d.line("Published", "%s, by %s", d.when(v.CreatedAt), v.Principal)
	d.line("Description", "%s", v.Description)
	d.write("\nContent:\n")
	for line := range strings.Lines(v.Content) {
		d.write("  " + strings.TrimSuffix(line, "\n") + "\n")
	}
}

func (a *app) completeConfigs() completer {
	return a.completeWith(func(ctx context.Context, h client.Hub) ([]string, error) {
		versions, err := h.Configs(ctx, "", 50)
		var names []string
		for _, v := range versions {
			names = append(names, v.ConfigVersion)
		}
		return names, err
	})
}
