package provider_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"

	"freehold.dev/freehold/internal/cloud/talos/provider"
	"freehold.dev/freehold/internal/cloud/tofu"
)

// findTofu finds OpenTofu as the plane does.
var findTofu = sync.OnceValues(func() (tofu.Binary, error) {
	return tofu.Find(context.Background(), os.Getenv("FREEHOLD_TOFU"))
})

// deep marks a test that a short run leaves out.
func deep(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a deep variant: it runs without -short")
	}
}

// workspace is a folder in which tofu runs with this package's provider.
type workspace struct {
	t    *testing.T
	tofu string
	dir  string
	env  []string
	// installs: the provider has to be installed before it can be used.
	installs bool
}

// reattached gives a workspace whose provider is served from this process.
func reattached(t *testing.T) *workspace {
	t.Helper()
	w := newWorkspace(t, "disable_checkpoint = true\n")
	w.env = append(w.env, "TF_REATTACH_PROVIDERS="+serve(t))
	return w
}

// mirrored gives a workspace whose provider is the built program, installed from a folder.
func mirrored(t *testing.T) *workspace {
	t.Helper()
	if err := buildProvider(); err != nil {
		t.Fatal(err)
	}
	w := newWorkspace(t, fmt.Sprintf("disable_checkpoint = true\nprovider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", mirror))
	w.installs = true
	return w
}

func newWorkspace(t *testing.T, cliConfig string) *workspace {
	t.Helper()
	binary, err := findTofu()
	if err != nil {
		t.Fatal(err)
	}
	w := &workspace{t: t, tofu: binary.Path, dir: t.TempDir()}
	config := filepath.Join(t.TempDir(), "tofurc")
	w.writeTo(config, cliConfig)
	w.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TF_CLI_CONFIG_FILE=" + config, "TF_IN_AUTOMATION=1",
		"TF_LOG=off", "TF_LOG_SDK=off", "TF_LOG_SDK_PROTO=off", "TF_LOG_SDK_FRAMEWORK=off",
	}
	return w
}

func (w *workspace) writeTo(path, text string) {
	w.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// serve serves the provider until the test ends and tells how to attach to it.
func serve(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	attach, done := make(chan *plugin.ReattachConfig), make(chan struct{})
	go func() {
		_ = tf6server.Serve(provider.Address, providerserver.NewProtocol6(provider.New("test")()),
			tf6server.WithDebug(ctx, attach, done), tf6server.WithoutLogStderrOverride())
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	c := <-attach
	type address struct{ Network, String string }
	text, err := json.Marshal(map[string]any{"siderolabs/talos": map[string]any{
		"Protocol": string(c.Protocol), "ProtocolVersion": c.ProtocolVersion, "Pid": c.Pid, "Test": c.Test,
		"Addr": address{c.Addr.Network(), c.Addr.String()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (w *workspace) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(w.t.Context(), w.tofu, args...)
	cmd.Dir, cmd.Env = w.dir, w.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs tofu and wants it to succeed.
func (w *workspace) run(args ...string) string {
	w.t.Helper()
	out, code := w.try(args...)
	if code != 0 {
		w.t.Fatalf("tofu %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// try runs tofu and gives its output, each run of white space a single blank, and its exit code.
func (w *workspace) try(args ...string) (string, int) {
	w.t.Helper()
	cmd := w.command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("tofu %s: %v", strings.Join(args, " "), err)
	}
	return flat(out.String()), cmd.ProcessState.ExitCode()
}

// flat undoes the frames and line breaks of tofu's diagnostics.
func flat(s string) string {
	s = strings.NewReplacer("│", " ", "╷", " ", "╵", " ").Replace(s)
	return strings.Join(strings.Fields(s), " ")
}

// apply writes main.tf and applies it.
func (w *workspace) apply(config string) string {
	w.t.Helper()
	w.write(config)
	return w.run("apply", "-auto-approve", "-no-color", "-input=false")
}

func (w *workspace) tryApply(config string) (string, int) {
	w.t.Helper()
	w.write(config)
	return w.try("apply", "-auto-approve", "-no-color", "-input=false")
}

func (w *workspace) write(config string) {
	w.t.Helper()
	w.writeTo(filepath.Join(w.dir, "main.tf"), config)
	if _, err := os.Stat(filepath.Join(w.dir, ".terraform")); w.installs && err != nil {
		w.run("init", "-no-color", "-input=false")
	}
}

// wantNoChanges wants a plan to find nothing to do.
func (w *workspace) wantNoChanges() {
	w.t.Helper()
	if out, code := w.try("plan", "-detailed-exitcode", "-no-color", "-input=false"); code != 0 {
		w.t.Fatalf("the plan is not empty (exit code %d):\n%s", code, out)
	}
}

// changes are the actions of a plan by resource address; data sources are left out.
func (w *workspace) changes() map[string]string {
	w.t.Helper()
	w.run("plan", "-out=plan", "-no-color", "-input=false")
	cmd := w.command("show", "-json", "plan")
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("show the plan: %v", err)
	}
	var plan struct {
		Changes []struct {
			Address string
			Mode    string
			Change  struct{ Actions []string }
		} `json:"resource_changes"`
	}
	if err := json.Unmarshal(out, &plan); err != nil {
		w.t.Fatal(err)
	}
	changes := map[string]string{}
	for _, c := range plan.Changes {
		if action := strings.Join(c.Change.Actions, "+"); c.Mode == "managed" && action != "no-op" {
			changes[c.Address] = action
		}
	}
	return changes
}

// attribute reads one attribute of a resource from the state.
func (w *workspace) attribute(resourceType, name string) json.RawMessage {
	w.t.Helper()
	out, err := w.command("show", "-json").Output()
	if err != nil {
		w.t.Fatalf("show the state: %v", err)
	}
	var state struct {
		Values struct {
			Root struct {
				Resources []struct {
					Type   string
					Mode   string
					Values map[string]json.RawMessage
				}
			} `json:"root_module"`
		}
	}
	if err := json.Unmarshal(out, &state); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range state.Values.Root.Resources {
		if r.Type == resourceType && r.Mode == "managed" {
			return r.Values[name]
		}
	}
	w.t.Fatalf("no %s in the state", resourceType)
	return nil
}
