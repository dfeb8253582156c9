package rest

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

func (c *checker) space() {
	for c.i < len(c.data) {
		switch c.data[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

func printable(rest []byte) string {
	r, _ := utf8.DecodeRune(rest)
	return strconv.QuoteRune(r)
}

func (c *checker) literal(want string) {
	if !bytes.HasPrefix(c.data[c.i:], []byte(want)) {
		c.syntax("unexpected %s", printable(c.data[c.i:]))
		return
	}
	c.i += len(want)
}

// number scans a number literal.
func (c *checker) number() []byte {
	start := c.i
	if c.data[c.i] == '-' {
		c.i++
	}
	switch {
	case c.peek() == '0':
		c.i++
	case c.digits() == 0:
		c.syntax("a number needs digits")
		return nil
	}
	if c.peek() == '.' {
		c.i++
		if c.digits() == 0 {
			c.syntax("a number needs digits after its point")
			return nil
		}
	}
	if e := c.peek(); e == 'e' || e == 'E' {
		c.i++
		if s := c.peek(); s == '+' || s == '-' {
			c.i++
		}
		if c.digits() == 0 {
			c.syntax("a number needs digits in its exponent")
			return nil
		}
	}
	return c.data[start:c.i]
}

func (c *checker) peek() byte {
	if c.i < len(c.data) {
		return c.data[c.i]
	}
	return 0
}

func (c *checker) digits() int {
	start := c.i
	for c.i < len(c.data) && c.data[c.i] >= '0' && c.data[c.i] <= '9' {
		c.i++
	}
	return c.i - start
}

// str scans a string literal and answers it without its quotes, escapes and all.
func (c *checker) str() []byte {
	c.i++
	start := c.i
	for c.i < len(c.data) {
		switch b := c.data[c.i]; {
		case b == '"':
			raw := c.data[start:c.i]
			c.i++
			return raw
		case b == '\\':
			if !c.escape() {
				return nil
			}
		case b < ' ':
			c.syntax("a control character inside a string must be escaped")
			return nil
		default:
			c.i++
		}
	}
	c.syntax("unexpected end inside a string")
	return nil
}

func (c *checker) escape() bool {
	if c.i+1 >= len(c.data) {
		c.syntax("unexpected end inside a string")
		return false
	}
	switch c.data[c.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		c.i += 2
		return true
	case 'u':
		r, ok := c.hex(c.i)
		if !ok {
			c.syntax("a broken \\u escape")
			return false
		}
		if !utf16.IsSurrogate(r) {
			c.i += 6
			return true
		}
		// Half a surrogate pair is not a character; encoding/json would quietly replace it.
		low, ok := c.hex(c.i + 6)
		if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
			c.syntax("half a surrogate pair in a \\u escape")
			return false
		}
		c.i += 12
		return true
	}
	c.syntax("an unknown escape inside a string")
	return false
}

// hex reads the \uXXXX that starts at i.
func (c *checker) hex(i int) (rune, bool) {
	if i+6 > len(c.data) || c.data[i] != '\\' || c.data[i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, b := range c.data[i+2 : i+6] {
		switch {
		case b >= '0' && b <= '9':
			r = r<<4 | rune(b-'0')
		case b >= 'a' && b <= 'f':
			r = r<<4 | rune(b-'a'+10)
		case b >= 'A' && b <= 'F':
			r = r<<4 | rune(b-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// unquote resolves the escapes of a scanned string.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	quoted := make([]byte, 0, len(raw)+2)
	quoted = append(append(append(quoted, '"'), raw...), '"')
	var s string
	_ = json.Unmarshal(quoted, &s) // it was scanned before
	return s
}
