// Package cli is Freehold's command line client. It speaks to a server through the operator API and nothing else,
// with kubectl's habits.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cli/config"
)

// Options of the client. The zero value of each field but Version is the process' own.
type Options struct {
	Version string
	In      io.Reader
	Out     io.Writer
	Err     io.Writer
	Getenv  func(string) string
	// Now is the clock that ages are counted by.
	Now func() time.Time
	// brief: the server ends with the program, so that nothing is to be said of what it goes on with.
	brief bool
}

// Groups of the root's help.
const (
	GroupMain   = "main"
	GroupHub    = "hub"
	GroupAccess = "access"
	GroupServer = "server"
	GroupOther  = "other"
)

// Attach adds the client's commands and global flags to the program's root command. The groups above are defined on
// the root; other commands may join them.
func Attach(root *cobra.Command, o Options) {
	a := newApp(o)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	if root.RunE == nil && root.Run == nil {
		root.Args = noCommand
		root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{cmd.CommandPath(), flagError(err)} })
	// The client's flags are of no use to commands that speak to no server.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .HasAvailableInheritedFlags}}",
		`{{if and .HasAvailableInheritedFlags (ne .GroupID "`+GroupServer+`") (ne .GroupID "`+GroupOther+`")}}`, 1))
	root.AddGroup(
		&cobra.Group{ID: GroupMain, Title: "Resources:"},
		&cobra.Group{ID: GroupHub, Title: "Streams:"},
		&cobra.Group{ID: GroupAccess, Title: "Access:"},
		&cobra.Group{ID: GroupServer, Title: "Server:"},
		&cobra.Group{ID: GroupOther, Title: "Other:"},
	)
	root.SetHelpCommandGroupID(GroupOther)
	root.CompletionOptions.DisableDefaultCmd = true
	a.addFlags(root)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(GroupMain, a.getCommand(), a.describeCommand(), a.createCommand(), a.applyCommand(), a.deleteCommand(),
		a.scaleCommand(), a.waitCommand(), a.watchCommand())
	add(GroupHub, a.streamCommand(), a.nodeCommand(), a.configCommand(), a.operationCommand())
	add(GroupAccess, a.loginCommand(), a.logoutCommand(), a.whoamiCommand(), a.contextCommand(),
		a.kubeconfigCommand(), a.talosconfigCommand())
	add(GroupServer, a.demoCommand())
	add(GroupOther, a.completionCommand(root))
}

// flagError says what a flag takes, instead of how reading it failed.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	var takes string
	switch invalid.GetFlag().Value.Type() {
	case "int":
		takes = "a whole number"
	case "duration":
		takes = "a time with its unit, such as 90s, 15m or 12h"
	case "bool":
		takes = "true or false"
	case "stringToString":
		takes = "KEY=VALUE"
	default:
		return err
	}
	return fmt.Errorf("--%s takes %s, not %q", invalid.GetFlag().Name, takes, invalid.GetValue())
}

// Run executes the root command and answers the exit status of the process: 0, 1 after an error that it told on the
// error output, 130 when ctx was cancelled or the user interrupted a question.
func Run(ctx context.Context, root *cobra.Command) int {
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)), errors.Is(err, errInterrupted):
		return 130
	case !errors.Is(err, errTold):
		tell(root.ErrOrStderr(), err)
	}
	return 1
}

// errInterrupted: the user did not want to go on.
var errInterrupted = errors.New("interrupted")

// errTold: the command failed, and has said so itself.
var errTold = errors.New("told")

// app is what the commands share.
type app struct {
	Options
	in    io.Reader
	out   io.Writer
	err   io.Writer
	flags struct {
		server, token, context, authority, fingerprint string
		timeout                                        time.Duration
	}
}

func newApp(o Options) *app {
	a := &app{Options: o, in: o.In, out: o.Out, err: o.Err}
	if a.in == nil {
		a.in = os.Stdin
	}
	if a.out == nil {
		a.out = os.Stdout
	}
	if a.err == nil {
		a.err = os.Stderr
	}
	if a.Getenv == nil {
		a.Getenv = os.Getenv
	}
	if a.Now == nil {
		a.Now = time.Now
	}
	return a
}

