package sqlite

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"freehold.dev/freehold/internal/kernel/store"
)

func drawChange(t *rapid.T) change {
	text := rapid.StringN(0, 20, 60)
	pairs := rapid.MapOfN(text, text, 0, 4)
	terms := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) term {
		return term{field: text.Draw(t, "field"), value: text.Draw(t, "value")}
	}), 0, 4)
	at := func(name string) time.Time {
		return time.UnixMicro(rapid.Int64Range(1, 1<<52).Draw(t, name)).UTC()
	}
	o := &store.Object{
		Kind: text.Draw(t, "kind"), Name: text.Draw(t, "name"), UID: text.Draw(t, "uid"),
		Revision: rapid.Int64Min(0).Draw(t, "revision"), Generation: rapid.Int64Min(0).Draw(t, "generation"),
		CreatedAt: at("created"), UpdatedAt: at("updated"),
		Finalizers: rapid.SliceOfN(text, 0, 3).Draw(t, "finalizers"),
		Labels:     pairs.Draw(t, "labels"), Annotations: pairs.Draw(t, "annotations"),
		Spec: rapid.SliceOf(rapid.Byte()).Draw(t, "spec"), Status: rapid.SliceOf(rapid.Byte()).Draw(t, "status"),
	}
	if rapid.Bool().Draw(t, "deleting") {
		deletion := at("deletion")
		o.DeletionTimestamp = &deletion
	}
	return change{
		op:             rapid.SampledFrom([]operation{created, updated, deleted}).Draw(t, "op"),
		record:         record{version: rapid.IntRange(1, 1000).Draw(t, "version"), object: o, indexTerms: terms.Draw(t, "terms")},
		previousLabels: pairs.Draw(t, "previous labels"), previousTerms: terms.Draw(t, "previous terms"),
	}
}

func TestChangesComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		changes := rapid.SliceOfN(rapid.Custom(drawChange), 0, 3).Draw(t, "changes")
		encoded := encodeChanges(changes)
		got, err := decodeChanges(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if again := encodeChanges(got); !bytes.Equal(encoded, again) {
			t.Fatalf("encoded again:\n%s", cmp.Diff(encoded, again))
		}
		cut := rapid.IntRange(0, len(encoded)-1).Draw(t, "cut")
		if _, err := decodeChanges(encoded[:cut]); err == nil {
			t.Fatalf("%d of %d bytes were taken for the whole", cut, len(encoded))
		}
	})
}

func FuzzDecodeChanges(f *testing.F) {
	f.Add([]byte{})
	f.Add(encodeChanges([]change{{
		op: updated, record: record{version: 1, object: &store.Object{Kind: "k", Name: "n", Labels: map[string]string{"a": "b"}, Spec: []byte(`{}`)}},
	}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		changes, err := decodeChanges(data)
		if err != nil {
			return
		}
		again, err := decodeChanges(encodeChanges(changes))
		if err != nil || len(again) != len(changes) {
			t.Errorf("what was read cannot be written and read again: %v", err)
		}
	})
}
