package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func kubeconfigOf(server, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: prod, cluster: {server: "%s", certificate-authority-data: Y2E=}}]
contexts: [{name: prod, context: {cluster: prod, user: admin@prod, namespace: default}}]
current-context: prod
users: [{name: admin@prod, user: {client-certificate-data: Y2VydA==, client-key-data: "%s"}}]
`, server, user)
}

const mine = `apiVersion: v1
kind: Config
clusters:
- {name: work, cluster: {server: "https://work:6443", certificate-authority: ca.crt}}
- {name: prod, cluster: {server: "https://old:6443"}}
contexts:
- {name: work, context: {cluster: work, user: me, namespace: team}}
- {name: other, context: {cluster: prod, user: freehold-prod}}
current-context: work
preferences: {}
users:
- {name: me, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}}}
- {name: freehold-prod, user: {token: keep}}
`

func TestKubeconfigIsMergedWithoutHarmToOthers(t *testing.T) {
	s := newShell(t)
	path := s.file(".kube/config", mine)
	s.server.SetKubeconfig("prod", kubeconfigOf("https://10.0.0.5:6443", "a2V5"))
	if r := s.run("kubeconfig", "prod", "--merge"); r.code != 0 || r.out != "" {
		t.Fatalf("%+v", r)
	}
	got, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.CurrentContext != "prod" || got.Contexts["work"].Namespace != "team" || got.Clusters["work"].CertificateAuthority != "ca.crt" ||
		got.AuthInfos["me"].Exec.Command != "login" {
		t.Errorf("others were harmed: %+v", got)
	}
	if got.Clusters["prod"].Server != "https://old:6443" || got.AuthInfos["freehold-prod"].Token != "keep" || got.Contexts["other"].Cluster != "prod" {
		t.Errorf("what another context uses was replaced")
	}
	c := got.Contexts["prod"]
	if got.Clusters[c.Cluster].Server != "https://10.0.0.5:6443" || string(got.AuthInfos[c.AuthInfo].ClientKeyData) != "key" {
		t.Errorf("the new context: %+v", c)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// Again, with a new certificate and endpoint: replaced in place, nothing piles up.
	s.server.SetKubeconfig("prod", kubeconfigOf("https://prod.example:6443", "bmV3"))
	s.ok("kubeconfig", "prod", "--merge")
	again, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c = again.Contexts["prod"]
	if len(again.Clusters) != len(got.Clusters) || len(again.AuthInfos) != len(got.AuthInfos) || again.Clusters[c.Cluster].Server != "https://prod.example:6443" {
		t.Errorf("merged twice: %d clusters, %d users", len(again.Clusters), len(again.AuthInfos))
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("files were left behind: %v", entries)
	}
}

func TestKubeconfigDoesNotTakeAnotherClustersContext(t *testing.T) {
	s := newShell(t)
	s.env["KUBECONFIG"] = s.file("kc", mine) + string(os.PathListSeparator) + "/else/where"
	s.server.SetKubeconfig("work", kubeconfigOf("https://10.0.0.5:6443", "a2V5"))
	if e := s.fails("kubeconfig", "work", "--merge"); !strings.Contains(e, `context "work" of another cluster`) {
		t.Fatal(e)
	}
	if data, _ := os.ReadFile(s.home + "/kc"); string(data) != mine {
		t.Fatal("the file was changed")
	}
	s.ok("kubeconfig", "work", "--merge", "--context-name", "work2")
	s.ok("kubeconfig", "work", "--merge", "--overwrite")
	got, err := clientcmd.LoadFromFile(s.home + "/kc")
	if err != nil || got.Clusters[got.Contexts["work"].Cluster].Server != "https://10.0.0.5:6443" || got.Contexts["work2"] == nil {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestDamagedKubeconfigIsLeftAlone(t *testing.T) {
	s := newShell(t)
	path := s.file(".kube/config", "clusters: {{{")
	s.server.SetKubeconfig("prod", kubeconfigOf("https://10.0.0.5:6443", "a2V5"))
	s.fails("kubeconfig", "prod", "--merge")
	if data, _ := os.ReadFile(path); string(data) != "clusters: {{{" {
		t.Fatal("the file was changed")
	}
}

func TestArtifactsArePrintedOrWrittenPrivately(t *testing.T) {
	s := newShell(t)
	content := kubeconfigOf("https://10.0.0.5:6443", "a2V5")
	s.server.SetKubeconfig("prod", content)
	if out := s.ok("kubeconfig", "prod", "--ttl", "8h"); out != content {
		t.Fatal(out)
	}
	if got := s.server.Requests()[0]; got != "GET /api/v1/tenants/prod/kubeconfig?ttl=8h0m0s" {
		t.Fatal(got)
	}
	path := s.file("out", "old")
	s.ok("talosconfig", "prod", "-o", path)
	info, err := os.Stat(path)
	if data, _ := os.ReadFile(path); err != nil || info.Mode().Perm() != 0o600 || string(data) != content {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
}
