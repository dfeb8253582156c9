package api_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/store"
)

func clientCertificate(t *testing.T, file []byte, key string) *x509.Certificate {
	t.Helper()
	m := regexp.MustCompile(`(?m)^\s*` + key + `:\s*(\S+)`).FindSubmatch(file)
	if m == nil {
		t.Fatalf("no %s in the file", key)
	}
	text, err := base64.StdEncoding.DecodeString(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestKubeconfigCarriesTheCallersName(t *testing.T) {
	p := newPlane(t)
	running(p)
	path := "/api/v1/tenants/prod/kubeconfig"
	p.send("edit", "GET", path, nil).refused(409, "Conflict")
	secrets := p.secrets.apply(t, "prod")
	a := p.send("edit", "GET", path+"?ttl=1h", nil).want(200)
	if ct := a.header.Get("Content-Type"); ct != "application/yaml" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", a.header)
	}
	var config struct {
		CurrentContext string `json:"current-context"`
		Clusters       []struct{ Cluster struct{ Server string } }
	}
	if err := yaml.Unmarshal(a.body, &config); err != nil {
		t.Fatal(err)
	}
	if config.CurrentContext != "prod" || config.Clusters[0].Cluster.Server != "https://prod.k8s.example.com:6443" {
		t.Errorf("%+v", config)
	}
	cert := clientCertificate(t, a.body, "client-certificate-data")
	if cert.Subject.CommonName != "freehold:edit-user" || !slices.Equal(cert.Subject.Organization, []string{"system:masters"}) {
		t.Errorf("subject %s", cert.Subject)
	}
	if life := cert.NotAfter.Sub(cert.NotBefore); life < time.Hour || life > 2*time.Hour {
		t.Errorf("it lives %s", life)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secrets.KubernetesCA())
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	p.send("edit", "GET", path, nil).want(200)
	entries := p.audit()
	if len(entries) != 2 || entries[0]["action"] != "issue-kubeconfig" || entries[0]["user"] != "edit-user" || entries[0]["name"] != "prod" {
		t.Errorf("audit %v", entries)
	}
	for _, e := range entries {
		for _, v := range e {
			if s, _ := v.(string); strings.Contains(s, "BEGIN") {
				t.Error("a secret in the audit log")
			}
		}
	}
}

func TestTalosconfigReachesTheMachines(t *testing.T) {
	p := newPlane(t)
	running(p)
	p.secrets.apply(t, "prod")
	a := p.send("edit", "GET", "/api/v1/tenants/prod/talosconfig", nil).want(200)
	var config struct {
		Context  string
		Contexts map[string]struct{ Endpoints, Nodes []string }
	}
	if err := yaml.Unmarshal(a.body, &config); err != nil {
		t.Fatal(err)
	}
	c := config.Contexts["prod"]
	if config.Context != "prod" || !slices.Equal(c.Endpoints, []string{"10.0.0.1"}) || !slices.Equal(c.Nodes, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}) {
		t.Errorf("%+v", config)
	}
	if cert := clientCertificate(t, a.body, "crt"); !slices.Equal(cert.Subject.Organization, []string{"os:admin"}) {
		t.Errorf("subject %s", cert.Subject)
	}
}

func TestAccessFilesThatCannotBeMade(t *testing.T) {
	p := newPlane(t)
	p.post("/api/v1/tenants", with(tenantBody("prod"), "spec/controlPlaneEndpoint", nil)).want(201)
	p.secrets.apply(t, "prod")
	for _, what := range []string{"kubeconfig", "talosconfig"} {
		path := "/api/v1/tenants/prod/" + what
		for _, ttl := range []string{"x", "-1h", "0", "30s", "9000h", "1"} {
			p.send("edit", "GET", path+"?ttl="+ttl, nil).refused(400, "BadRequest", "ttl")
		}
		p.send("edit", "GET", path, nil).refused(409, "Conflict")
		p.send("edit", "GET", "/api/v1/tenants/none/"+what, nil).refused(404, "NotFound")
	}
	// The endpoint that was derived will do.
	p.update(func(tx store.Tx) error {
		tenant, err := cloud.Tenants.Get(tx, "prod")
		if err != nil {
			return err
		}
		tenant.Status.ControlPlaneEndpoint = "https://10.0.0.1:6443"
		return cloud.Tenants.Update(tx, tenant)
	})
	p.send("edit", "GET", "/api/v1/tenants/prod/kubeconfig", nil).want(200)
	p.delete("/api/v1/tenants/prod").want(200)
	for _, what := range []string{"kubeconfig", "talosconfig"} {
		p.send("edit", "GET", "/api/v1/tenants/prod/"+what, nil).refused(409, "Conflict")
	}
}

func TestEveryOperationAsksForItsRole(t *testing.T) {
	p := newPlane(t)
	cp, _ := running(p)
	p.secrets.apply(t, "prod")
	rank := map[string]int{"view": 1, "edit": 2, "admin": 3}
	n := 0
	for path, item := range p.rest.OpenAPI().Paths {
		path = strings.NewReplacer("{name}", "prod", "{ng}", "prod-worker", "{id}", cp, "{type}", "metal").Replace(path)
		for method, op := range map[string]*opAccess{
			"GET": accessOf(item.Get), "PUT": accessOf(item.Put), "POST": accessOf(item.Post), "PATCH": accessOf(item.Patch), "DELETE": accessOf(item.Delete),
		} {
			if op == nil {
				continue
			}
			n++
			p.send("", method, path, nil).refused(401, "Unauthorized")
			for role := range rank {
				a := p.send(roleOf(role), method, path+"?resourceVersion=1", nil)
				if allowed := a.status != 403 && a.status != 401; allowed != (rank[role] >= rank[op.access]) {
					t.Errorf("%s %s needs %s; %s got %d", method, path, op.access, role, a.status)
				}
			}
		}
	}
	if n < 35 {
		t.Errorf("only %d operations", n)
	}
	for _, what := range []string{"kubeconfig", "talosconfig"} {
		p.send("view", "GET", "/api/v1/tenants/prod/"+what, nil).refused(403, "Forbidden")
	}
}
