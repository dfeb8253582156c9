package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// Every command of the how-to pages works as printed, one page after the other.
func TestHowToPagesWork(t *testing.T) {
	home := t.TempDir()
	env := []string{"HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, ".config"), "FREEHOLD_ADMIN_PASSWORD=" + adminPassword}
	if tofu := builtTofu(); tofu != "" {
		env = append(env, "FREEHOLD_TOFU="+tofu)
	}
	plane := start(t, env, "freehold", "dev", "--data", filepath.Join(home, "data"), "--listen", "127.0.0.1:0", "--machines", "5", "--machine-timing", "fast")
	if !strings.HasPrefix(plane.line, "freehold ready") {
		t.Fatalf("dev is not ready: %q", plane.line)
	}
	path := bin + string(os.PathListSeparator) + os.Getenv("PATH")
	kubectl := findKubectl()
	if kubectl != "" {
		path = filepath.Dir(kubectl) + string(os.PathListSeparator) + path
	}
	work := t.TempDir()
	env = append(env, "FREEHOLD_DATA="+filepath.Join(home, "data"))
	for _, page := range []string{
		"create-a-tenant-from-files", "use-the-kubeconfig", "scale-a-tenant",
		"../tutorial/first-stream", "run-a-process", "give-a-stream-secrets", "enrol-a-node",
	} {
		text, err := os.ReadFile("../docs/how-to/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		blocks := shellBlock.FindAllSubmatch(text, -1)
		if len(blocks) == 0 {
			t.Fatalf("%s has no commands", page)
		}
		for _, block := range blocks {
			script := string(block[1])
			if kubectl == "" {
				script = regexp.MustCompile(`(?m)^kubectl .*$`).ReplaceAllString(script, "")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
			cmd.Dir = work
			cmd.Env = append(os.Environ(), append(env, "PATH="+path, "FREEHOLD_SERVER=", "FREEHOLD_TOKEN=", "FREEHOLD_CONTEXT=", "KUBECONFIG=")...)
			out, err := cmd.CombinedOutput()
			cancel()
			t.Logf("%s:\n%s\n%s", page, script, out)
			if err != nil {
				t.Fatalf("%s: %v", page, err)
			}
		}
	}
}

// cached is what make built into the user's cache, "" if it is not there.
func cached(pattern string) string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	found, err := filepath.Glob(filepath.Join(cache, "freehold", pattern))
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

// builtTofu: HOME is another one in the test, and so is the cache that the plane would look into.
func builtTofu() string {
	if given := os.Getenv("FREEHOLD_TOFU"); given != "" {
		return given
	}
	return cached("tofu-1.12.*/tofu")
}

func findKubectl() string {
	if given := os.Getenv("FREEHOLD_KUBECTL"); given != "" {
		return given
	}
	if path, err := exec.LookPath("kubectl"); err == nil {
		return path
	}
	return cached("kubectl-*/kubectl")
}
