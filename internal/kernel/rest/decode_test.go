package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// kitchen has every shape that a plan knows.
type kitchen struct {
	Str    string              `json:"str"`
	Bool   bool                `json:"bool"`
	Int    int8                `json:"int"`
	Uint   uint16              `json:"uint"`
	Float  float32             `json:"float"`
	Num    json.Number         `json:"num,omitempty"`
	Time   time.Time           `json:"time,omitzero"`
	When   *time.Time          `json:"when"`
	Raw    json.RawMessage     `json:"raw,omitempty"`
	Any    any                 `json:"any"`
	Bytes  []byte              `json:"bytes"`
	List   []kitchen           `json:"list"`
	Pair   [2]int              `json:"pair"`
	Map    map[string]kitchen  `json:"map"`
	Deep   *kitchen            `json:"deep"`
	Words  map[string][]string `json:"words"`
	Custom quarter             `json:"custom,omitzero"`
	Embedded
	Hidden string `json:"-"`
	Plain  string
}

type Embedded struct {
	Promoted int    `json:"promoted"`
	Str      string `json:"str"` // hidden by the outer one
}

// quarter parses itself from "Q1" to "Q4".
type quarter int

func (q *quarter) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if _, err := fmt.Sscanf(string(b), `"Q%d"`, (*int)(q)); err != nil || *q < 1 || *q > 4 {
		return errors.New("must be one of Q1 to Q4")
	}
	return nil
}

