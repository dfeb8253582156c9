package client_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/client/clienttest"
	"freehold.dev/freehold/internal/cloud"
)

func tenant(name string) *client.Tenant {
	return &client.Tenant{
		Metadata: client.Metadata{Name: name, Labels: map[string]string{"env": "test"}},
		Spec:     cloud.TenantSpec{KubernetesVersion: "1.35.0", TalosVersion: "1.12.6"},
	}
}

func TestTenantIsCreatedReadChangedAndDeleted(t *testing.T) {
	ctx := t.Context()
	tenants := client.Tenants(clienttest.New(t).Client(t))
	made, err := tenants.Create(ctx, tenant("prod"))
	if err != nil {
		t.Fatal(err)
	}
	if made.Status.Phase != cloud.PhaseForming || made.Metadata.UID == "" {
		t.Fatalf("created: %+v", made)
	}
	if _, err := tenants.Create(ctx, tenant("prod")); !client.IsConflict(err) {
		t.Fatalf("a second one of the name: %v, want Conflict", err)
	}
	got, err := tenants.Get(ctx, "prod")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, got); diff != "" {
		t.Fatal(diff)
	}
	if back, err := tenants.Update(ctx, got); err != nil || back.Metadata.ResourceVersion != got.Metadata.ResourceVersion {
		t.Fatalf("what was read, sent back: %+v, %v", back, err)
	}
	changed, err := tenants.Modify(ctx, "prod", func(o *client.Tenant) error { o.Spec.KubernetesVersion = "1.35.1"; return nil })
	if err != nil || changed.Metadata.Generation != 2 {
		t.Fatalf("changed: %+v, %v", changed, err)
	}
	if _, err := tenants.Update(ctx, got); !client.IsConflict(err) {
		t.Fatalf("a stale one: %v, want Conflict", err)
	}
	gone, err := tenants.Delete(ctx, "prod", client.DeleteOptions{})
	if err != nil || gone.Metadata.DeletionTimestamp == nil {
		t.Fatalf("deleted: %+v, %v", gone, err)
	}
	if _, err := tenants.Get(ctx, "other"); !client.IsNotFound(err) {
		t.Fatalf("%v, want NotFound", err)
	}
}

func TestModifyStartsAgainWhenSomeoneElseWrote(t *testing.T) {
	s := clienttest.New(t)
	tenants := client.Tenants(s.Client(t))
	if _, err := tenants.Create(t.Context(), tenant("prod")); err != nil {
		t.Fatal(err)
	}
	interferences := 0
	s.Before(func(r *http.Request) {
		if r.Method == http.MethodPut && interferences < 3 {
			interferences++
			s.Put(client.KindTenant, "", client.Metadata{Name: "prod", Annotations: map[string]string{"n": fmt.Sprint(interferences)}},
				tenant("prod").Spec, cloud.TenantStatus{})
		}
	})
	got, err := tenants.Modify(t.Context(), "prod", func(o *client.Tenant) error { o.Spec.TalosVersion = "1.12.5"; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if got.Spec.TalosVersion != "1.12.5" || got.Metadata.Annotations["n"] != "3" {
		t.Fatalf("the other writer's change was lost: %+v", got)
	}
}

func TestReadsAreRepeatedAndWritesAreNot(t *testing.T) {
	s := clienttest.New(t)
	tenants := client.Tenants(s.Client(t))
	s.FailNext(503, 0, 502)
	if _, err := tenants.List(t.Context(), client.ListOptions{}); err != nil {
		t.Fatalf("list: %v", err)
	}
	if n := len(s.Requests()); n != 4 {
		t.Fatalf("%d attempts, want 4", n)
	}
	s.FailNext(503)
	var e *client.Error
	if _, err := tenants.Create(t.Context(), tenant("prod")); !errors.As(err, &e) || e.Code != 503 {
		t.Fatalf("create: %v, want 503", err)
	}
	if n := len(s.Requests()); n != 5 {
		t.Fatalf("a write was repeated: %d requests", n)
	}
}

func TestErrorTellsCausesAndCorrelation(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-ID", "abc-1")
		w.WriteHeader(400)
		fmt.Fprint(w, `{"status":"failure","message":"tenant \"prod\" is invalid","reason":"BadRequest","code":400,
			"details":{"causes":[{"field":"spec.podNetwork[0]","message":"not a CIDR"},{"field":"spec.talosVersion","message":"is required"}]}}`)
	}))
	defer srv.Close()
	c, err := client.New(client.Config{Server: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Tenants(c).Create(t.Context(), tenant("prod"))
	var e *client.Error
	if !errors.As(err, &e) || !client.IsInvalid(err) || e.CorrelationID != "abc-1" || len(e.Causes) != 2 {
		t.Fatalf("%#v", err)
	}
	want := `tenant "prod" is invalid: spec.podNetwork[0]: not a CIDR; spec.talosVersion: is required`
	if err.Error() != want {
		t.Fatalf("got  %s\nwant %s", err, want)
	}
}

func TestAnswerOfAForeignServerIsNotTakenForFreehold(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/tenants" {
			w.WriteHeader(405)
		}
		fmt.Fprint(w, "<html>hello</html>")
	}))
	defer srv.Close()
	c, _ := client.New(client.Config{Server: srv.URL})
	_, err := client.Tenants(c).List(t.Context(), client.ListOptions{})
	if err == nil || !strings.Contains(err.Error(), "the server answered 405 Method Not Allowed") {
		t.Fatal(err)
	}
	if _, err = client.Providers(c).List(t.Context(), client.ListOptions{}); err == nil || !strings.Contains(err.Error(), "not what this client understands") {
		t.Fatal(err)
	}
}

