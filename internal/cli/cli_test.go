package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/clienttest"
	"freehold.dev/freehold/internal/cloud"
)

var update = flag.Bool("update", false, "write the golden files anew")

var epoch = time.Date(2026, 5, 28, 9, 0, 0, 0, time.UTC)

// shell runs the client as a user would, against a server in memory.
type shell struct {
	t      *testing.T
	server *clienttest.Server
	home   string
	env    map[string]string
	now    time.Time
	stdin  string
}

func newShell(t *testing.T) *shell {
	s := clienttest.New(t)
	s.Now = func() time.Time { return epoch }
	home := t.TempDir()
	return &shell{t: t, server: s, home: home, now: epoch.Add(90 * time.Second), env: map[string]string{
		"HOME": home, "FREEHOLD_SERVER": s.URL, "FREEHOLD_TOKEN": clienttest.Token,
	}}
}

type result struct {
	code     int
	out, err string
}

func (s *shell) run(args ...string) result { return s.runContext(s.t.Context(), args...) }

func (s *shell) runContext(ctx context.Context, args ...string) result {
	var out, errs bytes.Buffer
	code := s.start(ctx, &out, &errs, args...)
	return result{code, out.String(), errs.String()}
}

func (s *shell) start(ctx context.Context, out, errs interface{ Write([]byte) (int, error) }, args ...string) int {
	root := &cobra.Command{Use: "freehold"}
	Attach(root, Options{
		Version: "test", In: strings.NewReader(s.stdin), Out: out, Err: errs,
		Getenv: func(k string) string { return s.env[k] }, Now: func() time.Time { return s.now },
	})
	root.SetArgs(args)
	return Run(ctx, root)
}

