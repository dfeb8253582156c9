package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/kernel/store"
)

func testLists(t *testing.T, b Backend) {
	cases{
		"ByNameInOrder": func(t *testing.T, f *fixture) {
			for _, name := range []string{"c", "a/b", "a", "b", "a-b"} {
				f.create(tenant(name))
			}
			f.create(machine("other"))
			expect(t, f.names(store.Query{Kind: "tenant"}), "a", "a-b", "a/b", "b", "c")
			expect(t, f.names(store.Query{Kind: "tenant", NewestFirst: true}), "a-b", "b", "a", "a/b", "c")
			expect(t, f.names(store.Query{Kind: "tenant", Name: "a"}), "a")
			expect(t, f.names(store.Query{Kind: "tenant", Prefix: "a/"}), "a/b")
			expect(t, f.names(store.Query{Kind: "tenant", Prefix: "a"}), "a", "a-b", "a/b")
			expect(t, f.names(store.Query{Kind: "tenant", Name: "b", Prefix: "a"}))
		},
		"NewestFirstIsByCreation": func(t *testing.T, f *fixture) {
			f.create(tenant("a"))
			f.create(tenant("b"))
			f.change("tenant", "a", func(o *store.Object) { o.Labels = map[string]string{"x": "y"} })
			expect(t, f.names(store.Query{Kind: "tenant", NewestFirst: true}), "b", "a")
		},
		"PrefixesAreBytes": func(t *testing.T, f *fixture) {
			for _, name := range []string{"a%b", "a_b", "aXb", "a\x7f", "A/b", "é", "ée", "日本"} {
				f.create(tenant(name))
			}
			expect(t, f.names(store.Query{Kind: "tenant", Prefix: "a%"}), "a%b")
			expect(t, f.names(store.Query{Kind: "tenant", Prefix: "a_"}), "a_b")
			expect(t, f.names(store.Query{Kind: "tenant", Prefix: "a\x7f"}), "a\x7f")
			expect(t, f.names(store.Query{Kind: "tenant", Prefix: "é"}), "é", "ée")
			expect(t, f.names(store.Query{Kind: "tenant", Prefix: "日"}), "日本")
		},
		"SelectorsAgreeWithTheirLibrary": func(t *testing.T, f *fixture) {
			var all []*store.Object
			for i, set := range []labels.Set{
				{}, {"role": "worker"}, {"role": "worker", "zone": "a"}, {"role": "controlplane", "zone": "a"},
				{"role": "controlplane", "zone": "b"}, {"zone": "b"}, {"zone": ""}, {"slot": "3"}, {"slot": "10", "role": "worker"},
				{"slot": "x"}, {"rezuscloud.io/tenant": "prod"}, {"rezuscloud.io/tenant": "prod", "role": "worker"},
			} {
				o := machine(fmt.Sprintf("m-%02d", i))
				o.Labels = set
				all = append(all, f.create(o))
			}
			for _, text := range []string{
				"", "role=worker", "role==worker", "role!=worker", "role in (worker)", "role in (worker,controlplane)",
				"role notin (worker)", "role notin (worker,x)", "role", "!role", "role,zone", "role=worker,zone=a",
				"role in (worker,controlplane),zone in (a,b)", "role=worker,!zone", "zone=", "zone!=", "slot>2", "slot<5",
				"slot>2,slot<20", "slot>2,role=worker", "rezuscloud.io/tenant=prod", "rezuscloud.io/tenant=prod,role!=worker",
				"role=nobody", "role=worker,role=controlplane", "role=worker,role in (worker,x)",
			} {
				s := selector(t, text)
				var want []string
				for _, o := range all {
					if s.Matches(labels.Set(o.Labels)) {
						want = append(want, o.Name)
					}
				}
				t.Run(text, func(t *testing.T) {
					expectPages(t, f, store.Query{Kind: "machine", Selector: s}, want)
				})
			}
			expect(t, f.names(store.Query{Kind: "machine", Selector: labels.Nothing()}))
			expect(t, f.names(store.Query{Kind: "tenant", Selector: selector(t, "role=worker")}))
		},
		"SelectorsCanBeLong": func(t *testing.T, f *fixture) {
			f.create(machine("m", "zone", "z-700"))
			var values, requirements []string
			for i := range 2000 {
				values = append(values, fmt.Sprintf("z-%d", i))
				requirements = append(requirements, fmt.Sprintf("zone!=y-%d", i))
			}
			all := strings.Join(values, ",")
			expect(t, f.names(store.Query{Kind: "machine", Selector: selector(t, "zone in ("+all+")")}), "m")
			expect(t, f.names(store.Query{Kind: "machine", Selector: selector(t, "zone notin ("+all+")")}))
			expect(t, f.names(store.Query{Kind: "machine", Selector: selector(t, strings.Join(requirements, ","))}), "m")
		},
		"LabelsFollowTheObject": func(t *testing.T, f *fixture) {
			f.create(machine("m", "role", "worker", "zone", "a"))
			f.change("machine", "m", func(o *store.Object) { o.Labels = map[string]string{"role": "spare", "rack": "7"} })
			f.reopen()
			expect(t, f.names(store.Query{Kind: "machine", Selector: selector(t, "role=worker")}))
			expect(t, f.names(store.Query{Kind: "machine", Selector: selector(t, "zone=a")}))
			expect(t, f.names(store.Query{Kind: "machine", Selector: selector(t, "role=spare,rack=7")}), "m")
		},
		"IndexesFindByEachValue": func(t *testing.T, f *fixture) {
			for name, owners := range map[string]string{"a": "x", "b": "x y x", "c": "y", "d": ""} {
				o := machine(name, "role", "worker")
				o.Annotations = map[string]string{"owners": owners}
				f.create(o)
			}
			expect(t, f.names(store.Query{Kind: "machine", Index: "owner", Value: "x"}), "a", "b")
			expect(t, f.names(store.Query{Kind: "machine", Index: "owner", Value: "y"}), "b", "c")
			expect(t, f.names(store.Query{Kind: "machine", Index: "owner", Value: "z"}))
			expect(t, f.names(store.Query{Kind: "machine", Index: "owner", Value: "x", Prefix: "b", Selector: selector(t, "role=worker")}), "b")
			f.change("machine", "b", func(o *store.Object) { o.Annotations = map[string]string{"owners": "z"} })
			expect(t, f.names(store.Query{Kind: "machine", Index: "owner", Value: "x"}), "a")
			expect(t, f.names(store.Query{Kind: "machine", Index: "owner", Value: "z"}), "b")
		},
		"PagesCoverTheListOnce": func(t *testing.T, f *fixture) {
			var want []string
			for _, i := range rand.Perm(37) {
				name := fmt.Sprintf("m-%02d", i)
				f.create(machine(name, "role", []string{"worker", "spare"}[i%2], "slot", fmt.Sprint(i)))
				want = append(want, name)
			}
			newest := slices.Clone(want)
			slices.Reverse(newest)
			expectPages(t, f, store.Query{Kind: "machine", NewestFirst: true}, newest)
			slices.Sort(want)
			expectPages(t, f, store.Query{Kind: "machine"}, want)
			workers := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return (name[3]-'0')%2 == 1 })
			expectPages(t, f, store.Query{Kind: "machine", Selector: selector(t, "role=worker")}, workers)
			workers = slices.DeleteFunc(slices.Clone(newest), func(name string) bool { return (name[3]-'0')%2 == 1 })
			expectPages(t, f, store.Query{Kind: "machine", Selector: selector(t, "role=worker"), NewestFirst: true}, workers)
		},
	}.run(t, b)
}

// expectPages reads the query as a whole, and in pages of several sizes.
func expectPages(t *testing.T, f *fixture, q store.Query, want []string) {
	t.Helper()
	expect(t, f.names(q), want...)
	for _, size := range []int{1, 7, len(want), len(want) + 1} {
		var got []string
		for offset := 0; offset <= len(want)+1; offset += max(size, 1) {
			q.Offset, q.Limit = offset, max(size, 1)
			l := f.list(q)
			if l.Total != len(want) {
				t.Errorf("page of %d at %d: total %d, want %d", size, offset, l.Total, len(want))
			}
			if len(l.Objects) > q.Limit {
				t.Errorf("page of %d at %d has %d objects", size, offset, len(l.Objects))
			}
			got = append(got, names(l.Objects)...)
		}
		expect(t, got, want...)
	}
	q.Offset, q.Limit = -1, 0
	expect(t, f.names(q), want...)
	q.Offset, q.Limit = 2, 0
	expect(t, f.names(q), want[min(2, len(want)):]...)
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}
