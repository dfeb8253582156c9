package talos_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
)

func TestPatchesOfBothKindsAreAccepted(t *testing.T) {
	for name, p := range map[string]string{
		"strategic":    "machine:\n  install:\n    disk: /dev/vda\n",
		"json":         `{"machine":{"install":{"disk":"/dev/vda"}}}`,
		"documents":    "machine:\n  kubelet: {}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nauto: \"off\"\nhostname: one\n",
		"document":     "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: \"off\"\nhostname: one\n",
		"json6902":     `[{"op":"replace","path":"/machine/install/disk","value":"/dev/vda"}]`,
		"json6902yaml": "- op: add\n  path: /machine/sysctls\n  value:\n    a.b: \"1\"\n",
		"delete":       "cluster:\n  network:\n    $patch: delete\n",
	} {
		if err := talos.CheckPatch(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBrokenPatchesSayWhatIsWrong(t *testing.T) {
	deep := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'j'; c++ {
		deep += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 10) + "]\n"
	}
	for name, c := range map[string]struct{ patch, want string }{
		"empty":             {"", "empty"},
		"blank":             {" \n ", "empty"},
		"empty list":        {"[]", "empty"},
		"file":              {"@/etc/passwd", "not followed"},
		"file with blanks":  {"\n  @/etc/passwd\n", "not followed"},
		"file name":         {"/etc/passwd", "either partial Talos documents or a list"},
		"not yaml":          {"machine: [", "not YAML"},
		"unknown key":       {"machine:\n  instal:\n    disk: geheim\n", "machine.instal.disk"},
		"unknown document":  {"apiVersion: v1alpha1\nkind: Nonsense\n", "Nonsense"},
		"wrong type":        {"machine:\n  install: 7\n", "line 2"},
		"unknown operation": {`[{"op":"frob","path":"/machine"}]`, "operation 1"},
		"no path":           {`[{"op":"remove"}]`, "path is missing"},
		"no value":          {`[{"op":"add","path":"/a"}]`, "value is missing"},
		"no pointer":        {`[{"op":"add","path":"a","value":1}]`, "JSON pointer"},
		"no from":           {`[{"op":"move","path":"/a"}]`, "from is missing"},
		"null operation":    {`[null]`, "op is missing"},
		"scalar operation":  {`[7]`, "must be a mapping"},
		"list and document": {"- op: remove\n  path: /machine/install\n---\nmachine: {}\n", "only document"},
		"aliases":           {deep, "unfolds"},
		"alias of itself":   {"a: &a [*a]", ""},
	} {
		err := talos.CheckPatch(c.patch)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: the error shows a value: %v", name, err)
		}
	}
}

func TestPatchNeverOpensAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "patch.yaml")
	if err := os.WriteFile(file, []byte("machine: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{file, "@" + file} {
		if err := talos.CheckPatch(p); err == nil {
			t.Errorf("%q was accepted", p)
		}
	}
}

func TestBrokenPatchIsNamedByItsPlace(t *testing.T) {
	in := input(cloud.RoleControlPlane)
	in.Patches = []string{"machine: {}", `[{"op":"remove","path":"/machine/nothing/here"}]`}
	var at *talos.PatchError
	if err := talos.CheckConfig(in); !errors.As(err, &at) || at.Index != 1 || !strings.Contains(err.Error(), "config patch 2") {
		t.Fatalf("got %v", err)
	}
}

func TestJSONPatchAppliesToAConfigurationOfSeveralDocuments(t *testing.T) {
	in := input(cloud.RoleControlPlane)
	in.Patches = []string{
		"apiVersion: v1alpha1\nkind: HostnameConfig\nauto: \"off\"\nhostname: eins\n",
		"- op: replace\n  path: /machine/install/disk\n  value: /dev/vdb\n- op: test\n  path: /machine/type\n  value: controlplane\n",
	}
	text, err := talos.Generate(in, newSecrets(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"disk: /dev/vdb", "hostname: eins", "\n---\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in the configuration", want)
		}
	}
}

func TestJSONPatchCannotMultiplyItself(t *testing.T) {
	in := input(cloud.RoleWorker)
	ops := []string{`{"op":"add","path":"/machine/sysctls","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`}
	for range 64 {
		ops = append(ops, `{"op":"copy","from":"/machine","path":"/machine/sysctls/b"}`)
	}
	in.Patches = []string{"[" + strings.Join(ops, ",") + "]"}
	if err := talos.CheckConfig(in); err == nil {
		t.Fatal("a patch that doubles the configuration 64 times was applied")
	}
}

func FuzzPatch(f *testing.F) {
	for _, seed := range []string{"machine: {}", "[]", `[{"op":"copy","from":"","path":"/a"}]`, "a: &a [*a]", "$patch: delete", "- op: add\n  path: /machine/-\n  value: 1",
		"cluster:\n  network:\n    $patch: delete\n", "machine:\n  network:\n    interfaces:\n      - interface: eth0\n        $patch: delete\n"} {
		f.Add(seed)
	}
	in := input(cloud.RoleControlPlane)
	f.Fuzz(func(t *testing.T, p string) {
		in := in
		in.Patches = []string{p}
		checked, built := talos.CheckPatch(p), talos.CheckConfig(in)
		if checked != nil && built == nil {
			t.Fatalf("CheckPatch refuses (%v) what CheckConfig takes: %q", checked, p)
		}
	})
}
