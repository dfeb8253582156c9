package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
)

func (a *app) completionCommand(root *cobra.Command) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long: "Print a script that completes commands, flags, and the names of resources.\n\n" +
			"  bash: source <(freehold completion bash)\n" +
			"  zsh:  source <(freehold completion zsh)\n" +
			"  fish: freehold completion fish | source",
		Args:      exactly("SHELL"),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				if _, err := io.WriteString(a.out, bashWords); err != nil {
					return err
				}
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			}
			return &usageError{cmd.CommandPath(), fmt.Errorf("%q: choose one of %s", args[0], strings.Join(shells, ", "))}
		},
	}
}

// bashWords stands in for what cobra's script takes from the package bash-completion, where that is not installed.
const bashWords = `if ! declare -F _get_comp_words_by_ref >/dev/null; then
    _get_comp_words_by_ref() {
        local line="${COMP_LINE:0:COMP_POINT}"
        read -ra words <<<"$line"
        [[ $line != *[[:space:]] ]] || words+=("")
        cword=$((${#words[@]} - 1))
        cur="${words[cword]}"
        prev="${words[cword > 0 ? cword - 1 : 0]}"
    }
fi
if ! declare -F __ltrim_colon_completions >/dev/null; then
    __ltrim_colon_completions() { :; }
fi
`

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// completeRefs completes TYPE, then names of that type; or TYPE/NAME.
func (a *app) completeRefs(scope *scopeFlags) completer {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if word, _, ok := strings.Cut(typed, "/"); ok {
			k, err := kindOf(word)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names := a.names(cmd.Context(), k, *scope)
			for i := range names {
				names[i] = word + "/" + names[i]
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		}
		if len(args) == 0 {
			return plurals(), cobra.ShellCompDirectiveNoFileComp
		}
		k, err := kindOf(args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := a.names(cmd.Context(), k, *scope)
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args[1:], n) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNames completes names of one kind that needs no owner.
func (a *app) completeNames(want client.Kind) completer {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		for _, k := range kinds() {
			if k.Kind == want {
				return a.names(cmd.Context(), k, scopeFlags{}), cobra.ShellCompDirectiveNoFileComp
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFirst completes the first argument with names of one kind.
func (a *app) completeFirst(want client.Kind) completer {
	names := a.completeNames(want)
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args, typed)
	}
}

func (a *app) completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if c, err := a.loadConfig(); err == nil && len(args) == 0 {
		for _, x := range c.Contexts {
			names = append(names, x.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// names of a kind for completion: what can be had within a second, and silence otherwise.
func (a *app) names(ctx context.Context, k *kind, scope scopeFlags) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := a.client()
	if err != nil {
		return nil
	}
	items, _, err := listAll(ctx, c, k, scope, "")
	if err != nil {
		return nil
	}
	var names []string
	for _, o := range items {
		names = append(names, o.Metadata.Name)
	}
	return names
}
