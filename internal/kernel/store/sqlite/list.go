package sqlite

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"freehold.dev/freehold/internal/kernel/store"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// List implements [store.Reader].
func (r *reader) List(q store.Query) (*store.List, error) {
	k, err := r.kind(q.Kind)
	if err != nil {
		return nil, err
	}
	l, err := r.list(k, q)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", q.Kind, err)
	}
	return l, nil
}

func (r *reader) list(k *kind, q store.Query) (*store.List, error) {
	q.Offset = max(q.Offset, 0)
	p := planOf(q)
	if p.nothing {
		return &store.List{Revision: r.revision}, nil
	}
	if !p.exact {
		return r.listFiltering(k, q, p)
	}
	objects, err := r.page(k, p, q.Offset, q.Limit)
	if err != nil {
		return nil, err
	}
	total := q.Offset + len(objects)
	full := q.Limit > 0 && len(objects) == q.Limit
	beyond := q.Offset > 0 && len(objects) == 0
	if full || beyond {
		if total, err = r.count(p); err != nil {
			return nil, err
		}
	}
	return &store.List{Objects: objects, Total: total, Revision: r.revision}, nil
}

// listFiltering lists for a selector that SQL cannot express.
func (r *reader) listFiltering(k *kind, q store.Query, p plan) (*store.List, error) {
	objects, err := r.page(k, p, 0, 0)
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o *store.Object) bool { return !q.Selector.Matches(labels.Set(o.Labels)) })
	l := &store.List{Total: len(objects), Revision: r.revision}
	objects = objects[min(q.Offset, len(objects)):]
	if q.Limit > 0 {
		objects = objects[:min(q.Limit, len(objects))]
	}
	l.Objects = objects
	return l, nil
}

func (r *reader) page(k *kind, p plan, offset, limit int) ([]*store.Object, error) {
	if limit <= 0 {
		limit = -1
	}
	sql, args := p.pageSQL(), append(slices.Clone(p.args), limit, offset)
	var objects []*store.Object
	err := r.conn.run(p.common, func(row row) error {
		data := columnBytes(row, 1)
		rec, err := k.decode(data)
		if err == nil {
			r.recent.put(k.Name, rec.object.Name, row.ColumnInt64(0), data)
		}
		if objects = append(objects, rec.object); len(objects)%yieldRows == 0 {
			runtime.Gosched()
		}
		return err
	}, sql, args...)
	return objects, err
}

// yieldRows is after how many rows a list lets other goroutines run. The scheduler alone would take a processor from
// it only after 10 ms, and let the writer, which gives its own up at each system call, wait that long each time.
const yieldRows = 32

func (r *reader) count(p plan) (n int, err error) {
	err = r.conn.run(p.common, func(row row) error {
		n = row.ColumnInt(0)
		return nil
	}, p.countSQL(), p.args...)
	return n, err
}

// plan is a query in SQL. It reads the names of candidates from one driving table, d: the terms of the query's
// index or of one of its labels where there is one, else all objects of the kind; each other condition is a probe
// into terms.
type plan struct {
	from  string
	where []string
	order string
	args  []any
	// exact: the SQL selects what the query selects. Otherwise it selects more.
	exact bool
	// nothing: the query selects nothing.
	nothing bool
	// common: the SQL has one of a few texts.
	common bool
}

// maxCommon is with how many requirements, of at most one value each, the text of a query still counts as common.
const maxCommon = 2

func common(requirements labels.Requirements) bool {
	return len(requirements) <= maxCommon && !slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return len(r.ValuesUnsorted()) > 1 })
}

// limitSQL takes the limit as an argument. SQLite looks at the value of a bare "LIMIT ?" when it compiles a statement, and so
// compiles it again for each value.
const limitSQL = " LIMIT 0 + ?"

func (p *plan) pageSQL() string {
	return "SELECT o.id, o.data FROM (SELECT d.id, d.name FROM " + p.from + " AS d WHERE " + strings.Join(p.where, " AND ") +
		" ORDER BY " + p.order + limitSQL + " OFFSET ?) AS d CROSS JOIN objects AS o ON o.id = d.id ORDER BY " + p.order
}

