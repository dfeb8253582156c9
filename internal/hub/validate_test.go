package hub

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestIDs(t *testing.T) {
	for _, good := range []string{"a", "node-1", "A.b_c-9", "0", "_x", strings.Repeat("a", 128), "a__b"} {
		if err := ValidID(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", ".a", "__x", "__configuration__", "a/b", "a b", "ä", "a\n", strings.Repeat("a", 129)} {
		if ValidID(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if ValidResource(NodeConfig) != nil || ValidResource("__other") == nil {
		t.Error("one reserved resource exists")
	}
}

func TestPreconditions(t *testing.T) {
	for _, c := range []struct {
		match, noneMatch string
		bad              bool
		holdsFor         []int64
	}{
		{"", "", false, []int64{0, 1, 3}},
		{`"generation-3"`, "", false, []int64{3}},
		{` "generation-3" `, "", false, []int64{3}},
		{`"generation-0"`, "", false, []int64{0}},
		{`"generation-1", "generation-3"`, "", false, []int64{1, 3}},
		{"*", "", false, []int64{1, 3}},
		{"", "*", false, []int64{0}},
		{`generation-3`, "", true, nil},
		{`"3"`, "", true, nil},
		{`"generation--3"`, "", true, nil},
		{`"generation-03"`, "", true, nil},
		{`"generation-+3"`, "", true, nil},
		{`"generation-"`, "", true, nil},
		{`"generation-99999999999999999999"`, "", true, nil},
		{`W/"generation-3"`, "", true, nil},
		{`"generation-3",`, "", true, nil},
		{"", `"generation-3"`, true, nil},
		{`"generation-3"`, "*", true, nil},
	} {
		m, err := ParseMatch(c.match, c.noneMatch)
		if (err != nil) != c.bad {
			t.Errorf("%s|%s: %v", c.match, c.noneMatch, err)
			continue
		}
		if c.bad {
			continue
		}
		var held []int64
		for _, g := range []int64{0, 1, 3} {
			err := m.Check("n", "s", g)
			var conflict *GenerationConflictError
			switch {
			case err == nil:
				held = append(held, g)
			case !errors.As(err, &conflict) || conflict.Current != g || conflict.Node != "n":
				t.Errorf("%s|%s at %d: %v", c.match, c.noneMatch, g, err)
			}
		}
		if len(held) != len(c.holdsFor) || len(held) > 0 && held[0] != c.holdsFor[0] {
			t.Errorf("%s|%s holds for %v", c.match, c.noneMatch, held)
		}
	}
}

func TestAConflictSaysWhatWasExpected(t *testing.T) {
	m, _ := ParseMatch(ETag(3), "")
	if got := m.Check("node-a", "orders", 4).Error(); got != "Expected generation 3, current generation 4" {
		t.Error(got)
	}
}

func TestAnETagMatchesItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.Int64Min(0).Draw(t, "generation")
		m, err := ParseMatch(ETag(g), "")
		if err != nil || m.Check("n", "s", g) != nil || m.Check("n", "s", g+1) == nil {
			t.Fatalf("%s: %v", ETag(g), err)
		}
	})
}

func FuzzParseMatch(f *testing.F) {
	f.Add(`"generation-3", *`, "*")
	f.Fuzz(func(t *testing.T, match, noneMatch string) {
		m, err := ParseMatch(match, noneMatch)
		if err == nil && len(m.Generations) == 1 && m.Generations[0] != 0 && strings.TrimSpace(match) != ETag(m.Generations[0]) {
			t.Errorf("%q was read as %v", match, m)
		}
	})
}

func TestRollbackGoesToWhatConvergedLast(t *testing.T) {
	for _, c := range []struct{ desired, last, previous, target string }{
		{"cfg-3", "cfg-2", "cfg-1", "cfg-2"},
		{"cfg-2", "cfg-2", "cfg-1", "cfg-1"},
		{"cfg-2", "cfg-2", "", ""},
		{"cfg-2", "", "", ""},
	} {
		s := StreamSpec{Desired: &Desired{ConfigVersion: c.desired}, LastConverged: c.last, PreviousConverged: c.previous}
		if got := s.RollbackTarget(); got != c.target {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
