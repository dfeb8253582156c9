package sqlite

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"freehold.dev/freehold/internal/kernel/store"
)

// TestTransactionsReadWhatTheyWrote compares long transactions, of more objects than are held in memory, with a model.
func TestTransactionsReadWhatTheyWrote(t *testing.T) {
	words := store.Kind{Name: "word", Indexes: map[string]func(*store.Object) []string{
		"letter": func(o *store.Object) []string { return strings.Split(strings.Trim(string(o.Spec), `"`), "") },
	}}
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), Options{Kinds: []store.Kind{words}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	model := map[string]string{}
	spec := func(word string) json.RawMessage { return json.RawMessage(`"` + word + `"`) }
	rapid.Check(t, func(rt *rapid.T) {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			for range rapid.IntRange(1, 2*maxRecentRecords).Draw(rt, "steps") {
				name := fmt.Sprint("w", rapid.IntRange(0, 2*maxRecentRecords).Draw(rt, "name"))
				word := rapid.StringMatching(`[abc]{1,4}`).Draw(rt, "word")
				was, known := model[name]
				o, err := tx.Get("word", name)
				switch {
				case errors.Is(err, store.ErrNotFound) && !known:
					o := &store.Object{Kind: "word", Name: name, Spec: spec(word), Labels: map[string]string{"word": word}}
					if err := tx.Create(o); err != nil {
						return err
					}
					model[name] = word
				case err != nil || string(o.Spec) != string(spec(was)):
					rt.Fatalf("%s is %v (%v), was written as %q", name, o, err, was)
				case rapid.IntRange(0, 3).Draw(rt, "delete") == 0:
					if _, err := tx.Delete("word", name, o.Revision); err != nil {
						return err
					}
					delete(model, name)
				default:
					o = o.Clone()
					o.Spec, o.Labels = spec(word), map[string]string{"word": word}
					if err := tx.Update(o); err != nil {
						return err
					}
					model[name] = word
				}
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
		word := rapid.StringMatching(`[abc]{1,2}`).Draw(rt, "query")
		checkFound(rt, s, store.Query{Kind: "word", Selector: labels.SelectorFromSet(labels.Set{"word": word})}, model, func(w string) bool { return w == word })
		checkFound(rt, s, store.Query{Kind: "word", Index: "letter", Value: word[:1]}, model, func(w string) bool { return strings.Contains(w, word[:1]) })
	})
}

func checkFound(t *rapid.T, s store.Store, q store.Query, model map[string]string, wanted func(string) bool) {
	want := 0
	for _, w := range model {
		if wanted(w) {
			want++
		}
	}
	err := s.View(t.Context(), func(r store.Reader) error {
		l, err := r.List(q)
		if err != nil {
			return err
		}
		if len(l.Objects) != want {
			t.Fatalf("%+v finds %d, want %d", q, len(l.Objects), want)
		}
		for _, o := range l.Objects {
			if w := model[o.Name]; !wanted(w) || string(o.Spec) != `"`+w+`"` {
				t.Fatalf("%+v finds %s, which is %q", q, o.Name, w)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatATransactionHandsOutIsNotWhatItRemembers(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), Options{Kinds: []store.Kind{{Name: "word"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	err = s.Update(t.Context(), func(tx store.Tx) error {
		if err := tx.Create(&store.Object{Kind: "word", Name: "w", Spec: json.RawMessage(`"abc"`), Labels: map[string]string{"l": "1"}}); err != nil {
			return err
		}
		for range 2 {
			o, err := tx.Get("word", "w")
			if err != nil {
				return err
			}
			if string(o.Spec) != `"abc"` || o.Labels["l"] != "1" {
				t.Errorf("it answered %s %v", o.Spec, o.Labels)
			}
			o.Spec[1], o.Labels["l"] = 'x', "2"
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