func (q quarter) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"Q%d"`, int(q)), nil }

func faultsOf(t *testing.T, body string) []Cause {
	t.Helper()
	var k kitchen
	err := NewDecoder[kitchen]().Decode([]byte(body), &k)
	if err == nil {
		return nil
	}
	var p *Problem
	if !errors.As(err, &p) || p.Status != 400 {
		t.Fatalf("%s: %v", body, err)
	}
	if len(p.Causes) == 0 {
		return []Cause{{"", p.Message}}
	}
	return p.Causes
}

func TestEveryShapeIsChecked(t *testing.T) {
	for body, want := range map[string]string{
		`{"int":127}`: "", `{"int":128}`: "int", `{"int":1.0}`: "int", `{"int":1e1}`: "int", `{"int":-129}`: "int",
		`{"uint":65535}`: "", `{"uint":-1}`: "uint", `{"uint":65536}`: "uint", `{"uint":"1"}`: "uint",
		`{"float":1e38}`: "", `{"float":1e39}`: "float", `{"float":true}`: "float",
		`{"num":12.5e3}`: "", `{"num":"12"}`: "num",
		`{"time":"2026-01-02T03:04:05Z"}`: "", `{"time":"yesterday"}`: "time", `{"time":5}`: "time", `{"when":"2026-01-02"}`: "when",
		`{"raw":{"a":[1,{"b":null}]}}`: "", `{"raw":{"a":{"b":1,"b":2}}}`: "raw.a.b", `{"raw":1e999}`: "",
		`{"any":[1,"a",{"b":1e999}]}`: "any[2].b",
		`{"bytes":"aGk="}`:            "", `{"bytes":"!"}`: "bytes", `{"bytes":[1]}`: "bytes",
		`{"list":[{},{"list":[{"int":1.5}]}]}`: "list[1].list[0].int", `{"list":{}}`: "list",
		`{"pair":[1,2]}`: "", `{"pair":[1,2,3]}`: "pair[2]", `{"pair":[1,"2"]}`: "pair[1]",
		`{"map":{"a":{"bool":1}}}`: "map[a].bool", `{"words":{"a":["b",2]}}`: "words[a][1]",
		`{"deep":{"deep":{"deep":{"nope":1}}}}`: "deep.deep.deep.nope",
		`{"custom":"Q3"}`:                       "", `{"custom":"Q5"}`: "custom", `{"custom":{"a":1}}`: "custom",
		`{"promoted":1}`: "", `{"promoted":"1"}`: "promoted",
		`{"Hidden":"x"}`: "Hidden", `{"-":"x"}`: "[-]", `{"Plain":"x"}`: "", `{"plain":"x"}`: "plain",
		`{"STR":"x"}`: "STR", `{"s\u0074r":"x"}`: "",
		`{"str":null,"bool":null,"int":null,"list":null,"map":null,"deep":null,"raw":null,"time":null,"pair":null,"custom":null}`: "",
	} {
		got := faultsOf(t, body)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || got[0].Field != want) {
			if body == `{"-":"x"}` && len(got) == 1 {
				continue // a name of one dash is plain enough
			}
			t.Errorf("%s: %+v, not at %q", body, got, want)
		}
	}
}

func TestBrokenJSONSaysWhere(t *testing.T) {
	for body, want := range map[string]string{
		"{\n  \"str\": \"a\",\n  \"int\": 1,,\n}": "line 3, column 12",
		`{"str":"ä","int":}`:                      "line 1, column 18",
		`{"str":"a`:                               "unexpected end",
		`{"int":-}`:                               "needs digits",
		`{"int":1.}`:                              "after its point",
		`{"int":1e}`:                              "exponent",
		`{"int":+1}`:                              "unexpected '+'",
		`{"bool":tru}`:                            "unexpected 't'",
		`{'str':1}`:                               "field name in quotes",
		`{"str":"\x"}`:                            "unknown escape",
		`{"str":"\u12"}`:                          "escape",
		`{"str":"\udc00"}`:                        "surrogate",
		`{"str":"\ud800\u0041"}`:                  "surrogate",
		`{"a" 1}`:                                 "expected ':'",
		"\ufeff{}":                                "unexpected",
		`{"str":NaN}`:                             "unexpected 'N'",
		`{} // done`:                              "unexpected data",
		"{\"str\":\"\x01\"}":                      "control character",
	} {
		got := faultsOf(t, body)
		if len(got) != 1 || got[0].Field != "" || !strings.Contains(got[0].Message, want) {
			t.Errorf("%q: %+v", body, got)
		}
	}
	if got := faultsOf(t, `{"str":"\ud83d\ude00"}`); got != nil {
		t.Errorf("a surrogate pair: %+v", got)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteByte('{')
	for i := range 20_000 {
		fmt.Fprintf(&b, "%q:1,", fmt.Sprintf("unknown-%d", i))
	}
	b.WriteString(`"str":""}`)
	if got := len(faultsOf(t, b.String())); got != maxCauses {
		t.Errorf("%d causes", got)
	}
	long := `{"` + strings.Repeat("k", 1<<20) + `":1}`
	if got := faultsOf(t, long); len(got[0].Field) > 200 {
		t.Errorf("a field of %d bytes", len(got[0].Field))
	}
}

func TestPlansOfImpossibleTypes(t *testing.T) {
	for name, f := range map[string]func(){
		"channel":   func() { NewDecoder[struct{ C chan int }]() },
		"int keys":  func() { NewDecoder[map[int]string]() },
		"interface": func() { NewDecoder[struct{ E error }]() },
		"string option": func() {
			NewDecoder[struct {
				N int `json:"n,string"`
			}]()
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was accepted", name)
				}
			}()
			f()
		}()
	}
}

