package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/internal/cli/config"
)

func (a *app) contextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "See and choose the servers that this client knows",
		Args:  atMost(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.contextCommands("list", "current", "use", "delete")...)
	return cmd
}

// kubectlContexts are the same under the names that kubectl has for them, kept out of the help of "config", which is about
// config versions.
func (a *app) kubectlContexts() []*cobra.Command {
	cmds := a.contextCommands("get-contexts", "current-context", "use-context", "delete-context")
	for _, c := range cmds {
		c.Hidden = true
	}
	return cmds
}

func (a *app) contextCommands(list, current, use, forget string) []*cobra.Command {
	return []*cobra.Command{
		{
			Use: list, Short: "List the contexts", Args: atMost(0),
			RunE: func(*cobra.Command, []string) error { return a.listContexts() },
		},
		{
			Use: current, Short: "Tell the current context", Args: atMost(0),
			RunE: func(*cobra.Command, []string) error { return a.currentContext() },
		},
		{
			Use: use + " NAME", Short: "Choose the current context", Args: exactly("NAME"),
			ValidArgsFunction: a.completeContexts,
			RunE: func(_ *cobra.Command, args []string) error {
				return a.editContexts(func(c *config.Config) error {
					if _, ok := c.Get(args[0]); !ok {
						return noContext(args[0])
					}
					c.CurrentContext = args[0]
					return nil
				}, "Switched to context %q.\n", args[0])
			},
		},
		{
			Use: forget + " NAME", Short: "Forget a context and its token", Args: exactly("NAME"),
			ValidArgsFunction: a.completeContexts,
			RunE: func(_ *cobra.Command, args []string) error {
				return a.editContexts(func(c *config.Config) error {
					if !c.Delete(args[0]) {
						return noContext(args[0])
					}
					return nil
				}, "Forgot context %q.\n", args[0])
			},
		},
	}
}

func noContext(name string) error {
	return fmt.Errorf("there is no context %q: see freehold context list", name)
}

func (a *app) currentContext() error {
	c, err := a.loadConfig()
	if err != nil {
		return err
	}
	if c.CurrentContext == "" {
		return errors.New("there is no current context: log in, or choose one with freehold context use")
	}
	_, err = fmt.Fprintln(a.out, c.CurrentContext)
	return err
}

func (a *app) editContexts(change func(*config.Config) error, done, name string) error {
	path, err := a.configPath()
	if err != nil {
		return err
	}
	if err := config.Edit(path, change); err != nil {
		return err
	}
	a.printf(done, name)
	return nil
}

func (a *app) listContexts() error {
	c, err := a.loadConfig()
	if err != nil {
		return err
	}
	if len(c.Contexts) == 0 {
		a.notef("No contexts found.\n")
		return nil
	}
	slices.SortFunc(c.Contexts, func(x, y config.Context) int { return strings.Compare(x.Name, y.Name) })
	t := &table{w: a.out}
	t.add("CURRENT", "NAME", "SERVER", "USER", "LOGGED-IN")
	for _, x := range c.Contexts {
		current, session := " ", "no"
		if x.Name == c.CurrentContext {
			current = "*"
		}
		if x.Token != "" {
			session = "yes"
		}
		t.rows = append(t.rows, []string{current, x.Name, x.Server, first(x.User, "-"), session})
	}
	return t.flush()
}
