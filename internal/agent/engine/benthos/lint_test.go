package benthos_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"freehold.dev/freehold/internal/agent/engine/benthos"
)

func TestFaultsOfAPipelineHaveLineAndColumn(t *testing.T) {
	const sound = "input:\n  generate:\n    mapping: root = {}\noutput:\n  drop: {}\n"
	for _, tt := range []struct {
		name    string
		content string
		line    int
		column  int // 0: not looked at
		message string
	}{
		{"empty", "", 1, 1, "empty"},
		{"syntax", "input:\n  - a\n b: [", 3, 0, "YAML"},
		{"a list", "- a", 1, 1, "object"},
		{"unknown field", "input:\n  generate:\n    mapping: root = {}\n    nonsense: 1\noutput:\n  drop: {}\n", 4, 0, "nonsense"},
		{"unknown type", "input:\n  generate:\n    mapping: root = {}\noutput:\n  teleport: {}\n", 5, 0, "teleport"},
		{"mapping", "input:\n  generate:\n    mapping: |\n      root = {}\n      root.x = = 3\noutput:\n  drop: {}\n", 5, 0, "expected"},
		{"no output", "input:\n  generate:\n    mapping: root = {}\n", 1, 1, "output is missing"},
		{"no input", "output:\n  drop: {}\n", 1, 1, "input is missing"},
		{"input without type", "input: {}\noutput:\n  drop: {}\n", 1, 8, "input has no type"},
		{"import", "input:\n  generate:\n    mapping: |\n      import \"/etc/passwd\"\n      root = {}\noutput:\n  drop: {}\n", 4, 0, "import"},
		{"stdin", "input:\n  stdin: {}\noutput:\n  drop: {}\n", 2, 0, "stdin"},
		{"shared server", "input:\n  http_server:\n    path: /post\noutput:\n  drop: {}\n", 2, 3, "address of its own"},
		{"http", sound + "http:\n  enabled: true\n", 6, 1, "share no HTTP server"},
		{"metrics", sound + "metrics:\n  none: {}\n", 6, 1, "agent collects"},
		{"logger", sound + "logger:\n  file: {path: /tmp/x}\n", 7, 3, "agent takes the log"},
		{"variable", "input:\n  file:\n    paths: ['${WHERE}']\noutput:\n  drop: {}\n", 3, 13, "${WHERE:default}"},
		{"secret", "input:\n  file:\n    paths: ['${secret:not good}']\noutput:\n  drop: {}\n", 3, 13, "secret"},
		{"disabled linter", "# BENTHOS LINT DISABLE\ninput:\n  generate:\n    mapping: root = {}\n    nonsense: 1\noutput:\n  drop: {}\n", 5, 0, "nonsense"},
		{"two documents", sound + "---\n" + sound, 6, 0, "more than one"},
		{"missing dsn", "input:\n  generate:\n    mapping: root = {}\noutput:\n  postgres:\n    query: SELECT 1\n    args_mapping: root = []\n", 6, 0, "dsn"},
		{"connector's field", "input:\n  nats_jetstream:\n    urls: [nats://x]\n    durable: d\n    deliver: some\noutput:\n  drop: {}\n", 5, 0, "some"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lints := benthos.Lint(tt.content)
			for _, l := range lints {
				if l.Line < 1 || l.Column < 1 {
					t.Errorf("no position: %+v", l)
				}
				if l.Line == tt.line && (tt.column == 0 || l.Column == tt.column) && strings.Contains(l.Message, tt.message) {
					return
				}
			}
			t.Errorf("%+v, want %d:%d %s", lints, tt.line, tt.column, tt.message)
		})
	}
}

