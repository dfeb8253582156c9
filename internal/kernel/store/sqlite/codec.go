package sqlite

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// term is something that an object is found by.
type term struct{ field, value string }

func (t term) compare(u term) int {
	return cmp.Or(cmp.Compare(t.field, u.field), cmp.Compare(t.value, u.value))
}

func labelField(key string) string  { return "label:" + key }
func indexField(name string) string { return "index:" + name }

// record is the stored form of an object: with the version of its kind, and the index terms that it was written
// with (an index function may since have changed).
type record struct {
	version    int
	object     *store.Object
	indexTerms []term
}

// storedRecord is a record with its row id.
type storedRecord struct {
	record
	id int64
}

// terms are all that the object is found by.
func (r *record) terms() []term {
	terms := make([]term, 0, len(r.object.Labels)+len(r.indexTerms))
	for k, v := range r.object.Labels {
		terms = append(terms, term{labelField(k), v})
	}
	return append(terms, r.indexTerms...)
}

// operation is what a change did to an object.
type operation byte

const (
	created operation = iota + 1
	updated
	deleted
)

// change is what a transaction did to one object. The labels and index terms that it had before tell which
// watchers saw it until now.
type change struct {
	op operation
	record
	previousLabels map[string]string
	previousTerms  []term
}

// The encoding: unsigned varints for numbers, lengths and counts; strings and bytes with their length before
// them; maps as sorted pairs; times as microseconds since 1970, 0 for none.

func (r *record) encode(b []byte) []byte {
	o := r.object
	b = binary.AppendUvarint(b, uint64(r.version))
	b = appendString(b, o.Kind)
	b = appendString(b, o.Name)
	b = appendString(b, o.UID)
	b = binary.AppendUvarint(b, uint64(o.Revision))
	b = binary.AppendUvarint(b, uint64(o.Generation))
	b = appendTime(b, o.CreatedAt)
	b = appendTime(b, o.UpdatedAt)
	if o.DeletionTimestamp == nil {
		b = binary.AppendUvarint(b, 0)
	} else {
		b = appendTime(b, *o.DeletionTimestamp)
	}
	b = binary.AppendUvarint(b, uint64(len(o.Finalizers)))
	for _, f := range o.Finalizers {
		b = appendString(b, f)
	}
	b = appendMap(b, o.Labels)
	b = appendMap(b, o.Annotations)
	b = appendTerms(b, r.indexTerms)
	b = appendString(b, o.Spec)
	return appendString(b, o.Status)
}

func encodeChanges(changes []change) []byte {
	size := 16
	for i := range changes {
		size += 512 + len(changes[i].object.Spec) + len(changes[i].object.Status)
	}
	b := make([]byte, 0, size)
	b = binary.AppendUvarint(b, uint64(len(changes)))
	for i := range changes {
		c := &changes[i]
		b = append(b, byte(c.op))
		b = c.encode(b)
		b = appendMap(b, c.previousLabels)
		b = appendTerms(b, c.previousTerms)
	}
	return b
}

func appendString[S ~string | ~[]byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendTime(b []byte, t time.Time) []byte {
	return binary.AppendUvarint(b, uint64(t.UnixMicro()))
}

func appendMap(b []byte, m map[string]string) []byte {
	b = binary.AppendUvarint(b, uint64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = appendString(appendString(b, k), m[k])
	}
	return b
}

func appendTerms(b []byte, terms []term) []byte {
	b = binary.AppendUvarint(b, uint64(len(terms)))
	for _, t := range terms {
		b = appendString(appendString(b, t.field), t.value)
	}
	return b
}

var errDamaged = errors.New("the stored record is damaged; restore the store from a backup")

// decodeRecord reads what encode wrote. Spec and Status share data's memory.
func decodeRecord(data []byte) (record, error) {
	d := decoder{rest: data}
	r := d.record()
	return r, d.end()
}

// decodeChanges reads what encodeChanges wrote. Specs and statuses share data's memory.
func decodeChanges(data []byte) ([]change, error) {
	d := decoder{rest: data}
	changes := make([]change, d.count())
	for i := range changes {
		changes[i] = change{op: operation(d.byte()), record: d.record(), previousLabels: d.pairs(), previousTerms: d.terms()}
	}
	return changes, d.end()
}

// decoder reads from rest, and turns damaged for good when that does not fit.
type decoder struct {
	rest    []byte
	damaged bool
}

func (d *decoder) end() error {
	if d.damaged || len(d.rest) > 0 {
		return errDamaged
	}
	return nil
}

func (d *decoder) fail() { d.rest, d.damaged = nil, true }

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.fail()
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) number() int64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[size:]
	return int64(n)
}

// count reads a number of items or bytes, each of which takes at least one byte.
func (d *decoder) count() int {
	n := d.number()
	if n < 0 || n > int64(len(d.rest)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.count()
	if n == 0 {
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) string() string { return string(d.bytes()) }

func (d *decoder) time() time.Time { return time.UnixMicro(d.number()).UTC() }

func (d *decoder) pairs() map[string]string {
	n := d.count()
	if n == 0 {
		return nil
	}
	m := make(map[string]string, n)
	for range n {
		k := d.string()
		m[k] = d.string()
	}
	return m
}

func (d *decoder) terms() []term {
	n := d.count()
	if n == 0 {
		return nil
	}
	terms := make([]term, n)
	for i := range terms {
		terms[i] = term{field: d.string(), value: d.string()}
	}
	return terms
}

func (d *decoder) record() record {
	r := record{version: int(d.number()), object: &store.Object{}}
	o := r.object
	o.Kind = d.string()
	o.Name = d.string()
	o.UID = d.string()
	o.Revision = d.number()
	o.Generation = d.number()
	o.CreatedAt = d.time()
	o.UpdatedAt = d.time()
	if t := d.number(); t != 0 {
		at := time.UnixMicro(t).UTC()
		o.DeletionTimestamp = &at
	}
	if n := d.count(); n > 0 {
		o.Finalizers = make([]string, n)
		for i := range o.Finalizers {
			o.Finalizers[i] = d.string()
		}
	}
	o.Labels = d.pairs()
	o.Annotations = d.pairs()
	r.indexTerms = d.terms()
	o.Spec = d.bytes()
	o.Status = d.bytes()
	return r
}