func (p *plan) countSQL() string {
	return "SELECT count(*) FROM " + p.from + " AS d WHERE " + strings.Join(p.where, " AND ")
}

func (p *plan) and(condition string, args ...any) {
	p.where = append(p.where, condition)
	p.args = append(p.args, args...)
}

func planOf(q store.Query) plan {
	p := plan{from: "objects", order: "d.name", exact: true}
	if q.NewestFirst {
		p.order = "d.id DESC"
	}
	requirements := labels.Requirements{}
	if q.Selector != nil {
		var selectable bool
		if requirements, selectable = q.Selector.Requirements(); !selectable {
			return plan{nothing: true}
		}
	}
	p.common = common(requirements)
	p.and("d.kind = ?", q.Kind)
	driver := -1
	if q.Index != "" {
		p.from = "terms"
		p.and("d.field = ? AND d.value = ?", indexField(q.Index), q.Value)
	} else if driver = driving(requirements); driver >= 0 {
		p.from = "terms"
		condition := "d.field = ?"
		if values := requirements[driver].ValuesUnsorted(); len(values) > 0 {
			condition += " AND d.value" + in(values)
		}
		p.and(condition, valuesOf(requirements[driver])...)
	}
	if q.Name != "" {
		p.and("d.name = ?", q.Name)
	}
	if q.Prefix != "" {
		p.and("d.name >= ? AND d.name < ?", q.Prefix, afterPrefix(q.Prefix))
	}
	for i, requirement := range requirements {
		if i != driver {
			p.require(requirement)
		}
	}
	return p
}

// SQLite bounds the size of a statement. Requirements beyond these are checked on the objects.
const (
	maxProbes = 50
	maxValues = 500
)

// driving picks the label that candidates are read by: one that must have a single value, else one of several, else
// one that must exist, or -1 for none.
func driving(requirements labels.Requirements) int {
	best, width := -1, maxValues+2
	for i, r := range requirements {
		n := maxValues + 2
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if len(r.ValuesUnsorted()) <= maxValues {
				n = len(r.ValuesUnsorted())
			}
		case selection.Exists:
			n = maxValues + 1
		}
		if n < width {
			best, width = i, n
		}
	}
	return best
}

// require adds a probe for one requirement of a label selector.
func (p *plan) require(r labels.Requirement) {
	if len(p.where) > maxProbes || len(r.ValuesUnsorted()) > maxValues {
		p.exact = false
		return
	}
	probe := "EXISTS (SELECT 1 FROM terms AS t WHERE t.kind = d.kind AND t.name = d.name AND t.field = ?"
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		p.and(probe+" AND t.value"+in(r.ValuesUnsorted())+")", valuesOf(r)...)
	case selection.NotEquals, selection.NotIn:
		p.and("NOT "+probe+" AND t.value"+in(r.ValuesUnsorted())+")", valuesOf(r)...)
	case selection.Exists:
		p.and(probe+")", valuesOf(r)...)
	case selection.DoesNotExist:
		p.and("NOT "+probe+")", valuesOf(r)...)
	default:
		// That a label is greater than a number is no question to an index by value.
		p.exact = false
	}
}

// valuesOf answers the arguments for a requirement: its field, then its values.
func valuesOf(r labels.Requirement) []any {
	args := []any{labelField(r.Key())}
	for _, v := range r.ValuesUnsorted() {
		args = append(args, v)
	}
	return args
}

func in(values []string) string {
	return " IN (?" + strings.Repeat(", ?", len(values)-1) + ")"
}

// afterPrefix is the first string, in order of bytes, behind all those with the prefix.
func afterPrefix(prefix string) string {
	for b := []byte(prefix); len(b) > 0; b = b[:len(b)-1] {
		if b[len(b)-1] < 0xff {
			b[len(b)-1]++
			return string(b)
		}
	}
	return "\xff\xff\xff\xff"
}
