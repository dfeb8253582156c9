// Package strict reads YAML or JSON that people wrote into structs, and tells every fault with its line and column:
// unknown and repeated fields, wrong types, more than one document. Aliases are refused.
//
// Struct fields are named by their `yaml` tag. A type may be a string, bool, integer, float, [time.Duration] ("5s"),
// pointer, slice, map with string keys or struct of these, or an [encoding.TextUnmarshaler].
package strict

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/internal/hub"
)

// Document is where the parts of a content are.
type Document struct{ root *yaml.Node }

// Decode reads content into the struct that into points to.
func Decode(content string, into any) (*Document, []hub.Lint) {
	root, lints := Parse(content)
	if len(lints) > 0 {
		return &Document{}, lints
	}
	d := decoder{}
	d.value(root, reflect.ValueOf(into).Elem(), "the content")
	sort.SliceStable(d.lints, func(i, j int) bool {
		a, b := d.lints[i], d.lints[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	return &Document{root}, d.lints
}

// Fault is a fault of what is at a path of field names and list indices, or of the nearest thing around it.
func (d *Document) Fault(message string, path ...string) hub.Lint {
	at := d.root
	for _, step := range path {
		next := child(at, step)
		if next == nil {
			break
		}
		at = next
	}
	if at == nil {
		return hub.Lint{Line: 1, Column: 1, Message: message}
	}
	return hub.Lint{Line: at.Line, Column: at.Column, Message: message}
}

func child(of *yaml.Node, step string) *yaml.Node {
	switch {
	case of == nil:
	case of.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(of.Content); i += 2 {
			if of.Content[i].Value == step {
				return of.Content[i+1]
			}
		}
	case of.Kind == yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(of.Content) {
			return of.Content[i]
		}
	}
	return nil
}

// Parse reads the one document of a content.
func Parse(content string) (*yaml.Node, []hub.Lint) {
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(content)))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, []hub.Lint{{Line: 1, Column: 1, Message: "the content is empty"}}
	case err != nil:
		return nil, []hub.Lint{syntaxFault(content, err)}
	}
	if len(document.Content) != 1 || document.Content[0].Tag == "!!null" {
		return nil, []hub.Lint{{Line: 1, Column: 1, Message: "the content is empty"}}
	}
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, []hub.Lint{syntaxFault(content, err)}
	default:
		return nil, []hub.Lint{{Line: second.Line, Column: max(1, second.Column), Message: "there is more than one document"}}
	}
	return document.Content[0], nil
}

