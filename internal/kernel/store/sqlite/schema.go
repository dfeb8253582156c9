package sqlite

import (
	"fmt"
	"slices"
	"strings"

	"freehold.dev/freehold/internal/kernel/store"
)

// schemaVersion is the version of the tables below, kept in the file's user_version. A change of the tables
// raises it and adds a step to migrations.
const schemaVersion = 1

// applicationID marks a file as ours ("FRHD"), so that no other SQLite file is taken for a store.
const applicationID = 0x46524844

// migrations[v] brings tables of version v to v+1; a new file starts at version 0.
var migrations = []string{0: `
-- Objects as they are. data holds a record (codec.go). The row's id is the order of creation.
CREATE TABLE objects (
	id   INTEGER PRIMARY KEY,
	kind TEXT NOT NULL,
	name TEXT NOT NULL,
	data BLOB NOT NULL,
	UNIQUE (kind, name)
);

-- What objects are found by: their labels ("label:<key>") and the indexes of their kind ("index:<name>").
CREATE TABLE terms (
	kind  TEXT NOT NULL,
	field TEXT NOT NULL,
	value TEXT NOT NULL,
	name  TEXT NOT NULL,
	id    INTEGER NOT NULL,
	PRIMARY KEY (kind, field, value, name)
) WITHOUT ROWID;

-- One row per transaction that changed objects. AUTOINCREMENT: a revision is never given out twice, not even
-- after compaction. time is in microseconds since 1970 and does not go back.
CREATE TABLE log (
	revision INTEGER PRIMARY KEY AUTOINCREMENT,
	time     INTEGER NOT NULL,
	changes  BLOB NOT NULL
);
INSERT INTO sqlite_sequence (name, seq) VALUES ('log', 1);

CREATE TABLE claims (
	field TEXT NOT NULL,
	value TEXT NOT NULL,
	owner TEXT NOT NULL,
	PRIMARY KEY (field, value)
) WITHOUT ROWID;

CREATE TABLE blobs (
	name    TEXT PRIMARY KEY,
	size    INTEGER NOT NULL,
	created INTEGER NOT NULL,
	data    BLOB NOT NULL
);

-- Rows of the append-only tables. AUTOINCREMENT: trimming does not free ids.
CREATE TABLE entries (
	id    INTEGER PRIMARY KEY AUTOINCREMENT,
	list  TEXT NOT NULL,
	key   TEXT NOT NULL,
	time  INTEGER NOT NULL,
	data  BLOB NOT NULL
);
CREATE INDEX entries_by_list ON entries (list);
CREATE INDEX entries_by_key ON entries (list, key);

-- The form in which each kind is indexed: its version and the names of its indexes.
CREATE TABLE kinds (
	kind    TEXT PRIMARY KEY,
	version INTEGER NOT NULL,
	indexes TEXT NOT NULL
) WITHOUT ROWID;

-- compacted: the highest revision that was dropped from the log.
CREATE TABLE facts (
	name  TEXT PRIMARY KEY,
	value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO facts VALUES ('compacted', 0);
`}

// migrate creates or upgrades the tables, in one transaction.
func migrate(c *conn) error {
	version, err := c.int64("PRAGMA user_version")
	if err != nil {
		return err
	}
	id, err := c.int64("PRAGMA application_id")
	if err != nil {
		return err
	}
	tables, err := c.int64("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	switch {
	case version == 0 && tables == 0:
	case id != applicationID:
		return fmt.Errorf("this SQLite file was not made by Freehold; name another file, or move it away")
	case version > schemaVersion:
		return fmt.Errorf("the file has schema version %d, this program knows %d: start the newer Freehold that wrote it, or restore a backup made by this one", version, schemaVersion)
	case version == schemaVersion:
		return nil
	}
	return c.transact(func() error {
		for _, step := range migrations[version:] {
			if err := c.script(step); err != nil {
				return err
			}
		}
		return c.script(fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, schemaVersion))
	})
}

