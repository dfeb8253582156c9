package provider_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// mirror is a folder that tofu installs the built provider from.
var mirror string

var buildProvider = sync.OnceValue(func() error {
	program := filepath.Join(mirror, "registry.opentofu.org", "siderolabs", "talos", "0.9.99", runtime.GOOS+"_"+runtime.GOARCH, "terraform-provider-talos_v0.9.99")
	out, err := exec.Command("go", "build", "-ldflags=-X main.version=0.9.99 -s -w", "-o", program, "freehold.dev/freehold/cmd/terraform-provider-talos").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the provider: %w\n%s", err, out)
	}
	return nil
})

// TestMain silences the plugin libraries, which log every request of a provider that is served from the test itself.
func TestMain(m *testing.M) {
	for _, name := range []string{"TF_LOG", "TF_LOG_SDK", "TF_LOG_SDK_PROTO", "TF_LOG_SDK_FRAMEWORK", "TF_LOG_PROVIDER"} {
		if err := os.Setenv(name, "off"); err != nil {
			panic(err)
		}
	}
	folder, err := os.MkdirTemp("", "freehold-provider-")
	if err != nil {
		panic(err)
	}
	mirror = folder
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}
