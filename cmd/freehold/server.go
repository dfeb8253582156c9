package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func serverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the management plane",
		Long: `Runs the management plane until it is stopped by SIGINT or SIGTERM.

At the first start the user "admin" is made, with the password in FREEHOLD_ADMIN_PASSWORD, or with one that is made up
and printed once. One line on the standard output tells that the plane is ready; logs go to the standard error, as JSON.`,
		Example: `  freehold server --data /var/lib/freehold --listen :8080
  freehold server --config /etc/freehold/server.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			return runPlane(cmd.Context(), s, func(p *plane) error {
				if p.generatedPassword != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "The password of the user admin is %s  (it is not shown again)\n", p.generatedPassword)
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "freehold ready  api=%s  data=%s\n", p.url, s.Data)
				return err
			})
		},
	}
	planeFlags(cmd.Flags())
	cmd.Flags().String("data", "/var/lib/freehold", "the folder that holds everything; keep it private")
	cmd.Flags().String("listen", ":8080", "the address to serve the API on")
	return cmd
}
