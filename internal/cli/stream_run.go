package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

// configFlags name the content of a config version.
type configFlags struct {
	file, engine, description string
}

func (f *configFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "file with the configuration, or - (standard input)")
	cmd.Flags().StringVar(&f.engine, "engine", "", "what runs it: benthos, process or node; default: what the content looks like")
	_ = cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions([]string{"benthos", "process", "node"}, cobra.ShellCompDirectiveNoFileComp))
}

func (f *configFlags) addDescription(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.description, "description", "", "a note that is kept with the config version")
}

// read answers the content, and the file's name for messages.
func (f *configFlags) read(a *app) (string, client.ConfigContent, error) {
	name, content, err := a.readInput(f.file)
	if err != nil {
		return "", client.ConfigContent{}, err
	}
	engine := hub.Engine(f.engine)
	if engine == "" {
		if engine = engineOf(content); engine == "" {
			return "", client.ConfigContent{}, fmt.Errorf("%s looks neither like a Benthos configuration (input, output) nor like a process (command): say which with --engine", name)
		}
	}
	return name, client.ConfigContent{Engine: engine, Content: content, Description: f.description}, nil
}

// What the engines' configurations have at their top.
var engineKeys = []struct {
	engine hub.Engine
	keys   []string
}{
	{hub.EngineBenthos, []string{"input", "output", "pipeline"}},
	{hub.EngineProcess, []string{"command"}},
	{hub.EngineNode, []string{"labels", "limits", "secrets", "log_level"}},
}

var topKey = regexp.MustCompile(`(?m)^"?([a-z_]+)"?\s*:`)

// engineOf is the engine that a content looks made for, "" if none. Content that cannot be read as YAML has lines at its
// margin all the same: the server is to say what is wrong with it.
func engineOf(content string) hub.Engine {
	top := map[string]any{}
	if yaml.Unmarshal([]byte(content), &top) != nil {
		for _, m := range topKey.FindAllStringSubmatch(content, -1) {
			top[m[1]] = nil
		}
	}
	for _, e := range engineKeys {
		for _, k := range e.keys {
			if _, ok := top[k]; ok {
				return e.engine
			}
		}
	}
	return ""
}

// publish stores a content as config version. Its faults are told one a line, each with its place.
func (a *app) publish(ctx context.Context, h client.Hub, name string, c client.ConfigContent) (*client.ConfigPublished, error) {
	got, err := h.PublishConfig(ctx, c, client.MutationOptions{})
	if lints := client.Lints(err); len(lints) > 0 {
		a.tellLints(name, lints)
		return nil, errTold
	}
	return got, err
}

// tellLints writes faults as compilers do.
func (a *app) tellLints(name string, lints []hub.Lint) {
	for _, l := range lints {
		place := name
		if l.Line > 0 {
			place += fmt.Sprintf(":%d", l.Line)
			if l.Column > 0 {
				place += fmt.Sprintf(":%d", l.Column)
			}
		}
		a.notef("%s: %s\n", place, strings.TrimSpace(l.Message))
	}
	a.notef("error: %s has %s\n", name, countOf(len(lints), "fault"))
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (a *app) streamRunCommand() *cobra.Command {
	var config configFlags
	var version string
	var f mutationFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a stream on a node: publish its configuration, and have it running",
		Long: "Run a stream on a node: publish its configuration, and have it running. A stream that is there already gets the new\n" +
			"configuration. The node need not be connected: it takes over what is asked for when it is.\n\n" +
			"With --wait the command shows what happens, and ends with status 0 when the node reports what was asked for, and with\n" +
			"status 1 and the reason when that cannot be, or takes too long.",
		Example: "  freehold stream run orders --node local -f orders.yaml --wait\n  freehold stream run local/orders --config-version cfg-17\n" +
			"  freehold stream run local/orders -f orders.yaml --if-generation 4",
	}
	config.add(cmd)
	config.addDescription(cmd)
	cmd.Flags().StringVar(&version, "config-version", "", "a config version that was published before, instead of a file")
	_ = cmd.RegisterFlagCompletionFunc("config-version", a.completeConfigs())
	f.add(cmd)
	return a.streamCommandFor(cmd, func(ctx context.Context, r streamRef) error {
		if (config.file == "") == (version == "") {
			return &usageError{cmd.CommandPath(), errors.New("name one configuration: a file with -f, or one that was published with --config-version")}
		}
		h, err := a.hubAPI()
		if err != nil {
			return err
		}
		if config.file != "" {
			name, content, err := config.read(a)
			if err != nil {
				return err
			}
			got, err := a.publish(ctx, h, name, content)
			if err != nil {
				return err
			}
			version = got.ConfigVersion
			a.printf("config %s: %s, from %s\n", version, got.Engine, name)
		}
		got, err := h.SetDesiredState(ctx, r.node, r.stream, client.DesiredState{State: hub.Running, ConfigVersion: version}, f.options())
		if err != nil {
			return err
		}
		return a.accepted(ctx, h, r.words(), got, f)
	})
}
