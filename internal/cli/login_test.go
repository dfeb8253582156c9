package cli

import (
	"os"
	"strings"
	"testing"

	"freehold.dev/freehold/client/clienttest"
	"freehold.dev/freehold/internal/cli/config"
)

func loggedOutShell(t *testing.T) *shell {
	s := newShell(t)
	delete(s.env, "FREEHOLD_SERVER")
	delete(s.env, "FREEHOLD_TOKEN")
	return s
}

func TestLoginIsRememberedAndLogoutForgets(t *testing.T) {
	s := loggedOutShell(t)
	s.stdin = clienttest.Password + "\n"
	out := s.ok("login", s.server.URL, "--username", clienttest.User, "--password-stdin", "--name", "lab")
	if !strings.Contains(out, "as admin until ") || strings.Contains(out, clienttest.Token) {
		t.Fatal(out)
	}
	path := s.home + "/.config/freehold/config.yaml"
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if got := s.ok("whoami"); got != "admin (role admin) at "+s.server.URL+"\n" {
		t.Fatal(got)
	}
	want(t, s.ok("config", "current-context"), "lab")
	if got := s.ok("config", "get-contexts"); !strings.Contains(got, "*         lab    "+s.server.URL+"   admin   yes") {
		t.Fatal(got)
	}
	s.ok("logout")
	c, err := config.Load(path)
	if x, _ := c.Get("lab"); err != nil || x.Token != "" || x.Server != s.server.URL {
		t.Fatalf("%+v, %v", x, err)
	}
	if e := s.fails("whoami"); !strings.Contains(e, "to log in") {
		t.Fatal(e)
	}
	// Without SERVER and name, the current context is logged in again.
	s.ok("login", "-u", clienttest.User, "--password-stdin")
	want(t, s.ok("config", "current-context"), "lab")
	s.ok("config", "delete-context", "lab")
	s.fails("config", "use-context", "lab")
}

func TestWrongPasswordIsSaidSo(t *testing.T) {
	s := loggedOutShell(t)
	s.stdin = "guess"
	if e := s.fails("login", s.server.URL, "-u", "admin", "--password-stdin"); !strings.Contains(e, "refused the login: wrong user name or password") ||
		strings.Contains(e, "to log in") {
		t.Fatal(e)
	}
	if _, err := os.Stat(s.home + "/.config/freehold/config.yaml"); err == nil {
		t.Fatal("a context was saved")
	}
}

func TestATokenGoesToItsOwnServerOnly(t *testing.T) {
	s := loggedOutShell(t)
	other := newShell(t)
	s.stdin = clienttest.Password
	s.ok("login", s.server.URL, "-u", "admin", "--password-stdin")
	if e := s.fails("whoami", "--server", other.server.URL); !strings.Contains(e, "to log in") {
		t.Fatal(e)
	}
	s.ok("whoami", "--server", s.server.URL)
	s.env["FREEHOLD_SERVER"], s.env["FREEHOLD_TOKEN"] = other.server.URL, clienttest.Token
	s.ok("whoami")
	s.ok("login", other.server.URL, "-u", "admin", "--password-stdin", "--name", "second")
	delete(s.env, "FREEHOLD_SERVER")
	delete(s.env, "FREEHOLD_TOKEN")
	if got := s.ok("whoami", "--context", "second"); !strings.Contains(got, other.server.URL) {
		t.Fatal(got)
	}
}

func TestTokensAreShownOnce(t *testing.T) {
	s := newShell(t)
	r := s.run("create", "token", "ci", "--ttl", "24h")
	if r.code != 0 || r.out != "shown-once\n" || !strings.Contains(r.err, "token/ci created for admin") {
		t.Fatalf("%+v", r)
	}
	s.stdin = "long enough"
	want(t, s.ok("create", "user", "ada", "--role", "edit", "--password-stdin"), "user/ada created")
}

func TestCompletionKnowsTypesAndNames(t *testing.T) {
	s := newShell(t)
	populate(s.server)
	for typed, want := range map[string]string{
		"__complete get te":                         "tenants",
		"__complete get tenants pr":                 "prod",
		"__complete get tenant/":                    "tenant/lab",
		"__complete kubeconfig ":                    "lab",
		"__complete get ng -t ":                     "prod",
		"__complete delete node-group -t prod prod": "prod-control-plane",
		"__complete get tenants -o ":                "yaml",
	} {
		args := strings.Fields(typed)
		if strings.HasSuffix(typed, " ") {
			args = append(args, "")
		}
		if got := s.ok(args...); !strings.Contains(got, want+"\n") {
			t.Errorf("%s: %s, want %s", typed, got, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out := s.ok("completion", shell); !strings.Contains(out, "freehold") {
			t.Errorf("%s: %.80s", shell, out)
		}
	}
	s.fails("completion", "tcsh")
}
