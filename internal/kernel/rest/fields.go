package rest

import (
	"bytes"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// step is one element of a path: an index, a field, or a map key as it stands in the text.
type step struct {
	name  string
	key   []byte
	index int
	// quoted: the key is data, not the name of a field.
	quoted bool
}

// field renders the path: spec.configPatches[1].patch, metadata.labels[rezuscloud.io/role].
func (c *checker) field() string {
	var b strings.Builder
	for _, s := range c.path {
		name := s.name
		if s.key != nil {
			name = unquote(s.key)
		}
		switch {
		case s.key == nil && s.name == "":
			fmt.Fprintf(&b, "[%d]", s.index)
		case !s.quoted && plainName(name):
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(name)
		default:
			const longest = 80
			if len(name) > longest {
				name = strings.ToValidUTF8(name[:longest], "") + "…"
			}
			b.WriteByte('[')
			if quoted := strconv.Quote(name); name == "" || len(quoted) != len(name)+2 {
				name = quoted
			}
			b.WriteString(name)
			b.WriteByte(']')
		}
	}
	return b.String()
}

func plainName(s string) bool {
	if s == "" || len(s) > 80 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// keySet remembers the keys of one object: a struct's by index, others by name.
type keySet struct {
	low   uint64
	high  map[int]bool
	few   [8][]byte
	count int
	many  map[string]bool
}

func (s *keySet) mark(i int) bool {
	if i < bits.UintSize {
		bit := uint64(1) << i
		was := s.low&bit != 0
		s.low |= bit
		return !was
	}
	if s.high == nil {
		s.high = map[int]bool{}
	}
	was := s.high[i]
	s.high[i] = true
	return !was
}

func (s *keySet) add(key []byte) bool {
	if bytes.IndexByte(key, '\\') >= 0 {
		key = []byte(unquote(key))
	}
	if s.many == nil {
		for _, k := range s.few[:s.count] {
			if bytes.Equal(k, key) {
				return false
			}
		}
		if s.count < len(s.few) {
			s.few[s.count] = key
			s.count++
			return true
		}
		s.many = make(map[string]bool, 2*len(s.few))
		for _, k := range s.few {
			s.many[string(k)] = true
		}
	}
	if s.many[string(key)] {
		return false
	}
	s.many[string(key)] = true
	return true
}

// nearest is the name that an unknown one was probably meant to be, or "".
func nearest(got string, names []string) string {
	if len(got) > 64 {
		return ""
	}
	best, at := "", 3
	for _, name := range names {
		limit := 1 + len(name)/4
		if d := distance(strings.ToLower(got), strings.ToLower(name)); d < at && d <= limit || d == at && best > name {
			best, at = name, d
		}
	}
	return best
}

// distance is the number of insertions, deletions and substitutions between two short strings.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
