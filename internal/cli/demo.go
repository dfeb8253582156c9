package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

const demoTenant = "demo"

func (a *app) demoCommand() *cobra.Command {
	d := &demo{app: a}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job: a tenant from nothing to a kubeconfig that works, and back",
		Long: "Start a sandbox of its own in a temporary folder (freehold dev), create a tenant there as an operator would, use its\n" +
			"kubeconfig and talosconfig, delete it, and leave nothing behind.",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	cmd.Flags().IntVar(&d.controlPlanes, "control-planes", 1, "number of control-plane machines")
	cmd.Flags().IntVar(&d.workers, "workers", 2, "number of worker machines")
	return cmd
}

// demo acts as an operator does, in a sandbox.
type demo struct {
	*app
	controlPlanes, workers int

	out     *live
	folder  string
	plane   *sandbox
	started time.Time
	timings []timing
	c       *client.Client
}

type timing struct {
	what string
	took time.Duration
}

func (d *demo) run(ctx context.Context) (err error) {
	d.started = d.Now()
	d.out = newLive(d.app.out, d.Getenv)
	if d.folder, err = os.MkdirTemp("", "freehold-demo-"); err != nil {
		return fmt.Errorf("make a temporary folder: %w", err)
	}
	defer func() {
		if cleanErr := d.clean(); err == nil {
			err = cleanErr
		}
	}()
	if err := d.startPlane(ctx); err != nil {
		return d.failed(ctx, err)
	}
	// Without its plane no step can go on.
	alive, die := context.WithCancelCause(ctx)
	defer die(nil)
	go func() {
		<-d.plane.done
		die(d.plane.died())
	}()
	for _, step := range []func(context.Context) error{
		d.lookAround, d.create, d.useKubeconfig, d.useTalosconfig, d.showMachines, d.delete, d.nothingLeft,
	} {
		if err := step(alive); err != nil {
			return d.failed(ctx, err)
		}
	}
	d.showTimings()
	return nil
}

// failed shows what an operator needs to know, unless it was the operator who ended the demo.
func (d *demo) failed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		d.showLog()
	}
	return err
}

// clean ends the sandbox and everything that it started, and removes the folder.
func (d *demo) clean() error {
	var err error
	if d.plane != nil {
		begun := d.Now()
		err = d.plane.stop()
		d.timings = append(d.timings, timing{"plane stopped", d.Now().Sub(begun)})
	}
	return errors.Join(err, os.RemoveAll(d.folder))
}

func (d *demo) timed(what string, since time.Time) {
	d.timings = append(d.timings, timing{what, d.Now().Sub(since)})
}

// title opens a step.
func (d *demo) title(format string, args ...any) {
	d.out.say("\n" + d.out.paint(bold, fmt.Sprintf(format, args...)))
}

