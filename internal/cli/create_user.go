package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"freehold.dev/freehold/client"
)

func (a *app) createUserCommand() *cobra.Command {
	var role string
	var fromStdin bool
	cmd := &cobra.Command{
		Use:     "user NAME --role ROLE",
		Short:   "Create a user",
		Example: "  printf %s \"$PASSWORD\" | freehold create user ada --role edit --password-stdin",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			password, err := a.newPassword(fromStdin)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			made, err := client.Users(c).Create(cmd.Context(), &client.User{
				Metadata: client.Metadata{Name: args[0]}, Spec: client.UserSpec{Role: role, Password: password},
			})
			if err != nil {
				return err
			}
			a.printf("user/%s created\n", made.Metadata.Name)
			return nil
		},
	}
	cmd.Flags().StringVar(&role, "role", "view", "what the user may do: view, edit or admin")
	cmd.Flags().BoolVar(&fromStdin, "password-stdin", false, "read the password from the standard input")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"view", "edit", "admin"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// newPassword asks twice on a terminal.
func (a *app) newPassword(fromStdin bool) (string, error) {
	if fromStdin {
		data, err := io.ReadAll(io.LimitReader(a.in, 1<<16))
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return strings.TrimRight(string(data), "\r\n"), nil
	}
	tty, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		return "", errors.New("there is no terminal to ask for the password on: use --password-stdin")
	}
	password, err := readPassword(a.err, tty, "Password: ")
	if err != nil {
		return "", err
	}
	again, err := readPassword(a.err, tty, "Password, again: ")
	if err == nil && again != password {
		err = errors.New("the passwords differ")
	}
	return password, err
}

func (a *app) createTokenCommand() *cobra.Command {
	var user string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Create an API token, and print it once",
		Long: "Create an API token with the rights of its user, and print it: the server does not show it again.\n" +
			"Without --user it is yours.",
		Example: "  export FREEHOLD_TOKEN=$(freehold create token ci --user robot --ttl 720h)",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if user == "" {
				me, err := c.Whoami(cmd.Context())
				if err != nil {
					return err
				}
				user = me.User
			}
			expires := a.Now().Add(ttl).UTC().Truncate(time.Second)
			made, err := c.CreateToken(cmd.Context(), user, &client.APIToken{
				Metadata: client.Metadata{Name: args[0]}, Spec: client.APITokenSpec{ExpiresAt: &expires},
			})
			if err != nil {
				return err
			}
			a.notef("token/%s created for %s; it is shown this once:\n", args[0], user)
			_, err = fmt.Fprintln(a.out, made.Token)
			return err
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "the token's user")
	cmd.Flags().DurationVar(&ttl, "ttl", 30*24*time.Hour, "how long it is valid")
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeNames(client.KindUser))
	return cmd
}
