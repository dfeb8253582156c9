package nodeconfig_test

import (
	"log/slog"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/agent/nodeconfig"
)

func TestANodesConfigurationIsRead(t *testing.T) {
	c, lints := nodeconfig.Parse(`
labels: {site: berlin}
limits: {cpu: 500m, memory: 256Mi}
secrets: {folder: /etc/freehold/secrets, environment: false}
log_level: debug
`)
	if len(lints) > 0 {
		t.Fatal(lints)
	}
	if l := c.EngineLimits(); l.CPUMillicores != 500 || l.MemoryMiB != 256 {
		t.Errorf("limits: %+v", l)
	}
	if level, given := c.LogLevel.Level(); !given || level != slog.LevelDebug {
		t.Errorf("level: %v %v", level, given)
	}
	if c.Labels["site"] != "berlin" || c.Secrets.Folder != "/etc/freehold/secrets" || c.Secrets.Environment == nil || *c.Secrets.Environment {
		t.Errorf("%+v", c)
	}
}

func TestAFaultyConfigurationIsToldByLine(t *testing.T) {
	for content, want := range map[string]struct {
		line int
		text string
	}{
		"labels:\n  a b: c\n":                 {2, "cannot be a label"},
		"log_level: loud\n":                   {1, "log_level"},
		"secrets:\n  folder: here\n":          {2, "absolute"},
		"limits:\n  cpu: 1\n  memory: many\n": {3, "memory"},
		"log_level: info\nlevel: info\n":      {2, "level"},
	} {
		_, lints := nodeconfig.Parse(content)
		if len(lints) != 1 || lints[0].Line != want.line || !strings.Contains(lints[0].Message, want.text) {
			t.Errorf("%q: %+v", content, lints)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("labels: {a: b}\n")
	f.Add("log_level: [")
	f.Fuzz(func(t *testing.T, content string) {
		c, lints := nodeconfig.Parse(content)
		if l := c.EngineLimits(); len(lints) == 0 && (l.CPUMillicores < 0 || l.MemoryMiB < 0) {
			t.Errorf("%q: limits %+v", content, l)
		}
	})
}
