package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func serverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the management plane",
		Long: `Runs the management plane until it is stopped by SIGINT or SIGTERM.

At the first start the user "admin" is made, with the password in FREEHOLD_ADMIN_PASSWORD, or with one that is made up
and told once. One line on the standard output tells that the plane is ready; logs go to the standard error, as JSON.`,
		Example: `  freehold server --data /var/lib/freehold --listen :8080
  freehold server --config /etc/freehold/server.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			return runPlane(cmd.Context(), s, func(_ context.Context, p *plane) error {
				return p.tellReady(cmd.OutOrStdout())
			})
		},
	}
	planeFlags(cmd.Flags(), "info")
	cmd.Flags().String("data", "/var/lib/freehold", "the folder that holds everything; keep it private")
	cmd.Flags().String("listen", ":8080", "the address to serve the API on")
	cmd.Flags().String("tls-cert", "", "a PEM file with the certificate chain to serve HTTPS with")
	cmd.Flags().String("tls-key", "", "a PEM file with its key")
	return cmd
}

// tellReady prints the one line that says that the plane serves, with what a person or a script needs next.
func (p *plane) tellReady(out io.Writer, more ...string) error {
	fields := append([]string{"freehold ready", "api=" + p.url, "data=" + p.settings.Data}, more...)
	if p.generatedPassword != "" {
		fields = append(fields, "user=admin", "password="+p.generatedPassword+" (not shown again)")
	}
	_, err := fmt.Fprintln(out, strings.Join(fields, "  "))
	return err
}
