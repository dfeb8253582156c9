package hub

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxID is the longest node, stream or action id.
const maxID = 128

// ValidID checks a node, stream or action id: 1 to 128 of A-Za-z0-9._-, not starting with a dot or "__".
func ValidID(id string) error {
	switch {
	case id == "":
		return errors.New("must not be empty")
	case len(id) > maxID:
		return fmt.Errorf("must not be longer than %d characters", maxID)
	case id[0] == '.' || strings.HasPrefix(id, "__"):
		return errors.New("must not start with a dot or two underscores")
	}
	for i := range len(id) {
		if !idByte(id[i]) {
			return errors.New("may contain letters, digits, dots, underscores and hyphens only")
		}
	}
	return nil
}

func idByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}

// ValidResource checks a stream id, or the reserved [NodeConfig].
func ValidResource(id string) error {
	if id == NodeConfig {
		return nil
	}
	return ValidID(id)
}

// Desirable tells whether an operator may ask for the state.
func (s State) Desirable() bool { return s == Running || s == Stopped || s == Absent }

// Observable tells whether a node may report the state.
func (s State) Observable() bool {
	return s.Desirable() || s == Starting || s == Stopping || s == Failed
}

// Match is a precondition on the generation that a resource has. The zero value asks for nothing.
type Match struct {
	// Generations of which the resource must have one; 0 is a resource that was never declared.
	Generations []int64
	// Exists: any generation but 0.
	Exists bool
}

// ErrBadMatch is a precondition that cannot be read.
var ErrBadMatch = errors.New(`malformed precondition: If-Match takes "generation-N" (quoted) or *, If-None-Match takes *`)

// ParseMatch reads the values of If-Match and If-None-Match, "" when they are missing.
func ParseMatch(ifMatch, ifNoneMatch string) (Match, error) {
	var m Match
	switch strings.TrimSpace(ifNoneMatch) {
	case "":
	case "*":
		m.Generations = []int64{0}
	default:
		return m, ErrBadMatch
	}
	ifMatch = strings.TrimSpace(ifMatch)
	if ifMatch == "" {
		return m, nil
	}
	if m.Generations != nil {
		return m, ErrBadMatch
	}
	if ifMatch == "*" {
		return Match{Exists: true}, nil
	}
	for tag := range strings.SplitSeq(ifMatch, ",") {
		g, ok := parseTag(strings.TrimSpace(tag))
		if !ok {
			return m, ErrBadMatch
		}
		m.Generations = append(m.Generations, g)
	}
	return m, nil
}

// ETag of a generation, as ParseMatch reads it.
func ETag(generation int64) string { return `"generation-` + strconv.FormatInt(generation, 10) + `"` }

func parseTag(tag string) (int64, bool) {
	number, found := strings.CutPrefix(tag, `"generation-`)
	number, closed := strings.CutSuffix(number, `"`)
	g, err := strconv.ParseInt(number, 10, 64)
	return g, found && closed && err == nil && g >= 0 && strconv.FormatInt(g, 10) == number
}

// Check answers the conflict of the precondition with the generation that node/resource has, or nil.
func (m Match) Check(node, resource string, current int64) error {
	conflict := &GenerationConflictError{Node: node, Resource: resource, Expected: -1, Current: current}
	if m.Exists && current == 0 {
		return conflict
	}
	if len(m.Generations) == 0 {
		return nil
	}
	for _, g := range m.Generations {
		if g == current {
			return nil
		}
	}
	conflict.Expected = m.Generations[0]
	return conflict
}