func TestSoundPipelinesHaveNoFaults(t *testing.T) {
	for name, content := range map[string]string{
		"secrets and variables": `
input:
  nats_jetstream:
    urls: ["nats://127.0.0.1:4222"]
    password: ${secret:nats.password}
    stream: ORDERS
    durable: freehold
    max_ack_pending: ${PENDING:64}
pipeline:
  processors:
    - mapping: |
        root = this
        root.stream = "${FREEHOLD_STREAM}"
        root.at = now()
output:
  postgres:
    dsn: postgres://u:${secret:pg}@127.0.0.1/db
    query: INSERT INTO t VALUES ($1)
    args_mapping: root = [ this.id ]
    batching: {count: 10, period: 1s}
logger: {level: DEBUG}
shutdown_timeout: 5s
`,
		"json":      `{"input":{"generate":{"mapping":"root = {}"}},"output":{"drop":{}}}`,
		"resources": "input: {generate: {mapping: 'root = {}'}}\npipeline: {processors: [{cache: {resource: c, operator: get, key: x}}]}\noutput: {drop: {}}\ncache_resources: [{label: c, memory: {}}]\n",
	} {
		if lints := benthos.Lint(content); len(lints) > 0 {
			t.Errorf("%s: %+v", name, lints)
		}
	}
}

// A linter that ran or opened what is named here would leave a trace, or hang.
func TestLintingTouchesNothing(t *testing.T) {
	folder := t.TempDir()
	marker := filepath.Join(folder, "marker")
	t.Setenv("HUB_PASSWORD", "do-not-tell")
	content := `
input:
  csv:
    paths: ["` + marker + `"]
pipeline:
  processors:
    - mapping: |
        root.file = file("/etc/passwd")
        root.password = env("HUB_PASSWORD")
        root.other = "${HUB_PASSWORD}"
    - command: {name: touch, args_mapping: 'root = ["` + marker + `"]'}
output:
  file: {path: "` + marker + `"}
cache_resources:
  - label: c
    file: {directory: "` + marker + `"}
`
	lints := benthos.Lint(content)
	if len(lints) != 1 || !strings.Contains(lints[0].Message, "HUB_PASSWORD") || strings.Contains(lints[0].Message, "do-not-tell") {
		t.Errorf("lints = %+v", lints)
	}
	if entries, _ := os.ReadDir(folder); len(entries) > 0 {
		t.Errorf("linting made %v", entries)
	}
}

func TestHostileContentsAreLintedSoon(t *testing.T) {
	var aliases strings.Builder
	aliases.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 12 {
		n := string(rune('a' + i))
		prev := "a0"
		if i > 0 {
			prev = string(rune('a'+i-1)) + "1"
		}
		aliases.WriteString(n + "1: &" + n + "1 [" + strings.Repeat("*"+prev+", ", 9) + "*" + prev + "]\n")
	}
	for name, content := range map[string]string{
		"aliases of aliases": aliases.String(),
		"itself":             "a: &a [*a]\n",
		"deep brackets":      "input: {generate: {mapping: 'root = " + strings.Repeat("(", 5000) + "'}}\noutput: {drop: {}}\n",
	} {
		if lints := benthos.Lint(content); len(lints) == 0 {
			t.Errorf("%s: no fault", name)
		}
	}
}

func FuzzLint(f *testing.F) {
	for _, s := range []string{
		"input: {generate: {mapping: 'root = {}'}}\noutput: {drop: {}}", "a: &a [*a]", "input: ${secret:x}\noutput: ${A:b}",
		"input:\n  broker:\n    inputs:\n      - file: {paths: [a]}\noutput:\n  switch:\n    cases:\n      - check: this.a == 1\n        output: {drop: {}}",
		"# BENTHOS LINT DISABLE\n<<: {a: b}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		for _, l := range benthos.Lint(content) {
			if l.Line < 1 || l.Column < 1 || l.Message == "" {
				t.Errorf("%+v", l)
			}
		}
	})
}

func BenchmarkLint(b *testing.B) {
	for _, mappings := range []int{3, 50} {
		content := "input: {generate: {mapping: 'root = {}'}}\npipeline:\n  processors:\n" +
			strings.Repeat("    - mapping: 'root.a = this.b.uppercase() + (this.c | \"x\").string()'\n", mappings) + "output: {drop: {}}\n"
		b.Run(strconv.Itoa(mappings)+"-mappings", func(b *testing.B) {
			for b.Loop() {
				benthos.Lint(content)
			}
		})
	}
}
