// Package nodeconfig is the node-wide configuration: a config version of engine "node", applied as the reserved
// resource "__configuration__".
package nodeconfig

import (
	"fmt"
	"log/slog"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"freehold.dev/freehold/internal/agent/engine"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/strict"
	"freehold.dev/freehold/internal/hub"
)

// Config of a node. What is left out is as if there were no configuration.
type Config struct {
	// Labels describe the node to those who look at its status.
	Labels map[string]string `yaml:"labels"`
	// Limits of each stream's processes; a stream may ask for lower ones. They hold from a stream's next start on.
	Limits process.Limits `yaml:"limits"`
	// Secrets is where ${secret:name} is looked up.
	Secrets Secrets `yaml:"secrets"`
	// LogLevel of the agent itself: debug, info, warn or error; "": as it was started.
	LogLevel LogLevel `yaml:"log_level"`
}

// Secrets are looked up in the folder first.
type Secrets struct {
	// Folder with one file for each secret; "": "secrets" in the agent's data folder.
	Folder string `yaml:"folder"`
	// Environment tells whether FREEHOLD_SECRET_<NAME> in the agent's environment is a secret too; left out: yes.
	Environment *bool `yaml:"environment"`
}

// LogLevel is a level by its name.
type LogLevel string

var logLevels = []LogLevel{"debug", "info", "warn", "error"}

// Level answers the level, and whether one was asked for.
func (l LogLevel) Level() (level slog.Level, given bool) {
	return level, l != "" && level.UnmarshalText([]byte(l)) == nil
}

// EngineLimits are the limits as engines take them.
func (c *Config) EngineLimits() engine.Limits {
	return engine.Limits{CPUMillicores: int(c.Limits.CPU), MemoryMiB: int(c.Limits.Memory)}
}

// Parse reads a content. It looks at nothing but the content.
func Parse(content string) (Config, []hub.Lint) {
	var c Config
	doc, lints := strict.Decode(content, &c)
	if len(lints) > 0 {
		return Config{}, lints
	}
	fault := func(message string, at ...string) { lints = append(lints, doc.Fault(message, at...)) }
	names := make([]string, 0, len(c.Labels))
	for name := range c.Labels {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, why := range validation.IsQualifiedName(name) {
			fault(fmt.Sprintf("%q cannot be a label: %s", name, why), "labels", name)
		}
		for _, why := range validation.IsValidLabelValue(c.Labels[name]) {
			fault(fmt.Sprintf("%q cannot be a label's value: %s", c.Labels[name], why), "labels", name)
		}
	}
	if c.Secrets.Folder != "" && !path.IsAbs(c.Secrets.Folder) {
		fault("secrets.folder must be an absolute path", "secrets", "folder")
	}
	if c.LogLevel != "" && !slices.Contains(logLevels, c.LogLevel) {
		fault(fmt.Sprintf("log_level must be debug, info, warn or error, not %q", string(c.LogLevel)), "log_level")
	}
	if len(lints) > 0 {
		return Config{}, lints
	}
	return c, nil
}

// Lint tells the faults of a content.
func Lint(content string) []hub.Lint {
	_, lints := Parse(content)
	return lints
}
