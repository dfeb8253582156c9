package sqlite

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"freehold.dev/freehold/internal/kernel/store"
)

// tx is one update inside the writer's transaction.
type tx struct {
	reader
	now time.Time
	// next is the revision that the update gets if it changes an object.
	next    int64
	changes []change
	// latest finds the last change of an object in changes.
	latest map[objectKey]int
	// broken is the first failure of the backend. The update cannot succeed after it, whatever its function
	// makes of the error.
	broken error
}

type objectKey struct{ kind, name string }

var _ store.Tx = (*tx)(nil)

// exec runs a statement and remembers its failure.
func (t *tx) exec(sql string, args ...any) error {
	if t.ended {
		return errEnded
	}
	return t.note(t.conn.exec(sql, args...))
}

func (t *tx) note(err error) error {
	if err != nil && t.broken == nil {
		t.broken = err
	}
	return err
}

// Create implements [store.Tx].
func (t *tx) Create(o *store.Object) error {
	if err := t.create(o); err != nil {
		return fmt.Errorf("create %s %q: %w", o.Kind, o.Name, err)
	}
	return nil
}

func (t *tx) create(o *store.Object) error {
	k, err := t.kind(o.Kind)
	if err != nil {
		return err
	}
	if o.Name == "" {
		return fmt.Errorf("an object needs a name")
	}
	if err := checkJSON(o); err != nil {
		return err
	}
	id, err := t.conn.int64("SELECT id FROM objects WHERE kind = ? AND name = ?", o.Kind, o.Name)
	if err != nil {
		return t.note(err)
	}
	if id != 0 {
		return store.ErrExists
	}
	made := *o
	if made.UID == "" {
		made.UID = uuid.NewString()
	}
	made.Generation, made.Revision = 1, t.next
	made.CreatedAt, made.UpdatedAt, made.DeletionTimestamp = t.now, t.now, nil
	rec, data, err := k.seal(&made)
	if err != nil {
		return err
	}
	if err := t.exec("INSERT INTO objects (kind, name, data) VALUES (?, ?, ?)", o.Kind, o.Name, data); err != nil {
		return err
	}
	stored := storedRecord{record: rec, id: t.conn.LastInsertRowID()}
	t.recent.put(o.Kind, o.Name, stored.id, data)
	if err := t.note(insertTerms(t.conn, stored, rec.terms())); err != nil {
		return err
	}
	*o = made
	t.log(change{op: created, record: rec})
	return nil
}

// Update implements [store.Tx].
func (t *tx) Update(o *store.Object) error {
	if err := t.update(o); err != nil {
		return fmt.Errorf("update %s %q: %w", o.Kind, o.Name, err)
	}
	return nil
}

func (t *tx) update(o *store.Object) error {
	k, err := t.kind(o.Kind)
	if err != nil {
		return err
	}
	if err := checkJSON(o); err != nil {
		return err
	}
	before, err := t.load(o.Kind, o.Name)
	if err != nil {
		return err
	}
	if o.Revision != before.object.Revision {
		return store.ErrConflict
	}
	made := *before.object
	made.Labels, made.Annotations, made.Finalizers = o.Labels, o.Annotations, o.Finalizers
	made.Spec, made.Status = o.Spec, o.Status
	switch {
	case made.Deleting() && len(made.Finalizers) == 0:
		made.Revision, made.UpdatedAt = t.next, t.now
		if err := t.remove(k, before, &made); err != nil {
			return err
		}
	case sameContent(&made, before.object):
	default:
		if !bytes.Equal(made.Spec, before.object.Spec) {
			made.Generation++
		}
		made.Revision, made.UpdatedAt = t.next, t.now
		if err := t.replace(k, before, &made); err != nil {
			return err
		}
	}
	*o = made
	return nil
}

// Delete implements [store.Tx].
func (t *tx) Delete(kind, name string, revision int64) (*store.Object, error) {
	o, err := t.delete(kind, name, revision)
	if err != nil {
		return nil, fmt.Errorf("delete: %w", err)
	}
	return o, nil
}

