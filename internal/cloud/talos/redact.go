package talos

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"go.yaml.in/yaml/v4"
)

const redacted = "[secret]"

// Redactor takes the secrets of a machine configuration out of texts, such as a machine's answer to it.
type Redactor struct {
	replacer *strings.Replacer
	// whole is set when the configuration cannot be read: then nothing is shown.
	whole bool
}

// NewRedactor knows every value of the configuration that Talos itself takes for a secret, and the extra ones.
func NewRedactor(config []byte, extra ...string) *Redactor {
	secrets, ok := secretValues(config)
	secrets = append(secrets, extra...)
	for _, s := range slices.Clone(secrets) {
		if raw, err := base64.StdEncoding.DecodeString(s); err == nil {
			secrets = append(secrets, string(raw))
		}
	}
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, s := range slices.Compact(secrets) {
		if len(s) >= 4 {
			pairs = append(pairs, s, redacted)
		}
	}
	return &Redactor{replacer: strings.NewReplacer(pairs...), whole: !ok}
}

// Redact gives the text with each secret replaced.
func (r *Redactor) Redact(text string) string {
	if r.whole {
		return "(not shown: the configuration that it answers cannot be read)"
	}
	return r.replacer.Replace(text)
}

// secretValues are the strings that differ between the configuration and its redacted copy.
func secretValues(text []byte) ([]string, bool) {
	cfg, err := load(text)
	if err != nil {
		return nil, false
	}
	plain, err1 := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	hidden, err2 := cfg.RedactSecrets(redacted).EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err1 != nil || err2 != nil {
		return nil, false
	}
	var values []string
	a, b := yaml.NewDecoder(strings.NewReader(string(plain))), yaml.NewDecoder(strings.NewReader(string(hidden)))
	for {
		var x, y yaml.Node
		if a.Decode(&x) != nil || b.Decode(&y) != nil {
			return values, true
		}
		differing(&x, &y, &values)
	}
}

func differing(x, y *yaml.Node, values *[]string) {
	if x.Kind == yaml.ScalarNode && x.Value != y.Value {
		*values = append(*values, x.Value)
	}
	if len(x.Content) != len(y.Content) {
		for _, c := range x.Content {
			differing(c, &yaml.Node{}, values)
		}
		return
	}
	for i := range x.Content {
		differing(x.Content[i], y.Content[i], values)
	}
}
