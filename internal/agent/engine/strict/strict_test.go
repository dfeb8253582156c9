package strict_test

import (
	"strings"
	"testing"

	"freehold.dev/freehold/internal/agent/engine/strict"
)

func TestSyntaxErrorsHaveTheirLine(t *testing.T) {
	for content, line := range map[string]int{
		"a: b\nc: {d: e":                       2,
		"a: b\n- c":                            2,
		"a: b\nc: \"d":                         2,
		"a: b\nx: {y: {}}}\nz: 1":              2,
		"a: b\n\tc: d":                         2,
		"a: b\nc: *nothing":                    2,
		"a: b\nc: d: e":                        2,
		"a: [\"b\", \x00]":                     1,
		"a: |\n  x\n  y\nb: [\n1,\n2]\n:\n- x": 7,
		"{\"a\": 1,\n \"b\": [2,\n 3}}":        2,
	} {
		_, lints := strict.Parse(content)
		if len(lints) != 1 || lints[0].Line != line || lints[0].Column < 1 {
			t.Errorf("%q: %+v, want line %d", content, lints, line)
		}
	}
}

func TestAFaultInALargeContentIsTold(t *testing.T) {
	const lines = 50_000
	_, lints := strict.Parse(strings.Repeat("- [a]\n", lines) + "}")
	if len(lints) != 1 || lints[0].Line < 1 || lints[0].Line > lines+1 {
		t.Errorf("%+v", lints)
	}
}