func (t *tx) delete(kindName, name string, revision int64) (*store.Object, error) {
	k, err := t.kind(kindName)
	if err != nil {
		return nil, err
	}
	before, err := t.load(kindName, name)
	if err != nil {
		return nil, err
	}
	if revision != 0 && revision != before.object.Revision {
		return nil, fmt.Errorf("%s %q: %w", kindName, name, store.ErrConflict)
	}
	if before.object.Deleting() {
		return before.object, nil
	}
	made, now := *before.object, t.now
	made.Revision, made.UpdatedAt, made.DeletionTimestamp = t.next, now, &now
	if len(made.Finalizers) > 0 {
		err = t.replace(k, before, &made)
	} else {
		err = t.remove(k, before, &made)
	}
	return &made, err
}

// replace writes a new form of a stored object.
func (t *tx) replace(k *kind, before storedRecord, made *store.Object) error {
	rec, data, err := k.seal(made)
	if err != nil {
		return err
	}
	if err := t.exec("UPDATE objects SET data = ? WHERE id = ?", data, before.id); err != nil {
		return err
	}
	t.recent.put(made.Kind, made.Name, before.id, data)
	had, has := before.terms(), rec.terms()
	slices.SortFunc(had, term.compare)
	slices.SortFunc(has, term.compare)
	if err := t.note(replaceTerms(t.conn, storedRecord{rec, before.id}, without(had, has), without(has, had))); err != nil {
		return err
	}
	t.log(change{op: updated, record: rec, previousLabels: before.object.Labels, previousTerms: before.indexTerms})
	return nil
}

// remove takes a stored object away. last is the state that watchers see go.
func (t *tx) remove(k *kind, before storedRecord, last *store.Object) error {
	rec, _, err := k.seal(last)
	if err != nil {
		return err
	}
	t.recent.drop(last.Kind, last.Name)
	if err := t.exec("DELETE FROM objects WHERE id = ?", before.id); err != nil {
		return err
	}
	if err := t.note(deleteTerms(t.conn, before, before.terms())); err != nil {
		return err
	}
	t.log(change{op: deleted, record: rec, previousLabels: before.object.Labels, previousTerms: before.indexTerms})
	return nil
}

// log notes a change, joined with an earlier one of the same object so that a watcher sees one change per object
// and transaction. Only an object removed and made again is two: the old one goes, another comes.
func (t *tx) log(c change) {
	key := objectKey{c.object.Kind, c.object.Name}
	i, again := t.latest[key]
	if !again || t.changes[i].op == deleted {
		if t.latest == nil {
			t.latest = map[objectKey]int{}
		}
		t.latest[key] = len(t.changes)
		t.changes = append(t.changes, c)
		return
	}
	earlier := &t.changes[i]
	switch {
	case earlier.op == created && c.op == deleted:
		t.changes = slices.Delete(t.changes, i, i+1)
		delete(t.latest, key)
		for k, j := range t.latest {
			if j > i {
				t.latest[k] = j - 1
			}
		}
		return
	case earlier.op == created:
		c.op = created
	}
	c.previousLabels, c.previousTerms = earlier.previousLabels, earlier.previousTerms
	*earlier = c
}

// finish writes the log entry of what the update changed. It answers nil if that is nothing.
func (t *tx) finish() (*commit, error) {
	if t.broken != nil {
		return nil, t.broken
	}
	if len(t.changes) == 0 {
		return nil, nil
	}
	encoded := encodeChanges(t.changes)
	err := t.exec("INSERT INTO log (revision, time, changes) VALUES (?, ?, ?)", t.next, t.now.UnixMicro(), encoded)
	if err != nil {
		return nil, err
	}
	return &commit{revision: t.next, changes: t.changes, size: len(encoded) + changeOverhead*len(t.changes)}, nil
}

// Claim implements [store.Tx].
func (t *tx) Claim(index, value, owner string) error {
	if err := t.exec("INSERT INTO claims (field, value, owner) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", index, value, owner); err != nil {
		return fmt.Errorf("claim %s %q: %w", index, value, err)
	}
	if t.conn.Changes() == 1 {
		return nil
	}
	holder, err := t.Claimed(index, value)
	if err != nil {
		return err
	}
	if holder != owner {
		return fmt.Errorf("%s %q: %w by %s", index, value, store.ErrClaimed, holder)
	}
	return nil
}

// Release implements [store.Tx].
func (t *tx) Release(index, value string) error {
	return t.exec("DELETE FROM claims WHERE field = ? AND value = ?", index, value)
}