func TestRefusedConnectionIsToldAtOnce(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	c, _ := client.New(client.Config{Server: srv.URL})
	_, err := client.Tenants(c).List(t.Context(), client.ListOptions{})
	var connect *client.ConnectError
	if !errors.As(err, &connect) || !connect.Refused() || !strings.Contains(err.Error(), srv.URL) {
		t.Fatalf("%#v", err)
	}
}

func TestCertificateIsCheckedByAuthorityOrPinned(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"version":"1"}`) }))
	srv.Config.ErrorLog = nil
	defer srv.Close()
	sum := sha256.Sum256(srv.Certificate().Raw)
	pin := "SHA256:" + strings.ToUpper(hex.EncodeToString(sum[:]))
	ask := func(fingerprint string) error {
		c, err := client.New(client.Config{Server: srv.URL, Fingerprint: fingerprint})
		if err != nil {
			return err
		}
		_, err = c.Version(t.Context())
		return err
	}
	if err := ask(pin); err != nil {
		t.Errorf("pinned: %v", err)
	}
	var connect *client.ConnectError
	if err := ask(""); !errors.As(err, &connect) || !connect.Untrusted() || !connect.Certificate().Equal(srv.Certificate()) {
		t.Errorf("unknown authority: %#v", err)
	}
	var other *client.FingerprintError
	if err := ask(strings.Repeat("0", 64)); !errors.As(err, &other) {
		t.Errorf("another fingerprint: %v", err)
	}
	if err := ask("12"); err == nil {
		t.Error("a broken fingerprint was accepted")
	}
}

func TestServerAddressIsCompleted(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:8080":           "http://127.0.0.1:8080",
		"localhost":                "http://localhost",
		"cloud.example.com":        "https://cloud.example.com",
		"http://cloud.example/x/":  "http://cloud.example/x",
		"":                         "",
		"ftp://x":                  "",
		"https://user:pw@host":     "",
		"https://host/?query=evil": "",
	} {
		u, err := client.ParseServer(in)
		if want == "" {
			if err == nil {
				t.Errorf("%q was accepted as %s", in, u)
			}
			continue
		}
		if err != nil || u.String() != want {
			t.Errorf("%q: %v, %v, want %s", in, u, err, want)
		}
	}
}

func TestWarningsAreHandedOn(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Warning", `299 - "an even number of control-plane machines survives no more \"losses\""`)
		fmt.Fprint(w, `{}`)
	}))
	defer srv.Close()
	var got []string
	c, _ := client.New(client.Config{Server: srv.URL, Warn: func(s string) { got = append(got, s) }})
	if _, err := c.Version(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`an even number of control-plane machines survives no more "losses"`}, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestListReadsEveryPage(t *testing.T) {
	s := clienttest.New(t)
	for i := range 1203 {
		s.Put(client.KindTenant, "", client.Metadata{Name: fmt.Sprintf("t-%04d", i)}, cloud.TenantSpec{}, cloud.TenantStatus{})
	}
	l, err := client.Tenants(s.Client(t)).List(t.Context(), client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Items) != 1203 || l.Items[1202].Metadata.Name != "t-1202" || l.Total != 1203 {
		t.Fatalf("%d items of %d", len(l.Items), l.Total)
	}
}
