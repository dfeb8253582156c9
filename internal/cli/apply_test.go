package cli

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

const prodYAML = `# the group comes first on purpose
kind: NodeGroup
tenant: prod
metadata:
  name: workers
  labels: {rezuscloud.io/role: worker}
spec:
  count: 2
  providerClass: metal
---
apiVersion: freehold.dev/v1
kind: Tenant
metadata:
  name: prod
  labels: {env: prod}
spec:
  kubernetesVersion: 1.35.0
  talosVersion: 1.12.6
---
# nothing but a comment
---
kind: Machine
metadata: {labels: {rack: b}}
spec: {managementAddress: 10.0.0.9}
`

func (s *shell) file(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func want(t *testing.T, got string, lines ...string) {
	t.Helper()
	if text := strings.Join(lines, "\n") + "\n"; got != text {
		t.Fatalf("got\n%swant\n%s", got, text)
	}
}

func TestApplyCreatesThenChangesNothingThenWhatDiffers(t *testing.T) {
	s := newShell(t)
	path := s.file("prod.yaml", prodYAML)
	dry := s.ok("apply", "-f", path, "--dry-run")
	want(t, dry, "machine/(new) created (dry run)", "tenant/prod created (dry run)", "node-group/workers created (dry run)")
	if r := s.run("get", "tenants"); r.out != "" {
		t.Fatalf("a dry run created: %s", r.out)
	}
	out := s.ok("apply", "-f", path)
	if !strings.Contains(out, "tenant/prod created\nnode-group/workers created\n") || !strings.HasPrefix(out, "machine/generated-") {
		t.Fatal(out)
	}
	writes := len(s.writes())
	out = s.ok("apply", "-f", path)
	if strings.Count(out, " unchanged\n") != 3 || len(s.writes()) != writes {
		t.Fatalf("a second time:\n%s", out)
	}
	changed := s.file("prod.yaml", strings.NewReplacer("count: 2", "count: 3", "env: prod", "env: live").Replace(prodYAML))
	want(t, s.ok("apply", "-f", changed, "--dry-run=client"),
		firstLine(out)+" (dry run)", "tenant/prod configured (dry run)", "node-group/workers configured (dry run)")
	out = s.ok("apply", "-f", changed)
	if !strings.HasSuffix(out, "tenant/prod configured\nnode-group/workers configured\n") {
		t.Fatal(out)
	}
	if got := s.ok("get", "ng", "workers", "-t", "prod", "-o", "jsonpath={.spec.count}"); got != "3\n" {
		t.Fatal(got)
	}
}

func firstLine(s string) string { return s[:strings.IndexByte(s, '\n')] }

// writes are the requests that change something.
func (s *shell) writes() []string {
	var out []string
	for _, r := range s.server.Requests() {
		if !strings.HasPrefix(r, "GET ") {
			out = append(out, r)
		}
	}
	return out
}

func TestWhatGetPrintsIsAppliedUnchanged(t *testing.T) {
	s := newShell(t)
	populate(s.server)
	for _, what := range [][]string{
		{"get", "tenant", "prod"}, {"get", "tenants"}, {"get", "ng"}, {"get", "ng", "prod-worker", "-t", "prod"}, {"get", "machines"}, {"get", "users"},
	} {
		for _, format := range []string{"yaml", "json"} {
			s.stdin = s.ok(append(what, "-o", format)...)
			out := s.ok("apply", "-f", "-")
			if strings.Count(out, "unchanged\n") != strings.Count(out, "\n") || out == "" {
				t.Errorf("%v -o %s, applied:\n%s", what, format, out)
			}
		}
	}
	if w := s.writes(); len(w) != 0 {
		t.Errorf("it wrote: %q", w)
	}
}

func TestApplyKeepsLabelsOfOthersAndRemovesNullOnes(t *testing.T) {
	s := newShell(t)
	s.server.Put(client.KindTenant, "", client.Metadata{Name: "prod", Labels: map[string]string{"theirs": "x", "old": "y"}},
		cloud.TenantSpec{KubernetesVersion: "1.35.0", TalosVersion: "1.12.6"}, cloud.TenantStatus{})
	s.stdin = `{"kind":"Tenant","metadata":{"name":"prod","labels":{"mine":"z","old":null}},"spec":{"kubernetesVersion":"1.35.0","talosVersion":"1.12.6"}}`
	want(t, s.ok("apply", "-f", "-"), "tenant/prod configured")
	want(t, s.ok("get", "tenant", "prod", "--show-labels", "--no-headers"), "prod   -   False   0/0   1.35.0   1.12.6   90s   mine=z,theirs=x")
}

func TestApplyStartsAgainWhenSomeoneElseWrote(t *testing.T) {
	s := newShell(t)
	s.ok("apply", "-f", s.file("a.yaml", prodYAML))
	interfered := 0
	s.server.Before(func(r *http.Request) {
		if r.Method == http.MethodPut && interfered < 2 {
			interfered++
			s.server.Put(client.KindTenant, "", client.Metadata{Name: "prod", Annotations: map[string]string{"n": fmt.Sprint(interfered)}},
				cloud.TenantSpec{KubernetesVersion: "1.35.0", TalosVersion: "1.12.6"}, cloud.TenantStatus{})
		}
	})
	s.stdin = "kind: Tenant\nmetadata: {name: prod}\nspec: {kubernetesVersion: 1.35.1, talosVersion: 1.12.6}\n"
	want(t, s.ok("apply", "-f", "-"), "tenant/prod configured")
	want(t, s.ok("get", "tenant", "prod", "-o", "jsonpath={.metadata.annotations.n} {.spec.kubernetesVersion}"), "2 1.35.1")
}

func TestApplyGoesOnAfterARefusalAndFails(t *testing.T) {
	s := newShell(t)
	path := s.file("a.yaml", "kind: Tenant\nmetadata: {name: a}\nspec: {kubernetesVersion: 1.35.0, talosVersion: 1.12.6}\n---\n"+
		"kind: Tenant\nmetadata: {name: b}\nspec: {kubernetesVersion: 1.35.0, talosVersion: 1.12.6}\n")
	s.server.FailNext(404, 400) // the look for a, and its creation
	r := s.run("apply", "-f", path)
	if r.code != 1 || r.out != "tenant/b created\n" || !strings.Contains(r.err, "document 1 (tenant/a): failed on demand") {
		t.Fatalf("%+v", r)
	}
}

func TestApplyOfWhatIsBeingDeletedIsRefused(t *testing.T) {
	s := newShell(t)
	s.ok("apply", "-f", s.file("a.yaml", prodYAML))
	s.ok("delete", "tenant", "prod", "--wait=false")
	if e := s.fails("apply", "-f", s.home+"/a.yaml"); !strings.Contains(e, "it is being deleted: apply again when it is gone") {
		t.Fatal(e)
	}
}

func TestBrokenFilesAreToldBeforeAnythingIsSent(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"no kind":        {"metadata: {name: a}", "document 1: kind is missing"},
		"other kind":     {"kind: Pod\nmetadata: {name: a}", `kind is "Pod"`},
		"read-only kind": {"kind: Provider\nmetadata: {name: a}", `kind is "Provider"`},
		"unknown field":  {"kind: Tenant\nmetadata: {name: a}\nspecs: {}", `unknown field "specs"`},
		"twice a key":    {"kind: Tenant\nkind: Tenant", `already set`},
		"no name":        {"kind: Tenant\nspec: {}", "metadata.name is missing"},
		"no tenant":      {"kind: NodeGroup\nmetadata: {name: a}", "name its tenant"},
		"two tenants":    {"kind: NodeGroup\ntenant: a\nmetadata: {name: a, labels: {rezuscloud.io/tenant: b}}", `tenant is "a", and the label`},
		"declared twice": {"kind: Tenant\nmetadata: {name: a}\n---\nkind: Tenant\nmetadata: {name: a}", "is declared before"},
		"other version":  {"apiVersion: v1\nkind: Tenant\nmetadata: {name: a}", "this client knows freehold.dev/v1"},
		"not YAML":       {"{{{", "document 1"},
		"empty":          {"# nothing\n", "no resources found"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShell(t)
			e := s.fails("apply", "-f", s.file("x.yaml", c.content))
			if !strings.Contains(e, c.want) || len(s.server.Requests()) > 0 {
				t.Fatalf("%s\nrequests: %q", e, s.server.Requests())
			}
		})
	}
}

func TestFoldersAreReadAndDeletionGoesBackwards(t *testing.T) {
	s := newShell(t)
	s.file("conf/a-group.yaml", "kind: NodeGroup\ntenant: prod\nmetadata: {name: w}\nspec: {count: 1, providerClass: metal}\n")
	s.file("conf/b-tenant.json", `{"kind":"Tenant","metadata":{"name":"prod"},"spec":{"kubernetesVersion":"1.35.0","talosVersion":"1.12.6"}}`)
	s.file("conf/notes.txt", "not a manifest")
	want(t, s.ok("apply", "-f", s.home+"/conf"), "tenant/prod created", "node-group/w created")
	want(t, s.ok("delete", "-f", s.home+"/conf", "--wait=false"), "node-group/w goes with tenant/prod", "tenant/prod is being deleted")
}