// PutBlob implements [store.Tx].
func (t *tx) PutBlob(name string, data []byte) error {
	err := t.exec("INSERT OR REPLACE INTO blobs (name, size, created, data) VALUES (?, ?, ?, ?)",
		name, len(data), t.now.UnixMicro(), data)
	if err != nil {
		return fmt.Errorf("put blob %q: %w", name, err)
	}
	return nil
}

// DeleteBlob implements [store.Tx].
func (t *tx) DeleteBlob(name string) error {
	return t.exec("DELETE FROM blobs WHERE name = ?", name)
}

// Append implements [store.Tx].
func (t *tx) Append(table, key string, data []byte) (int64, error) {
	err := t.exec("INSERT INTO entries (list, key, time, data) VALUES (?, ?, ?, ?)", table, key, t.now.UnixMicro(), data)
	if err != nil {
		return 0, fmt.Errorf("append to table %q: %w", table, err)
	}
	return t.conn.LastInsertRowID(), nil
}

// Trim implements [store.Tx].
func (t *tx) Trim(table, key string, below int64) error {
	if key == "" {
		return t.exec("DELETE FROM entries WHERE list = ? AND id < ?", table, below)
	}
	return t.exec("DELETE FROM entries WHERE list = ? AND key = ? AND id < ?", table, key, below)
}

// seal makes the record of an object and its encoding. The record's object is decoded from the encoding, so that
// it shares nothing with the caller's.
func (k *kind) seal(o *store.Object) (record, []byte, error) {
	rec := record{version: k.Version, object: o, indexTerms: k.indexTerms(o)}
	data := rec.encode(make([]byte, 0, 256+len(o.Spec)+len(o.Status)))
	rec, err := decodeRecord(data)
	return rec, data, err
}

func insertTerms(c *conn, r storedRecord, terms []term) error {
	for _, t := range terms {
		err := c.exec("INSERT INTO terms (kind, field, value, name, id) VALUES (?, ?, ?, ?, ?)",
			r.object.Kind, t.field, t.value, r.object.Name, r.id)
		if err != nil {
			return err
		}
	}
	return nil
}

// replaceTerms brings an object's terms from had to has. Both are sorted and share none; a label whose value changed is in
// both, and moves in one statement.
func replaceTerms(c *conn, r storedRecord, had, has []term) error {
	for len(had) > 0 && len(has) > 0 {
		var err error
		switch order := cmp.Compare(had[0].field, has[0].field); {
		case order < 0:
			err = deleteTerms(c, r, had[:1])
			had = had[1:]
		case order > 0:
			err = insertTerms(c, r, has[:1])
			has = has[1:]
		default:
			err = c.exec("UPDATE terms SET value = ? WHERE kind = ? AND field = ? AND value = ? AND name = ?",
				has[0].value, r.object.Kind, had[0].field, had[0].value, r.object.Name)
			had, has = had[1:], has[1:]
		}
		if err != nil {
			return err
		}
	}
	if err := deleteTerms(c, r, had); err != nil {
		return err
	}
	return insertTerms(c, r, has)
}

func deleteTerms(c *conn, r storedRecord, terms []term) error {
	for _, t := range terms {
		err := c.exec("DELETE FROM terms WHERE kind = ? AND field = ? AND value = ? AND name = ?",
			r.object.Kind, t.field, t.value, r.object.Name)
		if err != nil {
			return err
		}
	}
	return nil
}

// without answers the terms of a that are not in b; both are sorted.
func without(a, b []term) []term {
	var rest []term
	for _, t := range a {
		if _, found := slices.BinarySearchFunc(b, t, term.compare); !found {
			rest = append(rest, t)
		}
	}
	return rest
}

func sameContent(a, b *store.Object) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		slices.Equal(a.Finalizers, b.Finalizers) && bytes.Equal(a.Spec, b.Spec) && bytes.Equal(a.Status, b.Status)
}

func checkJSON(o *store.Object) error {
	if len(o.Spec) > 0 && !json.Valid(o.Spec) {
		return fmt.Errorf("spec is not JSON")
	}
	if len(o.Status) > 0 && !json.Valid(o.Status) {
		return fmt.Errorf("status is not JSON")
	}
	return nil
}
