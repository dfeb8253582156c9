package tofu

import (
	"os"
	"testing"
)

func TestTemplateThatWasCutOffIsMadeAgain(t *testing.T) {
	b, err := Find(t.Context(), os.Getenv("FREEHOLD_TOFU"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	template, err := Prepare(t.Context(), root, b)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(backendFile(template))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"empty": "", "half": string(whole[:len(whole)/2]), "another": "{}"} {
		if err := os.WriteFile(backendFile(template), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Prepare(t.Context(), root, b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(backendFile(template)); err != nil || string(got) != string(whole) {
			t.Errorf("%s: the template is %q, %v", name, got, err)
		}
	}
}
