package provider_test

import (
	"os"
	"testing"
)

// TestMain silences the plugin libraries, which log every request of a provider that is served from the test itself.
func TestMain(m *testing.M) {
	for _, name := range []string{"TF_LOG", "TF_LOG_SDK", "TF_LOG_SDK_PROTO", "TF_LOG_SDK_FRAMEWORK", "TF_LOG_PROVIDER"} {
		if err := os.Setenv(name, "off"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