func (a *app) addFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.flags.server, "server", "", "operator API to speak to; default: $FREEHOLD_SERVER, then the context's")
	f.StringVar(&a.flags.token, "token", "", "bearer token; default: $FREEHOLD_TOKEN, then the context's")
	f.StringVar(&a.flags.context, "context", "", "context to use; default: $FREEHOLD_CONTEXT, then the current one")
	f.StringVar(&a.flags.authority, "certificate-authority", "", "PEM file of the authority that signed the server's certificate")
	f.StringVar(&a.flags.fingerprint, "fingerprint", "", "SHA-256 of the server's certificate, to trust it alone")
	f.DurationVar(&a.flags.timeout, "request-timeout", 30*time.Second, "how long one request may take")
	_ = root.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if c, err := a.loadConfig(); err == nil {
			for _, x := range c.Contexts {
				names = append(names, x.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

func (a *app) configPath() (string, error) { return config.Path(a.Getenv) }

func (a *app) loadConfig() (*config.Config, error) {
	path, err := a.configPath()
	if err != nil {
		return nil, err
	}
	return config.Load(path)
}

// errNoServer: nothing tells which server to speak to.
var errNoServer = errors.New("no server is known yet\n" +
	"  start one here: freehold dev\n" +
	"  or log in:      freehold login https://HOST:PORT")

// resolve decides which server to speak to, and as whom: flags first, then the environment, then the context. A
// context's token goes to that context's server only.
func (a *app) resolve() (config.Context, error) {
	name := first(a.flags.context, a.Getenv("FREEHOLD_CONTEXT"))
	var x config.Context
	server := first(a.flags.server, a.Getenv("FREEHOLD_SERVER"))
	token := first(a.flags.token, a.Getenv("FREEHOLD_TOKEN"))
	c, err := a.loadConfig()
	switch {
	case err == nil:
		var ok bool
		if x, ok = c.Get(name); !ok && name != "" {
			return x, noContext(name)
		}
	case name != "" || server == "":
		return x, err
	}
	if server != "" && !sameServer(server, x.Server) {
		x = contextOf(c, server)
	}
	if token != "" {
		x.Token, x.User = token, ""
	}
	if a.flags.authority != "" {
		x.CertificateAuthority, x.Fingerprint = a.flags.authority, ""
	}
	if a.flags.fingerprint != "" {
		x.Fingerprint = a.flags.fingerprint
	}
	if x.Server == "" {
		return x, errNoServer
	}
	return x, nil
}

// contextOf is the context of a server, a new one without a name if none is known.
func contextOf(c *config.Config, server string) config.Context {
	if c != nil {
		for _, x := range c.Contexts {
			if sameServer(x.Server, server) {
				return x
			}
		}
	}
	return config.Context{Server: server}
}

func sameServer(a, b string) bool {
	ua, errA := client.ParseServer(a)
	ub, errB := client.ParseServer(b)
	return errA == nil && errB == nil && ua.String() == ub.String()
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// client of the resolved server.
func (a *app) client() (*client.Client, error) {
	x, err := a.resolve()
	if err != nil {
		return nil, err
	}
	return a.clientFor(x)
}

func (a *app) clientFor(x config.Context) (*client.Client, error) {
	return client.New(client.Config{
		Server: x.Server, Token: x.Token, CAFile: x.CertificateAuthority, Fingerprint: x.Fingerprint,
		UserAgent: "freehold/" + first(a.Version, "dev"), Timeout: a.flags.timeout,
		Warn: func(text string) { a.notef("Warning: %s\n", text) },
	})
}

// printf writes to the output. An output that cannot be written to is nobody's to be told of.
func (a *app) printf(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }

// notef writes to the error output.
func (a *app) notef(format string, args ...any) { _, _ = fmt.Fprintf(a.err, format, args...) }

// terminal tells whether w is one, and how wide it is.
func terminal(w io.Writer) (width int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return width, true
}
