package benthos

import (
	"context"
	"errors"
	"testing"

	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/internal/agent/engine"
)

// The value that a component sees is the secret's, whatever is in it.
func TestSecretsAreValuesAndNoSyntax(t *testing.T) {
	for _, value := range []string{
		"plain", "with: colon # and hash", "\"quoted\" 'twice'", "two\nlines", "${HOME}", "${HOME:x}", "- a", "0123", "true", "ünïcode\t", "*a &b !c",
	} {
		content := "input: {generate: {mapping: 'root = {}'}}\noutput:\n  file:\n    path: ${secret:v}\n"
		resolved, err := resolve(content, func(string) (string, error) { return value, nil })
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		// As the library does: variables first, then YAML.
		env, err := environment()
		if err != nil {
			t.Fatal(err)
		}
		b := env.NewStreamBuilder()
		b.SetEnvVarLookupFunc(func(string) (string, bool) { return "LEAKED", true })
		if err := b.SetYAML(resolved); err != nil {
			t.Errorf("%q: %v\n%s", value, err, resolved)
			continue
		}
		text, err := b.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Output struct {
				File struct{ Path string }
			}
		}
		if err := yaml.Unmarshal([]byte(text), &got); err != nil || got.Output.File.Path != value {
			t.Errorf("%q arrived as %q, %v", value, got.Output.File.Path, err)
		}
	}
}

func TestSecretThatWouldBeExecutedIsRefused(t *testing.T) {
	for _, value := range []string{`${!env("X")}`, "${X|base64}"} {
		_, err := resolve("a: ${secret:v}", func(string) (string, error) { return value, nil })
		var failed *engine.Error
		if !errors.As(err, &failed) || failed.Failure.Code != "secret_missing" {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestNumberFromASecretStaysANumber(t *testing.T) {
	resolved, err := resolve("port: ${secret:v}\nname: \"${secret:v}\"", func(string) (string, error) { return "5432", nil })
	if err != nil || resolved != "port: 5432\nname: \"5432\"\n" {
		t.Errorf("%q, %v", resolved, err)
	}
}

func TestContentWithoutSecretsIsLeftAsItIs(t *testing.T) {
	const content = "a:   b # comment\n"
	if got, err := resolve(content, nil); err != nil || got != content {
		t.Errorf("%q, %v", got, err)
	}
	if err := New(Config{}).Check(context.Background(), engine.Spec{Content: content}); err == nil {
		t.Error("a content that is no pipeline passed")
	}
}
