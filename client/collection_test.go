package client

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever comes and goes between two pages: what was there all the time is in the list, once, and in order.
func TestListMissesNothingThatStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 5
		there, stayed := map[int]bool{}, map[int]bool{}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 99), 0, 40).Draw(t, "objects") {
			there[n], stayed[n] = true, true
		}
		pages := 0
		list, err := collect(func(offset int) (*List[int], error) {
			if pages++; pages > 200 {
				t.Fatal("it does not end")
			}
			if pages > 1 && pages < 40 {
				for _, n := range rapid.SliceOfN(rapid.IntRange(0, 99), 0, 12).Draw(t, "changes") {
					if there[n] {
						delete(there, n)
						delete(stayed, n)
					} else {
						there[n] = true
					}
				}
			}
			all := slices.Sorted(maps.Keys(there))
			return &List[int]{Items: all[min(offset, len(all)):min(offset+limit, len(all))], Total: len(all)}, nil
		}, func(n int) string { return string(rune('0'+n/10)) + string(rune('0'+n%10)) })
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted(list.Items) || len(slices.Compact(slices.Clone(list.Items))) != len(list.Items) || list.Total != len(list.Items) {
			t.Fatalf("not in order, or not once: %v", list.Items)
		}
		for n := range stayed {
			if !slices.Contains(list.Items, n) {
				t.Fatalf("missed %d, of %v, in %d pages", n, list.Items, pages)
			}
		}
	})
}