// freehold runs the client as from a shell, and shows the command.
func (d *demo) freehold(ctx context.Context, args ...string) error {
	d.out.say(d.out.paint(dim, "$ freehold "+strings.ReplaceAll(strings.Join(args, " "), d.folder, "$DEMO")))
	root := &cobra.Command{Use: "freehold"}
	Attach(root, Options{Version: d.Version, In: strings.NewReader(""), Out: d.app.out, Err: d.app.out, Getenv: d.env, Now: d.Now, brief: true})
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// env is the environment of the sandbox: nothing that points elsewhere counts.
func (d *demo) env(name string) string {
	switch name {
	case "XDG_CONFIG_HOME":
		return filepath.Join(d.folder, "config")
	case "FREEHOLD_SERVER", "FREEHOLD_TOKEN", "FREEHOLD_CONTEXT":
		return ""
	}
	return d.Getenv(name)
}

func (d *demo) startPlane(ctx context.Context) error {
	machines := d.controlPlanes + d.workers
	d.out.say(d.out.paint(bold, "A management plane, and machines that run Talos"))
	d.out.say(d.out.paint(dim, "$ DEMO="+d.folder))
	d.out.say(d.out.paint(dim, fmt.Sprintf("$ freehold dev --data $DEMO/data --listen 127.0.0.1:0 --machines %d", machines)))
	begun := d.Now()
	var err error
	if d.plane, err = startSandbox(ctx, d.folder, machines, d.env); err != nil {
		return err
	}
	ready, err := d.plane.ready(ctx)
	if err != nil {
		return err
	}
	d.out.say(strings.ReplaceAll(ready, d.folder, "$DEMO"))
	d.timed("plane ready", begun)
	inSandbox := newApp(Options{Version: d.Version, Out: d.app.out, Err: d.app.err, Getenv: d.env, Now: d.Now})
	inSandbox.flags.timeout = 30 * time.Second
	d.c, err = inSandbox.client()
	return err
}

// lookAround waits until the plane has seen every machine, and shows them.
func (d *demo) lookAround(ctx context.Context) error {
	begun := d.Now()
	d.title("Machines in maintenance mode, nobody's yet")
	if err := d.awaitUnassigned(ctx); err != nil {
		return err
	}
	d.timed("machines seen", begun)
	return d.freehold(ctx, "get", "machines")
}

// awaitUnassigned waits until every machine belongs to nobody and waits for a configuration.
func (d *demo) awaitUnassigned(ctx context.Context) error {
	return d.await(ctx, time.Minute, func() (string, error) {
		l, err := client.Machines(d.c).List(ctx, client.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, m := range l.Items {
			if t := m.Metadata.Labels[cloud.LabelTenant]; t != "" {
				return fmt.Sprintf("machine %s still belongs to tenant %s", m.Metadata.Name, t), nil
			}
			if !m.Spec.Connected || !m.Status.Maintenance {
				return fmt.Sprintf("machine %s is not in maintenance mode: stage %q, %s", m.Metadata.Name, m.Status.Stage, first(m.Status.LastError, "no error")), nil
			}
		}
		if n := d.controlPlanes + d.workers; len(l.Items) != n {
			return fmt.Sprintf("there are %d machines, expected %d", len(l.Items), n), nil
		}
		return "", nil
	})
}

// await asks again and again until nothing is missing.
func (d *demo) await(ctx context.Context, within time.Duration, missing func() (string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, &timeoutError{within})
	defer cancel()
	for {
		what, err := missing()
		if err != nil || what == "" {
			return err
		}
		select {
		case <-ctx.Done():
			var late *timeoutError
			if err := context.Cause(ctx); !errors.As(err, &late) {
				return err
			}
			return fmt.Errorf("%w: %s", context.Cause(ctx), what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (d *demo) create(ctx context.Context) error {
	d.title("A tenant: Kubernetes on %d machines", d.controlPlanes+d.workers)
	begun := d.Now()
	err := d.freehold(ctx, "create", "tenant", demoTenant, "--control-planes", fmt.Sprint(d.controlPlanes), "--workers", fmt.Sprint(d.workers),
		"--wait", "--timeout", "5m")
	d.timed("tenant active", begun)
	return err
}

func (d *demo) useKubeconfig(ctx context.Context) error {
	d.title("Its kubeconfig")
	begun := d.Now()
	path := filepath.Join(d.folder, "kubeconfig")
	if err := d.freehold(ctx, "kubeconfig", demoTenant, "-o", path); err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	k, err := newKube(data)
	if err != nil {
		return err
	}
	version, err := k.version(ctx)
	if err != nil {
		return err
	}
	readyz, err := k.get(ctx, "/readyz")
	if err != nil {
		return err
	}
	d.out.say(fmt.Sprintf("Kubernetes %s at %s   /readyz: %s", version, k.host, readyz))
	want := d.controlPlanes + d.workers
	var nodes [][]string
	err = d.await(ctx, 30*time.Second, func() (string, error) {
		list, err := k.nodes(ctx)
		if err != nil {
			return "", err
		}
		ready := 0
		nodes = nil
		for _, n := range list {
			if nodeReady(n) {
				ready++
			}
			nodes = append(nodes, nodeRow(n, d.Now()))
		}
		if ready < want {
			return fmt.Sprintf("%d of %d nodes are ready", ready, want), nil
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	d.timed("kubeconfig used", begun)
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		d.out.say(d.out.paint(dim, "The nodes, as client-go reads them:"))
		return d.table(nodeHeader, nodes)
	}
	d.out.say(d.out.paint(dim, "$ kubectl --kubeconfig $DEMO/kubeconfig get nodes"))
	cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig", path, "get", "nodes")
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(d.folder, "kubectl"))
	cmd.Stdout, cmd.Stderr = d.app.out, d.app.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl get nodes: %w", err)
	}
	return nil
}

func (d *demo) table(header []string, rows [][]string) error {
	t := &table{w: d.app.out}
	t.add(header...)
	for _, r := range rows {
		t.add(r...)
	}
	return t.flush()
}

func (d *demo) useTalosconfig(ctx context.Context) error {
	d.title("Its talosconfig")
	begun := d.Now()
	path := filepath.Join(d.folder, "talosconfig")
	if err := d.freehold(ctx, "talosconfig", demoTenant, "-o", path); err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	rows, err := talosVersions(ctx, data)
	if err != nil {
		return err
	}
	if n := d.controlPlanes + d.workers; len(rows) != n {
		return fmt.Errorf("%d of %d machines told their Talos version", len(rows), n)
	}
	d.timed("talosconfig used", begun)
	return d.table([]string{"NODE", "TALOS", "PLATFORM"}, rows)
}

func (d *demo) showMachines(ctx context.Context) error {
	d.title("What the plane sees")
	if err := d.freehold(ctx, "get", "tenants"); err != nil {
		return err
	}
	return d.freehold(ctx, "get", "machines", "-t", demoTenant)
}

func (d *demo) delete(ctx context.Context) error {
	d.title("And back to nothing")
	begun := d.Now()
	err := d.freehold(ctx, "delete", "tenant", demoTenant, "--timeout", "5m")
	d.timed("tenant gone", begun)
	return err
}

// nothingLeft makes sure that the tenant, its groups and its hold on machines are gone.
func (d *demo) nothingLeft(ctx context.Context) error {
	begun := d.Now()
	tenants, err := client.Tenants(d.c).List(ctx, client.ListOptions{})
	if err != nil {
		return err
	}
	if len(tenants.Items) > 0 {
		return fmt.Errorf("tenant %s is still there", tenants.Items[0].Metadata.Name)
	}
	if err := d.awaitUnassigned(ctx); err != nil {
		return err
	}
	d.timed("machines free again", begun)
	return d.freehold(ctx, "get", "machines")
}

func (d *demo) showTimings() {
	d.title("Timings")
	for _, t := range d.timings {
		d.out.say(fmt.Sprintf("  %s  %6s", pad(t.what, 20), seconds(t.took)))
	}
	d.out.say(fmt.Sprintf("  %s  %6s", pad("all of it", 20), seconds(d.Now().Sub(d.started))))
	d.out.say("\n" + d.out.paint(green, "✓") + " A tenant from nothing to a working kubeconfig, and nothing left of it.")
	d.out.say("  To go on by hand: freehold dev, and in another terminal:")
	d.out.say("  freehold create tenant mine --control-planes 1 --workers 2 --wait")
}

// showLog prints the end of the plane's log: what an operator needs after a failure.
func (d *demo) showLog() {
	if d.plane == nil {
		return
	}
	lines := d.plane.tail(30)
	if len(lines) == 0 {
		return
	}
	d.notef("\nThe plane's log ends so:\n")
	d.notef("  %s\n\n", strings.Join(lines, "\n  "))
}
