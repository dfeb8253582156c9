package rest

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"
)

const (
	// maxDepth of nested objects and arrays.
	maxDepth = 64
	// maxCauses that one answer lists.
	maxCauses = 64
)

// check tells every way in which data is not one strict JSON value of the plan's type. It reads data once and
// builds nothing, so that decoding afterwards stays the only costly pass. nil or a *Problem.
func (p *plan) check(data []byte) error {
	if !utf8.Valid(data) {
		return BadRequest("the body is not valid UTF-8: %s", position(data, invalidAt(data)))
	}
	c := checker{data: data}
	c.space()
	if c.i == len(data) {
		return BadRequest("the request body is empty; send a JSON object")
	}
	root := c.i
	c.value(p)
	c.space()
	if c.broken == "" && c.i < len(data) {
		c.syntax("unexpected data after the JSON value")
	}
	if c.broken != "" {
		return BadRequest("the body is not valid JSON: %s: %s", position(data, c.at), c.broken)
	}
	if bytes.HasPrefix(data[root:], []byte("null")) && p.shape != shapeAny && p.shape != shapeTree {
		return BadRequest("the body must be %s, not null", expected(p))
	}
	if len(c.causes) > 0 {
		return Invalid(c.causes...)
	}
	return nil
}

func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}

func position(data []byte, at int) string {
	before := data[:min(at, len(data))]
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Sprintf("line %d, column %d", line, column)
}

type checker struct {
	data   []byte
	i      int
	depth  int
	path   []step
	causes []Cause
	broken string // a syntax error: nothing more is read
	at     int
}

func (c *checker) syntax(format string, args ...any) {
	if c.broken == "" {
		c.broken, c.at = fmt.Sprintf(format, args...), c.i
	}
}

func (c *checker) fault(format string, args ...any) {
	if len(c.causes) < maxCauses {
		c.causes = append(c.causes, Cause{Field: c.field(), Message: fmt.Sprintf(format, args...)})
	}
}

// value checks the value that starts here.
func (c *checker) value(p *plan) {
	if c.i >= len(c.data) {
		c.syntax("unexpected end")
		return
	}
	start := c.i
	switch b := c.data[c.i]; b {
	case '{':
		switch p.shape {
		case shapeObject, shapeMap, shapeAny, shapeTree, shapeCustom:
			c.object(p)
		default:
			c.wrong(p, "an object")
			c.object(anyPlan)
		}
	case '[':
		switch p.shape {
		case shapeArray, shapeAny, shapeTree, shapeCustom:
			c.array(p)
		default:
			c.wrong(p, "a list")
			c.array(anyPlan)
		}
	case '"':
		raw := c.str()
		if c.broken == "" {
			c.stringValue(p, raw)
		}
	case 't':
		c.literal("true")
		c.scalar(p, shapeBool, "a boolean")
	case 'f':
		c.literal("false")
		c.scalar(p, shapeBool, "a boolean")
	case 'n':
		c.literal("null") // leaves the field unset, if a type that parses itself has no other idea
	default:
		if b != '-' && (b < '0' || b > '9') {
			c.syntax("unexpected %s", printable(c.data[c.i:]))
			return
		}
		lit := c.number()
		if c.broken == "" {
			c.numberValue(p, lit)
		}
	}
	if p.shape == shapeCustom && c.broken == "" {
		v := reflect.New(p.typ).Interface().(json.Unmarshaler)
		if err := v.UnmarshalJSON(c.data[start:c.i]); err != nil {
			c.fault("%s", err)
		}
	}
}

func (c *checker) scalar(p *plan, is shape, what string) {
	switch p.shape {
	case is, shapeAny, shapeTree, shapeCustom:
	default:
		c.wrong(p, what)
	}
}

func (c *checker) wrong(p *plan, got string) { c.fault("must be %s, not %s", expected(p), got) }

func expected(p *plan) string {
	switch p.shape {
	case shapeObject, shapeMap:
		return "an object"
	case shapeArray:
		return "a list"
	case shapeBool:
		return "true or false"
	case shapeInt, shapeUint:
		return "an integer"
	case shapeFloat:
		return "a number"
	case shapeBytes:
		return "a base64 string"
	}
	return "a string"
}

func (c *checker) stringValue(p *plan, raw []byte) {
	switch p.shape {
	case shapeString, shapeAny, shapeTree, shapeCustom:
	case shapeBytes:
		if _, err := base64.StdEncoding.DecodeString(unquote(raw)); err != nil {
			c.fault("must be a base64 string")
		}
	case shapeText:
		v := reflect.New(p.typ).Interface().(encoding.TextUnmarshaler)
		if err := v.UnmarshalText([]byte(unquote(raw))); err != nil {
			if p.typ == timeType {
				c.fault("must be a time like 2006-01-02T15:04:05Z")
				return
			}
			c.fault("%s", err)
		}
	default:
		c.wrong(p, "a string")
	}
}