// syntaxFault makes a fault of the YAML parser's error. The parser tells where the block around the fault begins, if
// anything; nearer is the line after which the content stops being readable.
func syntaxFault(content string, err error) hub.Lint {
	l := hub.Lint{Line: 1, Column: 1, Message: "this is no valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	var told *yaml.ParserError
	if errors.As(err, &told) {
		l.Message = "this is no valid YAML: " + told.Message
		l.Line = max(1, told.Line)
		if strings.HasPrefix(told.Message, "did not find expected ',' or") {
			l.Line = told.Line + 1 // the parser counts from 0 here
		}
	}
	l.Line = max(l.Line, faultyLine(content))
	return l
}

const (
	// lookAhead is how many lines a value may go on that is not readable in parts, for being told apart from a fault.
	lookAhead = 20
	// maxReread bounds, in bytes, what is read again and again to find a fault: a second's work. It is enough for contents
	// that people write.
	maxReread = 2 << 20
)

// faultyLine is the line after which the content stops being readable; 0 if that takes too long to find.
func faultyLine(content string) int {
	ends := []int{0}
	for i, c := range []byte(content) {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	if ends[len(ends)-1] != len(content) {
		ends = append(ends, len(content))
	}
	good, bad := 0, len(ends)-1
	reread := 0
	readable := func(lines int) bool {
		reread += ends[lines]
		return reread <= maxReread && readError(content[:ends[lines]]) == nil
	}
	for range 8 {
		for bad-good > 1 {
			if middle := (good + bad) / 2; readable(middle) {
				good = middle
			} else {
				bad = middle
			}
		}
		further := bad + 1
		for further < min(bad+lookAhead, len(ends)-1) && !readable(further) {
			further++
		}
		if further >= min(bad+lookAhead, len(ends)-1) {
			break
		}
		good, bad = further, len(ends)-1
	}
	if reread > maxReread {
		return 0
	}
	return good + 1
}

func readError(content string) error {
	decoder := yaml.NewDecoder(strings.NewReader(content))
	for {
		var n yaml.Node
		switch err := decoder.Decode(&n); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

type decoder struct{ lints []hub.Lint }

func (d *decoder) fault(at *yaml.Node, format string, args ...any) {
	d.lints = append(d.lints, hub.Lint{Line: at.Line, Column: at.Column, Message: fmt.Sprintf(format, args...)})
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (d *decoder) value(n *yaml.Node, into reflect.Value, name string) {
	switch {
	case n.Kind == yaml.AliasNode:
		d.fault(n, "%s is an alias; aliases are not supported here", name)
	case into.Kind() == reflect.Pointer:
		v := reflect.New(into.Type().Elem())
		d.value(n, v.Elem(), name)
		into.Set(v)
	case into.Type() == durationType || into.Addr().Type().Implements(textType):
		d.text(n, into, name)
	default:
		d.kind(n, into, name)
	}
}

func (d *decoder) kind(n *yaml.Node, into reflect.Value, name string) {
	switch into.Kind() {
	case reflect.Struct:
		d.object(n, into, name)
	case reflect.Map:
		d.mapping(n, into, name)
	case reflect.Slice:
		d.list(n, into, name)
	case reflect.String:
		if d.scalar(n, name, "text") {
			into.SetString(n.Value)
		}
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		if !d.scalar(n, name, plain(into.Kind())) {
			return
		}
		if err := n.Decode(into.Addr().Interface()); err != nil {
			d.fault(n, "%s must be %s, not %q", name, plain(into.Kind()), n.Value)
		}
	default:
		d.fault(n, "%s cannot be set", name)
	}
}

func plain(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
}

func (d *decoder) scalar(n *yaml.Node, name, what string) bool {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.fault(n, "%s must be %s, not %s", name, what, kindOf(n))
		return false
	}
	return true
}

func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "an object"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	default:
		return "a single value"
	}
}

func (d *decoder) text(n *yaml.Node, into reflect.Value, name string) {
	if into.Type() == durationType {
		if !d.scalar(n, name, "a duration such as 5s") {
			return
		}
		value, err := time.ParseDuration(n.Value)
		if err != nil {
			d.fault(n, "%s must be a duration such as 5s or 1m30s, not %q", name, n.Value)
			return
		}
		into.SetInt(int64(value))
		return
	}
	if !d.scalar(n, name, "a single value") {
		return
	}
	if err := into.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Value)); err != nil {
		d.fault(n, "%s: %v", name, err)
	}
}

func (d *decoder) list(n *yaml.Node, into reflect.Value, name string) {
	if n.Kind != yaml.SequenceNode {
		d.fault(n, "%s must be a list, not %s", name, kindOf(n))
		return
	}
	all := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		d.value(item, all.Index(i), name+"["+strconv.Itoa(i)+"]")
	}
	into.Set(all)
}

// keys calls each for every key of an object, and faults what is repeated or no key.
func (d *decoder) keys(n *yaml.Node, name string, each func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, "%s must be an object, not %s", name, kindOf(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
			d.fault(key, "%s has a key that is not a name", name)
		case seen[key.Value]:
			d.fault(key, "%s is there twice", key.Value)
		default:
			seen[key.Value] = true
			each(key, n.Content[i+1])
		}
	}
}

func (d *decoder) mapping(n *yaml.Node, into reflect.Value, name string) {
	all := reflect.MakeMap(into.Type())
	d.keys(n, name, func(key, value *yaml.Node) {
		v := reflect.New(into.Type().Elem()).Elem()
		d.value(value, v, name+"."+key.Value)
		all.SetMapIndex(reflect.ValueOf(key.Value).Convert(into.Type().Key()), v)
	})
	into.Set(all)
}

func (d *decoder) object(n *yaml.Node, into reflect.Value, name string) {
	fields := map[string]reflect.Value{}
	var names []string
	for i := range into.NumField() {
		if tag, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("yaml"), ","); tag != "" && tag != "-" {
			fields[tag] = into.Field(i)
			names = append(names, tag)
		}
	}
	d.keys(n, name, func(key, value *yaml.Node) {
		field, known := fields[key.Value]
		if !known {
			d.fault(key, "there is no field %q; there are: %s", key.Value, strings.Join(names, ", "))
			return
		}
		path := key.Value
		if name != "the content" {
			path = name + "." + path
		}
		d.value(value, field, path)
	})
}
