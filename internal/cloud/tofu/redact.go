package tofu

import (
	"encoding/json"
	"regexp"
	"strings"
)

const redacted = "[redacted]"

// secretShapes are what keys, certificates and tokens look like wherever they turn up.
var secretShapes = []*regexp.Regexp{
	regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|$)`),
	// Base64 of some length: keys and certificates as Talos writes them.
	regexp.MustCompile(`[A-Za-z0-9+/_-]{60,}={0,2}`),
	// 32 bytes in base64: cluster secrets, keys of secretbox.
	regexp.MustCompile(`\b[A-Za-z0-9+/]{43}=`),
	// Bootstrap and trustd tokens.
	regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
}

// redactor takes secrets out of text.
type redactor struct{ known []string }

func (r redactor) text(s string) string {
	for _, k := range r.known {
		if k != "" {
			s = strings.ReplaceAll(s, k, redacted)
		}
	}
	for _, re := range secretShapes {
		s = re.ReplaceAllString(s, redacted)
	}
	return s
}

// line cleans one line of tofu's -json output. Source snippets, values of outputs and of ids go whole: the
// configuration carries the operator's patches, which may hold anything.
func (r redactor) line(raw []byte) []byte {
	var v map[string]any
	if err := json.Unmarshal(raw, &v); err != nil {
		return []byte(r.text(string(raw)))
	}
	if d, ok := v["diagnostic"].(map[string]any); ok {
		delete(d, "snippet")
	}
	delete(v, "outputs")
	out, err := json.Marshal(r.walk(v))
	if err != nil {
		return []byte(`{}`)
	}
	return out
}

func (r redactor) walk(v any) any {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case map[string]any:
		for k, e := range v {
			v[k] = r.walk(e)
		}
	case []any:
		for i, e := range v {
			v[i] = r.walk(e)
		}
	}
	return v
}
