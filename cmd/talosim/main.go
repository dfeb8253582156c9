// Command talosim runs simulated Talos machines: each on its own loopback address, with the Talos API on port 50000
// and, on control planes, the Kubernetes API on port 6443.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"freehold.dev/freehold/internal/talosim"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "talosim:", err)
		os.Exit(1)
	}
}

type options struct {
	machines  int
	addresses string
	folder    string
	timing    string
	control   string
	verbose   bool
}

func run(args []string) error {
	var o options
	flags := flag.NewFlagSet("talosim", flag.ContinueOnError)
	flags.IntVar(&o.machines, "machines", 3, "how many machines there are to be; more are kept if the folder has more")
	flags.StringVar(&o.addresses, "addresses", "", "comma-separated 127.0.0.0/8 addresses of the machines (default: free ones at random)")
	flags.StringVar(&o.folder, "folder", "", "folder that keeps the machines' disks over a restart (default: none)")
	flags.StringVar(&o.timing, "timing", "demo", `how long things take: "demo" or "fast"`)
	flags.StringVar(&o.control, "control", "127.0.0.1:0", "loopback address of the HTTP control API")
	flags.BoolVar(&o.verbose, "verbose", false, "log the life of the machines to standard error")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	// Machines are many and mostly idle: less garbage is worth more than fewer collections.
	debug.SetGCPercent(40)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return serve(ctx, o)
}

// serve runs the machines until the context ends. It prints one line when they are there.
func serve(ctx context.Context, o options) error {
	timing, err := talosim.ParseTiming(o.timing)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	sim, err := talosim.New(talosim.Options{
		Folder: o.folder, Timing: timing,
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		return err
	}
	defer sim.Close()
	if err := addMachines(sim, o); err != nil {
		return err
	}
	listener, err := listenLoopback(ctx, o.control)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: sim.Control(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	defer server.Close()
	if err := json.NewEncoder(os.Stdout).Encode(readyLine(sim, listener.Addr())); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("control API: %w", err)
	}
}

// addMachines brings the simulation to the asked machines; those that the folder had are kept.
func addMachines(sim *talosim.Sim, o options) error {
	var addrs []netip.Addr
	if o.addresses != "" {
		for _, s := range strings.Split(o.addresses, ",") {
			a, err := netip.ParseAddr(strings.TrimSpace(s))
			if err != nil {
				return fmt.Errorf("--addresses: %w", err)
			}
			addrs = append(addrs, a)
		}
	} else if missing := o.machines - len(sim.Machines()); missing > 0 {
		var err error
		if addrs, err = talosim.FreeAddresses(missing); err != nil {
			return err
		}
	}
	for _, a := range addrs {
		if _, err := sim.Add(talosim.MachineSpec{Address: a}); err != nil && !errors.Is(err, talosim.ErrExists) {
			return err
		}
	}
	return nil
}

func listenLoopback(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--control: %w", err)
	}
	if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		l.Close()
		return nil, fmt.Errorf("--control: %s is not a loopback address, and the control API knows no users", ip)
	}
	return l, nil
}

type machineLine struct {
	Address netip.Addr `json:"address"`
	UUID    string     `json:"uuid"`
}

type ready struct {
	Control  string        `json:"control"`
	Machines []machineLine `json:"machines"`
}

func readyLine(sim *talosim.Sim, control net.Addr) ready {
	line := ready{Control: "http://" + control.String(), Machines: []machineLine{}}
	for _, m := range sim.Machines() {
		line.Machines = append(line.Machines, machineLine{Address: m.Address(), UUID: m.State().UUID})
	}
	return line
}
