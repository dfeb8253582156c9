package hub

import "freehold.dev/freehold/internal/kernel/store"

// Engine runs config versions of one form.
type Engine string

// The engines.
const (
	EngineBenthos Engine = "benthos"
	EngineProcess Engine = "process"
	// EngineNode is the node-wide configuration.
	EngineNode Engine = "node"
)

// ConfigSpec is an immutable config version. Its content is the blob [ConfigBlob].
type ConfigSpec struct {
	Engine Engine `json:"engine"`
	// Digest is "sha256:" and the hexadecimal SHA-256 of the content.
	Digest      string `json:"digest"`
	Size        int    `json:"size"`
	Description string `json:"description,omitempty"`
	Principal   string `json:"principal"`
}

// LabelEngine is the label of a stored config version with its engine.
const LabelEngine = "engine"

// Config is a stored config version.
type Config = store.Resource[ConfigSpec, struct{}]

// Configs is the kind of config versions, named "cfg-N".
var Configs = store.Type[ConfigSpec, struct{}]{Kind: store.Kind{Name: "configversion", Version: 1}}

// MaxConfig is the largest content of a config version, in bytes.
const MaxConfig = 1 << 20

// ConfigBlob is the blob with a config version's content, kept once for each digest.
func ConfigBlob(digest string) string { return "hub/config/" + digest }

// Lint is one fault of a config version's content.
type Lint struct {
	// Line and Column start at 1; 0: not known.
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

// Kinds are all kinds of this package, for opening a store.
func Kinds() []store.Kind {
	return []store.Kind{Nodes.Kind, Streams.Kind, Operations.Kind, Configs.Kind}
}
