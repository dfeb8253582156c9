package talos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	machineryconfig "github.com/siderolabs/talos/pkg/machinery/config"
	configdoc "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"go.yaml.in/yaml/v4"
	sigsyaml "sigs.k8s.io/yaml"
)

const (
	// maxPatchNodes bounds what a patch may unfold to (YAML aliases multiply).
	maxPatchNodes = 200_000
	// maxPatchCopies bounds, in bytes, what the copy operations of a JSON patch may add.
	maxPatchCopies = 1 << 20
)

// PatchError tells which of several patches is at fault.
type PatchError struct {
	// Index into ConfigInput.Patches, from 0.
	Index int
	Err   error
}

// Error counts patches from 1, as people do.
func (e *PatchError) Error() string { return fmt.Sprintf("config patch %d: %v", e.Index+1, e.Err) }

// Unwrap gives the fault itself.
func (e *PatchError) Unwrap() error { return e.Err }

// patch is a parsed config patch: one of the two is set.
type patch struct {
	strategic configpatcher.StrategicMergePatch
	json      jsonpatch.Patch
}

// CheckPatch tells why a config patch cannot be used, whatever it is applied to. A patch is YAML or JSON: one or more
// partial Talos documents (strategic merge), or a list of JSON6902 operations. It is never a file name.
func CheckPatch(text string) error {
	_, err := parsePatch(text)
	return err
}

func parsePatch(text string) (p *patch, err error) {
	defer recovered(&err)
	trimmed := strings.TrimSpace(text)
	switch {
	case trimmed == "":
		return nil, errors.New("the patch is empty")
	case strings.HasPrefix(trimmed, "@"):
		return nil, errors.New("a patch is the text itself: file references (\"@file\") are not followed")
	}
	isList, err := inspect(trimmed)
	if err != nil {
		return nil, err
	}
	if isList {
		ops, err := parseOperations(trimmed)
		return &patch{json: ops}, err
	}
	cfg, err := configloader.NewFromBytes([]byte(text), configloader.WithAllowPatchDelete())
	if err != nil {
		return nil, plainError(err)
	}
	return &patch{strategic: configpatcher.NewStrategicMergePatch(cfg)}, nil
}

// inspect tells whether a patch is a list of operations rather than documents, and refuses what is neither.
func inspect(text string) (isList bool, err error) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	budget := maxPatchNodes
	for docs := 0; ; docs++ {
		var doc yaml.Node
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return false, fmt.Errorf("the patch is not YAML: %w", err)
		}
		if !unfold(&doc, &budget) {
			return false, fmt.Errorf("the patch is too large: it unfolds to more than %d values", maxPatchNodes)
		}
		if len(doc.Content) == 0 {
			continue
		}
		switch root := doc.Content[0]; {
		case root.Kind == yaml.MappingNode && !isList:
		case root.Kind == yaml.SequenceNode && docs == 0:
			isList = true
		case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
		case isList:
			return false, errors.New("a list of JSON6902 operations must be the only document of its patch")
		default:
			return false, fmt.Errorf("line %d: a patch is either partial Talos documents or a list of JSON6902 operations", root.Line)
		}
	}
	return isList, nil
}

// unfold counts nodes as often as aliases repeat them.
func unfold(n *yaml.Node, budget *int) bool {
	if *budget--; *budget < 0 {
		return false
	}
	if n.Alias != nil && !unfold(n.Alias, budget) {
		return false
	}
	for _, c := range n.Content {
		if !unfold(c, budget) {
			return false
		}
	}
	return true
}

func parseOperations(text string) (jsonpatch.Patch, error) {
	data, err := sigsyaml.YAMLToJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("the patch is not YAML: %w", err)
	}
	var ops []map[string]json.RawMessage
	if err := json.Unmarshal(data, &ops); err != nil {
		return nil, errors.New("each JSON6902 operation must be a mapping with op and path")
	}
	if len(ops) == 0 {
		return nil, errors.New("the patch is empty")
	}
	for i, op := range ops {
		if err := checkOperation(op); err != nil {
			return nil, fmt.Errorf("operation %d: %w", i+1, err)
		}
	}
	p, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, fmt.Errorf("the patch is not a list of JSON6902 operations: %w", err)
	}
	return p, nil
}

func checkOperation(op map[string]json.RawMessage) error {
	var name string
	if !unmarshalString(op["op"], &name) {
		return errors.New("op is missing")
	}
	needsFrom, needsValue := false, false
	switch name {
	case "add", "replace", "test":
		needsValue = true
	case "move", "copy":
		needsFrom = true
	case "remove":
	default:
		return fmt.Errorf("op %q is none of add, copy, move, remove, replace, test", clip(name, 32))
	}
	if err := checkPointer(op, "path"); err != nil {
		return err
	}
	if needsFrom {
		return checkPointer(op, "from")
	}
	if _, ok := op["value"]; needsValue && !ok {
		return errors.New("value is missing")
	}
	return nil
}

func checkPointer(op map[string]json.RawMessage, key string) error {
	raw, ok := op[key]
	if !ok {
		return fmt.Errorf("%s is missing", key)
	}
	var s string
	if !unmarshalString(raw, &s) || s != "" && !strings.HasPrefix(s, "/") {
		return fmt.Errorf("%s must be a JSON pointer such as /machine/install/disk", key)
	}
	return nil
}

func unmarshalString(raw json.RawMessage, s *string) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, s) == nil
}

// apply gives the patched configuration; the one it is given stays as it is.
func (p *patch) apply(cfg machineryconfig.Provider) (out machineryconfig.Provider, err error) {
	defer recovered(&err)
	if p.strategic != nil {
		out, err = configpatcher.StrategicMerge(cfg, p.strategic)
		return out, plainError(err)
	}
	return p.applyJSON(cfg)
}

// applyJSON patches the v1alpha1 document alone: the machinery refuses JSON6902 on configurations of several
// documents, which is what Talos 1.12 generates.
func (p *patch) applyJSON(cfg machineryconfig.Provider) (machineryconfig.Provider, error) {
	raw := cfg.RawV1Alpha1()
	if raw == nil {
		return nil, errors.New("JSON6902 operations apply to the v1alpha1 document, and there is none")
	}
	text, err := encoder.NewEncoder(raw, encoder.WithComments(encoder.CommentsDisabled)).Encode()
	if err != nil {
		return nil, err
	}
	doc, err := sigsyaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	doc, err = p.json.ApplyWithOptions(doc, &jsonpatch.ApplyOptions{
		SupportNegativeIndices:   true,
		AccumulatedCopySizeLimit: maxPatchCopies,
	})
	if err != nil {
		return nil, plainError(err)
	}
	patched, err := configloader.NewFromBytes(doc)
	if err != nil {
		return nil, plainError(err)
	}
	replacement, ok := patched.Documents()[0].(*v1alpha1.Config)
	if !ok {
		return nil, errors.New("the patch must not turn the v1alpha1 document into another kind")
	}
	docs := make([]configdoc.Document, 0, len(cfg.Documents()))
	for _, d := range cfg.Documents() {
		if _, ok := d.(*v1alpha1.Config); ok {
			d = replacement
		}
		docs = append(docs, d)
	}
	return container.New(docs...)
}

// recovered turns a panic of a parser under input from outside into an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the patch cannot be read: %v", p)
	}
}