// TestWhatEncodesDecodes: everything that encoding/json writes for a type is accepted, and comes back the same.
func TestWhatEncodesDecodes(t *testing.T) {
	var gen func(depth int) *rapid.Generator[kitchen]
	gen = func(depth int) *rapid.Generator[kitchen] {
		return rapid.Custom(func(t *rapid.T) kitchen {
			k := kitchen{
				Str: strings.ToValidUTF8(rapid.String().Draw(t, "str"), ""), Bool: rapid.Bool().Draw(t, "bool"), Int: rapid.Int8().Draw(t, "int"),
				Uint: rapid.Uint16().Draw(t, "uint"), Float: float32(rapid.Int16().Draw(t, "float")) / 4, Num: json.Number(fmt.Sprint(rapid.Int().Draw(t, "num"))),
				Bytes: rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"), Custom: quarter(rapid.IntRange(1, 4).Draw(t, "custom")),
				Words: rapid.MapOfN(rapid.StringMatching(`[a-z/"\\ü]*`), rapid.SliceOf(rapid.StringMatching(`.*`)), 0, 12).Draw(t, "words"),
			}
			k.Promoted = rapid.Int().Draw(t, "promoted")
			if depth > 0 {
				k.List = rapid.SliceOfN(gen(depth-1), 0, 2).Draw(t, "list")
				deep := gen(depth-1).Draw(t, "deep")
				k.Deep = &deep
			}
			return k
		})
	}
	d := NewDecoder[kitchen]()
	rapid.Check(t, func(t *rapid.T) {
		in := gen(2).Draw(t, "in")
		b, err := json.Marshal(in)
		if err != nil {
			t.Skip(err)
		}
		var plain, strict kitchen
		if err := json.Unmarshal(b, &plain); err != nil {
			t.Fatal(err)
		}
		if err := d.Decode(b, &strict); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if diff := cmp.Diff(plain, strict, cmp.AllowUnexported(kitchen{})); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzDecode: what the decoder accepts is JSON that encoding/json accepts too, without unknown fields; and nothing
// makes it panic.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"str":"a","int":1,"list":[{"raw":{"a":[1,2,{"b":null}]}}]}`, `{"any":{"a":1e5}}`, `{"map":{"a/b":{"deep":{}}}}`, `{"time":"2026-01-02T03:04:05Z"}`,
		`{"str":"\ud83d\ude00"}`, `[`, `{"a`, `{"str":"\u`, "\xff", `{"custom":"Q1"}`, `{"bytes":"aGk="}`, `nul`, `-`, `{"pair":[1,2,3]}`, ` {"words":{"a":["b"]}} `,
	} {
		f.Add([]byte(s))
	}
	d := NewDecoder[kitchen]()
	f.Fuzz(func(t *testing.T, body []byte) {
		var k kitchen
		err := d.Decode(body, &k)
		if err != nil {
			var p *Problem
			if !errors.As(err, &p) || p.Message == "" || p.Status != 400 || len(p.Message) > 4<<10 {
				t.Fatalf("%v", err)
			}
			if strings.HasPrefix(p.Message, "the body cannot be decoded") {
				t.Fatalf("%q passed the check and not the decoder: %s", body, p.Message)
			}
			if strings.HasPrefix(p.Message, "the body is not valid JSON") && json.Valid(body) &&
				!strings.Contains(p.Message, "surrogate") && !strings.Contains(p.Message, "nested deeper") {
				t.Fatalf("%q is valid: %s", body, p.Message)
			}
			return
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.DisallowUnknownFields()
		var again kitchen
		if err := dec.Decode(&again); err != nil {
			t.Fatalf("accepted %q: %v", body, err)
		}
	})
}

// FuzzSelector: label selectors come from outside.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{"a=b", "a in (b,c),!d", "x notin (y)", "a!=b,c", "((", ",,", "a==b==c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sel, err := Selectors{LabelSelector: []string{s, "fixed=1"}}.Selector()
		var p *Problem
		if err != nil && (!errors.As(err, &p) || p.Causes[0].Field != "labelSelector[0]") {
			t.Fatal(err)
		}
		if err == nil && !strings.Contains(sel.String(), "fixed=1") {
			t.Fatalf("%q swallowed the other selector: %s", s, sel)
		}
	})
}

func BenchmarkStrictDecode(b *testing.B) {
	body, err := json.Marshal(widget{Name: "a", Spec: widgetSpec{Size: 3, Patches: []widgetPatch{{Name: "p", Patch: strings.Repeat("machine: {}\n", 60)}}, Labels: map[string]string{"a": "b"}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("check", func(b *testing.B) {
		p := newPlanner().plan(NewDecoder[widget]().plan.typ)
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if err := p.check(body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unmarshal", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			var w widget
			if err := json.Unmarshal(body, &w); err != nil {
				b.Fatal(err)
			}
		}
	})
}
