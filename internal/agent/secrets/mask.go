package secrets

import (
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Mask hides the values of secrets that were handed out in texts that leave the node: programs and libraries quote what
// they cannot use. It is safe for concurrent use.
type Mask struct {
	mu       sync.RWMutex
	values   []string
	replacer *strings.Replacer
}

const (
	hidden = "•••"
	// minHidden is the shortest text, in bytes, that is taken for a secret's: shorter ones are in too many words.
	minHidden = 4
)

// Over answers get, whose values are hidden from then on.
func (m *Mask) Over(get func(name string) (string, error)) func(name string) (string, error) {
	return func(name string) (string, error) {
		value, err := get(name)
		if err == nil {
			m.add(value)
		}
		return value, err
	}
}

// add remembers a value, each of its lines, and how they look quoted or within a URL.
func (m *Mask) add(value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.values)
	for line := range strings.Lines(value) {
		line = strings.TrimSpace(line)
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(line)
		for _, form := range []string{line, quoted, url.PathEscape(line), url.QueryEscape(line)} {
			if len(form) >= minHidden && !slices.Contains(m.values, form) {
				m.values = append(m.values, form)
			}
		}
	}
	if len(m.values) == before {
		return
	}
	// Where one value is within another, the longer one is looked for first.
	slices.SortFunc(m.values, func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(m.values))
	for _, v := range m.values {
		pairs = append(pairs, v, hidden)
	}
	m.replacer = strings.NewReplacer(pairs...)
}

// Hide answers the text without the values.
func (m *Mask) Hide(text string) string {
	m.mu.RLock()
	r := m.replacer
	m.mu.RUnlock()
	if r == nil {
		return text
	}
	return r.Replace(text)
}
