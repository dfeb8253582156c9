package sqlite

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/kernel/store"
)

// plansOf answers how SQLite runs a query: a line for each loop.
func plansOf(t *testing.T, db *database, q store.Query) (page, count []string) {
	t.Helper()
	p := planOf(q)
	explain := func(sql string, args ...any) (lines []string) {
		if err := db.writer.conn.queryOnce(func(r row) error {
			lines = append(lines, r.ColumnText(3))
			return nil
		}, "EXPLAIN QUERY PLAN "+sql, args...); err != nil {
			t.Fatal(err)
		}
		return lines
	}
	return explain(p.pageSQL(), append(slices.Clone(p.args), 10, 0)...), explain(p.countSQL(), p.args...)
}

func TestAListReadsOnlyWhatItsIndexSelects(t *testing.T) {
	db := idle(t)
	parse := func(text string) labels.Selector {
		s, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const (
		byKind  = "SEARCH d USING COVERING INDEX sqlite_autoindex_objects_1 (kind=?)"
		byTerm  = "SEARCH d USING PRIMARY KEY (kind=? AND field=? AND value=?)"
		inRange = "SEARCH d USING PRIMARY KEY (kind=? AND field=? AND value=? AND name>? AND name<?)"
	)
	for name, c := range map[string]struct {
		query store.Query
		loop  string
	}{
		"AllOfAKind":     {store.Query{Kind: "machine"}, byKind},
		"OneTenants":     {store.Query{Kind: "machine", Selector: parse("tenant=prod")}, byTerm},
		"OneTenantsRole": {store.Query{Kind: "machine", Selector: parse("role!=worker,tenant=prod")}, byTerm},
		"Existing":       {store.Query{Kind: "machine", Selector: parse("tenant=prod,zone")}, byTerm},
		"ByIndex":        {store.Query{Kind: "machine", Index: "owner", Value: "x", Selector: parse("tenant=prod")}, byTerm},
		"Below":          {store.Query{Kind: "machine", Selector: parse("tenant=prod"), Prefix: "a/"}, inRange},
		"NewestFirst":    {store.Query{Kind: "machine", Selector: parse("tenant=prod"), NewestFirst: true}, byTerm},
	} {
		t.Run(name, func(t *testing.T) {
			page, count := plansOf(t, db, c.query)
			for _, plan := range [][]string{page, count} {
				if !slices.Contains(plan, c.loop) {
					t.Errorf("want %q in the plan:\n%s", c.loop, strings.Join(plan, "\n"))
				}
				for _, line := range plan {
					// The ids of a page are scanned where they were collected; no table is.
					if strings.HasPrefix(line, "SCAN") && line != "SCAN d" || strings.Contains(line, "TEMP") && !c.query.NewestFirst {
						t.Errorf("%q in the plan:\n%s", line, strings.Join(plan, "\n"))
					}
				}
			}
			t.Log(strings.Join(page, "\n"))
		})
	}
}
