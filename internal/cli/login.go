package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cli/config"
)

// defaultServer is where a server listens unless told otherwise.
const defaultServer = "http://127.0.0.1:8080"

func (a *app) loginCommand() *cobra.Command {
	var username, name string
	var fromStdin bool
	cmd := &cobra.Command{
		Use:   "login [SERVER]",
		Short: "Log in to a server and remember it as a context",
		Long: "Log in to a server and remember the session, valid for 12 hours, as a context in ~/.config/freehold/config.yaml.\n" +
			"Without SERVER: the current context's, or " + defaultServer + ".",
		Example: "  freehold login https://cloud.example.com:8080 --username admin\n" +
			"  printf %s \"$PASSWORD\" | freehold login cloud.example.com:8080 --username ci --password-stdin",
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := a.loginTarget(args)
			if err != nil {
				return err
			}
			if name != "" {
				x.Name = name
			}
			if u, err := client.ParseServer(x.Server); err == nil && u.Scheme == "http" && !client.IsLoopback(u.Hostname()) {
				a.notef("Warning: %s is not encrypted: password and token can be read on the way.\n", x.Server)
			}
			password, err := a.credentials(&username, fromStdin)
			if err != nil {
				return err
			}
			return a.login(cmd.Context(), x, username, password)
		},
	}
	cmd.Flags().StringVarP(&username, "username", "u", "", "user name")
	cmd.Flags().BoolVar(&fromStdin, "password-stdin", false, "read the password from the standard input")
	cmd.Flags().StringVar(&name, "name", "", "name of the context; default: the server's host and port")
	return cmd
}

// loginTarget is the context to log in to: without a token, and with trust that was given or is known already.
func (a *app) loginTarget(args []string) (config.Context, error) {
	if len(args) == 1 {
		a.flags.server = args[0]
	}
	x, err := a.resolve()
	if errors.Is(err, errNoServer) {
		x, err = config.Context{Server: defaultServer}, nil
	}
	if err != nil {
		return x, err
	}
	u, err := client.ParseServer(x.Server)
	if err != nil {
		return x, err
	}
	x.Server, x.Token = u.String(), ""
	if x.Name == "" {
		x.Name = u.Host + u.Path
	}
	if x.CertificateAuthority != "" {
		if x.CertificateAuthority, err = filepath.Abs(x.CertificateAuthority); err != nil {
			return x, err
		}
	}
	return x, nil
}

func (a *app) credentials(username *string, fromStdin bool) (string, error) {
	lines := bufio.NewReader(a.in)
	tty, interactive := a.in.(*os.File)
	interactive = interactive && term.IsTerminal(int(tty.Fd()))
	if *username == "" {
		if fromStdin || !interactive {
			return "", errors.New("name the user with --username")
		}
		a.notef("Username: ")
		line, err := lines.ReadString('\n')
		if *username = strings.TrimSpace(line); err != nil || *username == "" {
			return "", errors.New("no user name given")
		}
	}
	if fromStdin {
		data, err := io.ReadAll(io.LimitReader(a.in, 1<<16))
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return strings.TrimRight(string(data), "\r\n"), nil
	}
	if !interactive {
		return "", errors.New("there is no terminal to ask for the password on: use --password-stdin")
	}
	return readPassword(a.err, tty, "Password: ")
}

// readPassword asks without echo: what is typed ahead of the prompt does not show either.
func readPassword(w io.Writer, tty *os.File, prompt string) (string, error) {
	old, err := term.MakeRaw(int(tty.Fd()))
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	defer func() { _ = term.Restore(int(tty.Fd()), old) }()
	password, err := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{tty, w}, "").ReadPassword(prompt)
	if errors.Is(err, io.EOF) { // Ctrl-C, Ctrl-D
		_, _ = io.WriteString(w, "\r\n")
		return "", errInterrupted
	}
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return password, nil
}

func (a *app) login(ctx context.Context, x config.Context, username, password string) error {
	c, err := a.clientFor(x)
	if err != nil {
		return err
	}
	session, err := c.Login(ctx, username, password)
	if err != nil {
		return loginError(x.Server, err)
	}
	x.User, x.Token = username, session.Token
	path, err := a.configPath()
	if err != nil {
		return err
	}
	if err := config.Save(path, x); err != nil {
		return err
	}
	a.printf("Logged in to %s as %s until %s (context %q).\n", x.Server, username,
		session.ExpiresAt.Local().Format(time.DateTime), x.Name)
	return nil
}

// loginError leaves out the advice to log in.
func loginError(server string, err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && client.IsUnauthorized(err) {
		return fmt.Errorf("%s refused the login: %s", server, refused.Message)
	}
	return err
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "End the session and forget its token",
		Args:  atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			x, err := a.resolve()
			if err != nil {
				return err
			}
			if x.Token == "" {
				return fmt.Errorf("not logged in to %s", x.Server)
			}
			c, err := a.clientFor(x)
			if err != nil {
				return err
			}
			revoked := c.Logout(cmd.Context())
			switch {
			case client.IsUnauthorized(revoked):
				revoked = nil // it ended before
			case revoked != nil && !client.IsConnect(revoked):
				return fmt.Errorf("%w; to forget it here: freehold context delete %s", revoked, first(x.Name, "NAME"))
			}
			// The token is forgotten even when the server cannot be told: it is of no more use here.
			if err := a.forget(x); err != nil {
				return errors.Join(revoked, err)
			}
			if revoked != nil {
				return fmt.Errorf("the token is forgotten here, but the session is not ended: %w", revoked)
			}
			a.printf("Logged out of %s.\n", x.Server)
			return nil
		},
	}
}

func (a *app) forget(x config.Context) error {
	path, err := a.configPath()
	if err != nil || x.Name == "" {
		return err
	}
	return config.Edit(path, func(c *config.Config) error {
		if stored, ok := c.Get(x.Name); ok && stored.Token == x.Token {
			stored.Token = ""
			c.Set(stored)
		}
		return nil
	})
}

func (a *app) whoamiCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Tell who you are to the server, and what you may do",
		Args:  atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			me, err := c.Whoami(cmd.Context())
			if err != nil {
				return err
			}
			switch format {
			case "":
				_, err = fmt.Fprintf(a.out, "%s (role %s) at %s\n", me.User, me.Role, c.Server())
			case "json":
				err = a.print(toJSON, me)
			case "yaml":
				err = a.print(toYAML, me)
			default:
				err = fmt.Errorf("-o %s: choose json or yaml", format)
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) print(encode func(any) ([]byte, error), v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	_, err = a.out.Write(data)
	return err
}
