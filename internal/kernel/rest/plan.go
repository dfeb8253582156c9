package rest

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// shape is what JSON a type takes.
type shape uint8

const (
	shapeAny    shape = iota // any value, as it is (json.RawMessage)
	shapeTree                // any value, decoded generically
	shapeObject              // a struct
	shapeMap
	shapeArray
	shapeString
	shapeBool
	shapeInt
	shapeUint
	shapeFloat
	shapeBytes  // base64
	shapeText   // a string that the type parses
	shapeCustom // a value that the type parses
)

// plan is what a Go type takes, worked out once.
type plan struct {
	shape  shape
	bits   int // of numbers
	length int // of arrays, -1: any
	typ    reflect.Type
	elem   *plan
	fields map[string]*fieldPlan
	names  []string
}

type fieldPlan struct {
	name  string
	index int
	plan  *plan
}

// planner remembers the plans of types. It is used while operations are registered only.
type planner struct{ plans map[reflect.Type]*plan }

func newPlanner() *planner { return &planner{plans: map[reflect.Type]*plan{}} }

var (
	rawType             = reflect.TypeFor[json.RawMessage]()
	numberType          = reflect.TypeFor[json.Number]()
	timeType            = reflect.TypeFor[time.Time]()
	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// plan panics on a type that cannot be decoded from JSON: a programming error, found when the server starts.
func (p *planner) plan(t reflect.Type) *plan {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if known, ok := p.plans[t]; ok {
		return known
	}
	out := &plan{typ: t}
	p.plans[t] = out // before its parts: types may be recursive
	p.fill(out, t)
	return out
}

func (p *planner) fill(out *plan, t reflect.Type) {
	switch pointer := reflect.PointerTo(t); {
	case t == rawType:
		out.shape = shapeAny
		return
	case t == numberType:
		out.shape, out.bits = shapeFloat, 64
		return
	case t != timeType && pointer.Implements(unmarshalerType):
		out.shape = shapeCustom
		return
	case pointer.Implements(textUnmarshalerType):
		out.shape = shapeText
		return
	}
	switch t.Kind() {
	case reflect.Bool:
		out.shape = shapeBool
	case reflect.String:
		out.shape = shapeString
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		out.shape, out.bits = shapeInt, t.Bits()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		out.shape, out.bits = shapeUint, t.Bits()
	case reflect.Float32, reflect.Float64:
		out.shape, out.bits = shapeFloat, t.Bits()
	case reflect.Interface:
		if t.NumMethod() > 0 {
			panic(fmt.Sprintf("rest: %s cannot be decoded from JSON", t))
		}
		out.shape = shapeTree
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			out.shape = shapeBytes
			return
		}
		out.shape, out.length, out.elem = shapeArray, -1, p.plan(t.Elem())
	case reflect.Array:
		out.shape, out.length, out.elem = shapeArray, t.Len(), p.plan(t.Elem())
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			panic(fmt.Sprintf("rest: %s cannot be decoded: only maps with string keys can", t))
		}
		out.shape, out.elem = shapeMap, p.plan(t.Elem())
	case reflect.Struct:
		out.shape, out.fields = shapeObject, map[string]*fieldPlan{}
		p.structFields(out, t)
	default:
		panic(fmt.Sprintf("rest: %s cannot be decoded from JSON", t))
	}
}

// structFields collects the fields as encoding/json sees them: those of embedded structs are promoted, the
// shallower one wins.
func (p *planner) structFields(out *plan, t reflect.Type) {
	level := []reflect.Type{t}
	seen := map[reflect.Type]bool{t: true}
	for len(level) > 0 {
		var next []reflect.Type
		found := map[string]*fieldPlan{}
		for _, t := range level {
			for i := range t.NumField() {
				f := t.Field(i)
				name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
				if f.Tag.Get("json") == "-" {
					continue
				}
				if f.Anonymous && name == "" {
					embedded := f.Type
					if embedded.Kind() == reflect.Pointer {
						embedded = embedded.Elem()
					}
					if embedded.Kind() == reflect.Struct {
						if !seen[embedded] {
							seen[embedded] = true
							next = append(next, embedded)
						}
						continue
					}
				}
				if !f.IsExported() {
					continue
				}
				if strings.Contains(","+options+",", ",string,") {
					panic(fmt.Sprintf("rest: the JSON option \"string\" of %s.%s is not supported", t, f.Name))
				}
				if name == "" {
					name = f.Name
				}
				if _, ok := found[name]; ok {
					panic(fmt.Sprintf("rest: %s has the JSON field %q twice", t, name))
				}
				found[name] = &fieldPlan{name: name, plan: p.plan(f.Type)}
			}
		}
		for name, f := range found {
			if _, ok := out.fields[name]; !ok {
				out.fields[name] = f
				out.names = append(out.names, name)
			}
		}
		level = next
	}
	for i, name := range out.names {
		out.fields[name].index = i
	}
}

// Decoder decodes values of type T strictly: [Decoder.Decode]. Make one per type, and keep it.
type Decoder[T any] struct{ plan *plan }

// NewDecoder panics if T cannot be decoded from JSON.
func NewDecoder[T any]() *Decoder[T] {
	return &Decoder[T]{plan: newPlanner().plan(reflect.TypeFor[T]())}
}

// Decode decodes one JSON value. The error is a [*Problem] that names every fault by its field: unknown and
// repeated fields, values of a wrong type, anything after the value. null leaves a field as it is.
func (d *Decoder[T]) Decode(data []byte, v *T) error {
	if err := d.plan.check(data); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return BadRequest("the body cannot be decoded: %s", err)
	}
	return nil
}