func (c *checker) numberValue(p *plan, lit []byte) {
	s := string(lit)
	whole := !bytes.ContainsAny(lit, ".eE")
	switch p.shape {
	case shapeAny, shapeCustom:
	case shapeInt:
		if _, err := strconv.ParseInt(s, 10, p.bits); err != nil {
			if whole {
				c.fault("is out of range")
			} else {
				c.wrong(p, "a fraction")
			}
		}
	case shapeUint:
		if _, err := strconv.ParseUint(s, 10, p.bits); err != nil {
			switch {
			case !whole:
				c.wrong(p, "a fraction")
			case lit[0] == '-':
				c.fault("must not be negative")
			default:
				c.fault("is out of range")
			}
		}
	case shapeFloat, shapeTree:
		size := p.bits
		if size == 0 {
			size = 64
		}
		if _, err := strconv.ParseFloat(s, size); err != nil {
			c.fault("is out of range")
		}
	default:
		c.wrong(p, "a number")
	}
}

func (c *checker) enter() bool {
	if c.depth++; c.depth > maxDepth {
		c.syntax("nested deeper than %d levels", maxDepth)
		return false
	}
	c.i++
	return true
}

func (c *checker) array(p *plan) {
	if !c.enter() {
		return
	}
	defer func() { c.depth-- }()
	elem := p.elem
	if p.shape != shapeArray {
		elem = inner(p)
	}
	c.path = append(c.path, step{})
	defer func() { c.path = c.path[:len(c.path)-1] }()
	c.space()
	if c.peek() == ']' {
		c.i++
		return
	}
	for n := 0; ; n++ {
		c.path[len(c.path)-1] = step{index: n}
		c.space()
		if p.shape == shapeArray && p.length >= 0 && n == p.length {
			c.fault("the list takes at most %d elements", p.length)
		}
		c.value(elem)
		if !c.more(']') {
			return
		}
	}
}

// more goes past the comma to the next element; false at the end, or when the text is broken.
func (c *checker) more(end byte) bool {
	if c.broken != "" {
		return false
	}
	c.space()
	switch c.peek() {
	case ',':
		c.i++
		return true
	case end:
		if c.i < len(c.data) {
			c.i++
			return false
		}
	}
	if c.i >= len(c.data) {
		c.syntax("unexpected end")
	} else {
		c.syntax("expected ',' or '%c', not %s", end, printable(c.data[c.i:]))
	}
	return false
}

// inner is the plan of what lies inside a value that takes anything.
func inner(p *plan) *plan {
	if p.shape == shapeTree {
		return p
	}
	return anyPlan
}

var anyPlan = &plan{shape: shapeAny}

func (c *checker) object(p *plan) {
	if !c.enter() {
		return
	}
	defer func() { c.depth-- }()
	var keys keySet
	c.path = append(c.path, step{})
	defer func() { c.path = c.path[:len(c.path)-1] }()
	c.space()
	if c.peek() == '}' {
		c.i++
		return
	}
	for {
		c.space()
		if c.peek() != '"' {
			if c.i >= len(c.data) {
				c.syntax("unexpected end")
			} else {
				c.syntax("expected a field name in quotes, not %s", printable(c.data[c.i:]))
			}
			return
		}
		key := c.str()
		if c.broken != "" {
			return
		}
		c.space()
		if c.peek() != ':' {
			c.syntax("expected ':' after a field name")
			return
		}
		c.i++
		c.space()
		c.member(p, key, &keys)
		if !c.more('}') {
			return
		}
	}
}

// member checks one field of an object, whose value starts here.
func (c *checker) member(p *plan, key []byte, keys *keySet) {
	last := &c.path[len(c.path)-1]
	if p.shape != shapeObject {
		*last = step{key: key, quoted: p.shape == shapeMap}
		if !keys.add(key) {
			c.fault("the field is given twice")
		}
		if p.shape == shapeMap {
			c.value(p.elem)
		} else {
			c.value(inner(p))
		}
		return
	}
	f := p.fields[string(key)]
	if f == nil && bytes.IndexByte(key, '\\') >= 0 {
		f = p.fields[unquote(key)]
	}
	if f == nil {
		*last = step{key: key}
		if near := nearest(unquote(key), p.names); near != "" {
			c.fault("unknown field; did you mean %q?", near)
		} else {
			c.fault("unknown field")
		}
		c.value(anyPlan)
		return
	}
	*last = step{name: f.name}
	if !keys.mark(f.index) {
		c.fault("the field is given twice")
	}
	c.value(f.plan)
}
