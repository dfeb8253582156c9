package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cli/config"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/talosim"
)

// The sandbox's context and API token: its owner is whoever may read the data folder, so that no password is asked.
const (
	devContext  = "dev"
	devToken    = "freehold-dev"
	devUser     = "admin"
	devTokenTTL = 30 * 24 * time.Hour
)

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a sandbox: the plane, simulated machines, and a node for streams",
		Long: `Runs a management plane together with simulated Talos machines on loopback addresses, and a node for streams called
"local", until it is stopped.

Nothing has to be configured. What was declared, and the machines' disks, are kept in the data folder. The client's
context "dev" is saved and made current, so that "freehold get tenants" works in another terminal. Only warnings are
logged; --log-level info shows each request and apply.`,
		Example: `  freehold dev
  freehold dev --data /tmp/sandbox --listen 127.0.0.1:9090 --machines 12`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			if s.Machines < 0 || s.Machines > 500 {
				return errors.New("--machines: between 0 and 500")
			}
			sim, err := openSandbox(s)
			if err != nil {
				return err
			}
			defer sim.Close()
			return runPlane(cmd.Context(), s, func(ctx context.Context, p *plane) error {
				token, err := p.enterSandbox(ctx, sim)
				if err != nil {
					return err
				}
				if err := p.tellReady(cmd.OutOrStdout(), fmt.Sprintf("machines=%d", len(sim.Machines())), "node="+localNode); err != nil {
					return err
				}
				return p.runLocalNode(ctx, token)
			})
		},
	}
	planeFlags(cmd.Flags(), "warn")
	cmd.Flags().String("data", devFolder(), "the folder that holds everything")
	cmd.Flags().String("listen", "127.0.0.1:8080", "the address to serve the API on")
	cmd.Flags().Int("machines", 5, "how many simulated machines there are at least")
	cmd.Flags().String("machine-timing", "demo", "how fast the machines are: demo or fast")
	return cmd
}

func devFolder() string {
	base := os.Getenv("XDG_DATA_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "freehold-dev"
		}
		base = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(base, "freehold-dev")
}

// openSandbox switches on the machines of the data folder, and adds what is missing.
func openSandbox(s settings) (*talosim.Sim, error) {
	timing, err := talosim.ParseTiming(s.MachineTiming)
	if err != nil {
		return nil, fmt.Errorf("--machine-timing: %w", err)
	}
	logger, err := s.logger()
	if err != nil {
		return nil, err
	}
	sim, err := talosim.New(talosim.Options{Folder: s.machines(), Logger: logger, Timing: timing})
	if err != nil {
		return nil, fmt.Errorf("switch the simulated machines on: %w\n  if another sandbox runs on %s, stop that one, or choose another folder with --data", err, s.Data)
	}
	addresses, err := talosim.FreeAddresses(max(0, s.Machines-len(sim.Machines())))
	for _, address := range addresses {
		if err == nil {
			_, err = sim.Add(talosim.MachineSpec{Address: address})
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("add a simulated machine: %w", err), sim.Close())
	}
	return sim, nil
}

// enterSandbox registers the machines and the local node, and saves the client's context. It answers what the node's
// agent enrols with.
func (p *plane) enterSandbox(ctx context.Context, sim *talosim.Sim) (enrolment string, err error) {
	path, err := config.Path(os.Getenv)
	if err != nil {
		return "", err
	}
	token := p.savedToken(ctx, path)
	if token == "" {
		if token, err = p.newToken(ctx); err != nil {
			return "", err
		}
	}
	c, err := p.clientOf(token)
	if err != nil {
		return "", err
	}
	for _, m := range sim.Machines() {
		machine := &client.Machine{Spec: client.MachineSpec{ManagementAddress: m.Address().String()}}
		machine.Metadata.Labels = map[string]string{"freehold.dev/sandbox": "true"}
		if _, err := client.Machines(c).Create(ctx, machine); err != nil && !client.IsConflict(err) {
			return "", fmt.Errorf("register the simulated machine %s: %w", m.Address(), err)
		}
	}
	if enrolment, err = registerLocalNode(ctx, c.Hub()); err != nil {
		return "", err
	}
	return enrolment, config.Save(path, config.Context{Name: devContext, Server: strings.TrimSuffix(p.url, "/"), User: devUser, Token: token})
}

// savedToken is the token of the client's context, if it is this sandbox's and good for a while yet: commands that
// waited for the sandbox to come back go on with it. Else it is "".
func (p *plane) savedToken(ctx context.Context, path string) string {
	saved, err := config.Load(path)
	if err != nil {
		return ""
	}
	x, ok := saved.Get(devContext)
	if !ok || x.Token == "" {
		return ""
	}
	c, err := p.clientOf(x.Token)
	if err != nil {
		return ""
	}
	who, err := c.Whoami(ctx)
	if err != nil || who.User != devUser || who.Token != devToken || time.Until(who.ExpiresAt) < devTokenTTL/2 {
		return ""
	}
	return x.Token
}

// newToken replaces the sandbox's API token.
func (p *plane) newToken(ctx context.Context) (string, error) {
	if _, err := p.identity.RevokeToken(ctx, devUser, devToken); err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", err
	}
	_, token, err := p.identity.CreateToken(ctx, identity.TokenInput{User: devUser, Name: devToken, ExpiresAt: time.Now().Add(devTokenTTL)})
	if errors.Is(err, store.ErrNotFound) {
		return "", fmt.Errorf("the sandbox acts as the user %q, and there is none any more: create it again, or start with another --data", devUser)
	}
	return token, err
}

func (p *plane) clientOf(token string) (*client.Client, error) {
	return client.New(client.Config{Server: p.url, Token: token, UserAgent: "freehold-dev/" + version})
}