// reindex brings the terms of kinds whose version or indexes changed up to date, and refuses kinds that a newer
// program has written.
func reindex(c *conn, kinds kindSet) error {
	for _, k := range kinds {
		want := strings.Join(k.indexNames(), ",")
		var version int64
		var have string
		if err := c.query(func(r row) error {
			version, have = r.ColumnInt64(0), r.ColumnText(1)
			return nil
		}, "SELECT version, indexes FROM kinds WHERE kind = ?", k.Name); err != nil {
			return err
		}
		switch {
		case version > int64(k.Version):
			return fmt.Errorf("objects of kind %q are stored in version %d, this program knows %d: start the newer Freehold that wrote them", k.Name, version, k.Version)
		case version == int64(k.Version) && have == want:
			continue
		}
		if err := c.transact(func() error {
			if err := reindexKind(c, k); err != nil {
				return fmt.Errorf("index kind %q: %w", k.Name, err)
			}
			return c.exec("INSERT OR REPLACE INTO kinds (kind, version, indexes) VALUES (?, ?, ?)", k.Name, k.Version, want)
		}); err != nil {
			return err
		}
	}
	return nil
}

// reindexKind writes each object of the kind again, in its present version and with its present terms. The
// revision stays: nothing that a client sees has changed.
func reindexKind(c *conn, k *kind) error {
	if err := c.exec("DELETE FROM terms WHERE kind = ?", k.Name); err != nil {
		return err
	}
	last := int64(0)
	for {
		var stored []storedRecord
		if err := c.query(func(r row) error {
			rec, err := k.decode(columnBytes(r, 1))
			stored = append(stored, storedRecord{id: r.ColumnInt64(0), record: rec})
			return err
		}, "SELECT id, data FROM objects WHERE kind = ? AND id > ? ORDER BY id LIMIT 200", k.Name, last); err != nil {
			return err
		}
		if len(stored) == 0 {
			return nil
		}
		for _, s := range stored {
			last = s.id
			s.indexTerms = k.indexTerms(s.object)
			if err := c.exec("UPDATE objects SET data = ? WHERE id = ?", s.encode(nil), s.id); err != nil {
				return err
			}
			if err := insertTerms(c, s, s.terms()); err != nil {
				return err
			}
		}
	}
}

// kind is a declared kind with what the backend derives from it.
type kind struct{ store.Kind }

// kindSet finds declared kinds by name.
type kindSet map[string]*kind

func newKindSet(declared []store.Kind) (kindSet, error) {
	kinds := kindSet{}
	for _, d := range declared {
		d.Version = max(d.Version, 1)
		switch {
		case d.Name == "":
			return nil, fmt.Errorf("a kind has no name")
		case kinds[d.Name] != nil:
			return nil, fmt.Errorf("kind %q is declared twice", d.Name)
		case len(d.Upgrades) < d.Version && d.Version > 1:
			return nil, fmt.Errorf("kind %q is at version %d but has upgrades for %d", d.Name, d.Version, len(d.Upgrades))
		}
		kinds[d.Name] = &kind{d}
	}
	return kinds, nil
}

func (s kindSet) get(name string) (*kind, error) {
	if k := s[name]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("kind %q is not declared to the store", name)
}

func (k *kind) indexNames() []string {
	names := make([]string, 0, len(k.Indexes))
	for name := range k.Indexes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// indexTerms computes the terms of the kind's indexes, sorted and without repetition.
func (k *kind) indexTerms(o *store.Object) []term {
	var terms []term
	for name, values := range k.Indexes {
		for _, v := range values(o) {
			terms = append(terms, term{indexField(name), v})
		}
	}
	slices.SortFunc(terms, term.compare)
	return slices.Compact(terms)
}

// decode reads a record and brings its spec and status to the kind's present version.
func (k *kind) decode(data []byte) (record, error) {
	rec, err := decodeRecord(data)
	if err != nil {
		return rec, err
	}
	return rec, k.upgrade(&rec)
}

func (k *kind) upgrade(rec *record) error {
	if rec.version > k.Version {
		return fmt.Errorf("%s %q is stored in version %d, this program knows %d: start the newer Freehold that wrote it", k.Name, rec.object.Name, rec.version, k.Version)
	}
	for ; rec.version < k.Version; rec.version++ {
		spec, status, err := k.Upgrades[rec.version](rec.object.Spec, rec.object.Status)
		if err != nil {
			return fmt.Errorf("upgrade %s %q from version %d: %w", k.Name, rec.object.Name, rec.version, err)
		}
		rec.object.Spec, rec.object.Status = spec, status
	}
	return nil
}