// ok runs and wants success.
func (s *shell) ok(args ...string) string {
	s.t.Helper()
	r := s.run(args...)
	if r.code != 0 {
		s.t.Fatalf("freehold %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// fails runs and wants exit status 1, without anything that looks like a crash; it answers the error output.
func (s *shell) fails(args ...string) string {
	s.t.Helper()
	r := s.run(args...)
	if r.code != 1 || strings.Contains(r.err, "goroutine") || r.err == "" {
		s.t.Fatalf("freehold %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.err
}

var port = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// testdata is found from other working folders, too.
var testdata, _ = filepath.Abs("testdata")

// golden compares with testdata/NAME.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = port.ReplaceAllString(got, "127.0.0.1:PORT")
	path := filepath.Join(testdata, name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s:\n%s", path, diff)
	}
}

// transcript runs commands one after the other and shows what a terminal would.
func (s *shell) transcript(commands ...string) string {
	var b strings.Builder
	for _, line := range commands {
		r := s.run(strings.Fields(line)...)
		fmt.Fprintf(&b, "$ freehold %s\n%s%s", line, r.out, r.err)
		if r.code != 0 {
			fmt.Fprintf(&b, "[exit %d]\n", r.code)
		}
		b.WriteString("\n")
	}
	return b.String()
}

const (
	cp0 = "a1b2c3d4-0000-4000-8000-000000000001"
	w0  = "a1b2c3d4-0000-4000-8000-000000000002"
	un  = "a1b2c3d4-0000-4000-8000-000000000003"
)

// populate puts a tenant with two machines, an unassigned one, and a provider on the server.
func populate(s *clienttest.Server) {
	s.Put(client.KindProvider, "", client.Metadata{Name: "metal"}, cloud.ProviderSpec{Type: "metal"},
		cloud.ProviderStatus{Mappings: []cloud.Mapping{{TFType: "talos_machine_configuration_apply", Resource: "Machine"}}})
	s.Put(client.KindTenant, "", client.Metadata{Name: "prod", Labels: map[string]string{"env": "prod"}, Finalizers: cloud.TenantFinalizers},
		cloud.TenantSpec{KubernetesVersion: "1.35.0", TalosVersion: "1.12.6", PodNetwork: []string{"10.244.0.0/16"}},
		cloud.TenantStatus{
			Phase: cloud.PhaseForming, Available: true, Machines: cloud.MachineCounts{Total: 2, Healthy: 1, Connected: 2},
			KubernetesVersion: "1.35.0", TalosVersion: "1.12.6", ControlPlaneEndpoint: "https://10.0.0.5:6443",
			Conditions: []cloud.Condition{{Type: "Applied", Status: "True", Reason: "Succeeded", LastTransitionTime: epoch}},
		})
	s.Put(client.KindTenant, "", client.Metadata{Name: "lab"}, cloud.TenantSpec{KubernetesVersion: "1.34.2", TalosVersion: "1.12.6"},
		cloud.TenantStatus{Phase: cloud.PhaseActive, Available: true, Ready: true, APIReady: true, ControlPlaneReady: true})
	group(s, "prod-control-plane", cloud.RoleControlPlane)
	group(s, "prod-worker", cloud.RoleWorker)
	putMachine(s, cp0, "prod-control-plane", cloud.RoleControlPlane, cloud.MachineStatus{Stage: cloud.StageReady, Ready: true, TalosVersion: "1.12.6",
		Hardware: cloud.Hardware{Processors: []cloud.Processor{{CoreCount: 4}}, MemoryModules: []cloud.MemoryModule{{SizeMB: 8192}}},
		Network:  cloud.Network{Hostname: "prod-cp-0"}})
	putMachine(s, w0, "prod-worker", cloud.RoleWorker, cloud.MachineStatus{Stage: cloud.StageInstalling, LastError: "no answer from 10.0.0.6:50000"})
	s.Put(client.KindMachine, "", client.Metadata{Name: un, Labels: map[string]string{"rack": "b"}},
		client.MachineSpec{ManagementAddress: "10.0.0.7:50000", Connected: true}, cloud.MachineStatus{Stage: cloud.StageInitializing, Maintenance: true, Connected: true})
	s.Put(client.KindUser, "", client.Metadata{Name: "admin"}, client.UserSpec{Role: "admin"}, client.UserStatus{LastLogin: &epoch, ActiveTokens: 1})
	expires := epoch.Add(240 * time.Hour)
	s.Put(client.KindToken, "admin", client.Metadata{Name: "ci", Labels: map[string]string{"rezuscloud.io/user": "admin"}}, client.APITokenSpec{ExpiresAt: &expires}, client.APITokenStatus{})
}

func group(s *clienttest.Server, name string, role cloud.Role) {
	s.Put(client.KindNodeGroup, "prod", client.Metadata{Name: name, Labels: map[string]string{cloud.LabelTenant: "prod", cloud.LabelRole: string(role)}},
		cloud.NodeGroupSpec{Count: 1, ProviderClass: "metal"}, cloud.NodeGroupStatus{Phase: cloud.PhaseForming, Machines: cloud.MachineCounts{Total: 1}})
}

func putMachine(s *clienttest.Server, name, group string, role cloud.Role, status cloud.MachineStatus) {
	address := map[string]string{cp0: "10.0.0.5:50000", w0: "10.0.0.6:50000"}[name]
	s.Put(client.KindMachine, "", client.Metadata{
		Name: name, Finalizers: []string{cloud.FinalizerTeardown}, Annotations: map[string]string{cloud.AnnotationSlot: "0"},
		Labels: map[string]string{cloud.LabelTenant: "prod", cloud.LabelNodeGroup: group, cloud.LabelRole: string(role), cloud.LabelProvider: "metal"},
	}, client.MachineSpec{ManagementAddress: address, Connected: true}, status)
}

func TestTables(t *testing.T) {
	s := newShell(t)
	populate(s.server)
	golden(t, "get", s.transcript(
		"get tenants", "get tn -o wide", "get tenants,providers", "get tenants --no-headers --show-labels", "get tenants -l env=prod -o name",
		"get ng", "get node-groups -t prod -o wide", "get machines", "get m -t prod -o wide --no-headers", "get machine "+cp0,
		"get providers", "get users", "get tokens", "get tokens --user admin -o name",
		"get tenants -l env=none", "get machines -t lab", "get tenant/prod machine/"+un, "get tenant prod missing lab",
		"get tenant prod -o jsonpath={.status.phase}", "get tenants -o jsonpath={.items[*].metadata.name}",
	))
}

func TestStructuredOutput(t *testing.T) {
	s := newShell(t)
	populate(s.server)
	golden(t, "structured", s.transcript("get tenant prod -o yaml", "get ng prod-worker -t prod -o json", "get providers -o yaml"))
}

func TestDescribe(t *testing.T) {
	s := newShell(t)
	populate(s.server)
	finished := epoch.Add(80 * time.Second)
	s.server.SetApplies("prod", client.List[client.Apply]{Items: []client.Apply{{
		ID: "7", Trigger: "spec", StartedAt: epoch.Add(60 * time.Second), FinishedAt: &finished, Seconds: 20.4, Result: "succeeded", Plan: client.PlanSummary{Add: 5},
	}}, Total: 1})
	golden(t, "describe", s.transcript("describe tenant prod", "describe ng/prod-worker -t prod", "describe machine "+w0, "describe provider metal", "describe user admin", "describe token ci --user admin"))
}

func TestCreateScaleDelete(t *testing.T) {
	s := newShell(t)
	golden(t, "create", s.transcript(
		"create tenant demo --control-planes 1 --workers 2", "get ng -t demo",
		"create tenant demo", "create tenant flat --control-planes 1 --workers 1 --address 10.0.0.5,10.0.0.6",
		"get ng flat-worker -t flat -o jsonpath={.spec.providerConfig}",
		"create tenant x --workers 1", "create tenant x --control-planes 1 --address a,b", "create tenant x --wait", "create tenant",
		"create node-group gpu -t demo --count 2 --selector gpu=yes", "create ng gpu",
		"create machine", "scale ng gpu -t demo --count 3", "scale ng gpu -t demo --count 3", "scale tenant demo --count 3", "scale ng gpu --count 1",
		"delete ng gpu -t demo", "delete ng gpu -t demo", "delete ng gpu -t demo --ignore-not-found", "delete tenant demo --wait=false",
		"delete tenants", "get pods", "frobnicate", "get tenants --what",
	))
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := newShell(t)
	text := s.transcript("get tenant prod", "kubeconfig prod", "wait tenant/prod --for=active", "wait tenant/prod --for=x=y", "wait tenants",
		"get tenants -o xml", "apply", "apply -f /no/such/file", "login -u admin", "logout --token x --server http://127.0.0.1:1", "whoami --context nowhere")
	s.env["FREEHOLD_TOKEN"] = "stale"
	text += s.transcript("get tenants")
	s.env["FREEHOLD_TOKEN"] = clienttest.Token
	s.server.FailNext(500)
	text += s.transcript("whoami")
	s.server.FailNext(403)
	text += s.transcript("whoami")
	s.env["FREEHOLD_SERVER"] = "http://127.0.0.1:1"
	text += s.transcript("get tenants")
	delete(s.env, "FREEHOLD_SERVER")
	text += s.transcript("get tenants")
	golden(t, "errors", text)
}
