// Package store keeps Freehold's durable objects: what was declared, what was observed, and the log of every change.
//
// One mechanism serves the management plane, the VM host daemon and the node agent. A backend (sqlite) implements
// [Store]; storetest is the contract that every backend passes.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

var (
	// ErrNotFound means that no object, blob or claim has that name.
	ErrNotFound = errors.New("not found")
	// ErrExists means that an object with that kind and name exists already.
	ErrExists = errors.New("already exists")
	// ErrConflict means that the object's revision is not the one that the caller read.
	ErrConflict = errors.New("the object has been modified; please apply your changes to the latest version")
	// ErrClaimed means that the unique key belongs to another owner.
	ErrClaimed = errors.New("already claimed")
	// ErrCompacted means that the change log no longer reaches back to the asked revision.
	ErrCompacted = errors.New("revision was compacted")
	// ErrFull means that the backend had no room to make the update durable; nothing of it was kept.
	ErrFull = errors.New("no space left for the store")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("store is closed")
)

// Object is one record. Those that a Reader or a Watcher hands out may be shared: treat them as read-only, and
// change a [Object.Clone].
type Object struct {
	Kind string
	// Name is a path inside its kind: "prod", "prod/workers".
	Name string
	UID  string
	// Revision is that of the transaction that wrote the object last.
	Revision int64
	// Generation grows by one when Spec changes, and only then.
	Generation        int64
	CreatedAt         time.Time
	UpdatedAt         time.Time
	DeletionTimestamp *time.Time
	Finalizers        []string
	Labels            map[string]string
	Annotations       map[string]string
	Spec              json.RawMessage
	Status            json.RawMessage
}

// Clone copies the object deeply.
func (o *Object) Clone() *Object {
	c := *o
	if o.DeletionTimestamp != nil {
		t := *o.DeletionTimestamp
		c.DeletionTimestamp = &t
	}
	c.Finalizers = slices.Clone(o.Finalizers)
	c.Labels = maps.Clone(o.Labels)
	c.Annotations = maps.Clone(o.Annotations)
	c.Spec = slices.Clone(o.Spec)
	c.Status = slices.Clone(o.Status)
	return &c
}

// Deleting tells whether deletion was asked for and finalizers still hold the object.
func (o *Object) Deleting() bool { return o.DeletionTimestamp != nil }

// Kind declares one kind of object to a backend.
type Kind struct {
	Name string
	// Version of the stored form of Spec and Status, 1 or more (0 means 1). Objects of an older version are
	// upgraded when read: Upgrades[v] turns version v into v+1, so Upgrades[0] is unused.
	Version  int
	Upgrades []func(spec, status json.RawMessage) (json.RawMessage, json.RawMessage, error)
	// Indexes: for each index name, the values under which an object is found by Query.Index. A function looks
	// at nothing but the object. One whose results change needs a new name, or a new Version of its kind.
	Indexes map[string]func(*Object) []string
}

// Query selects objects of one kind. The zero value of each other field does not restrict.
type Query struct {
	Kind string
	// Name is an exact name.
	Name string
	// Prefix of the name: "prod/" selects what lies below prod.
	Prefix   string
	Selector labels.Selector
	// Index and Value select by a declared index of the kind.
	Index, Value string

	// Offset, Limit (0: no limit) and NewestFirst apply to List only. Order is by name, or by
	// creation, newest first.
	Offset, Limit int
	NewestFirst   bool
}

// List is one page of objects, consistent as of Revision. Total counts all that the query selects.
type List struct {
	Objects  []*Object
	Total    int
	Revision int64
}

// Entry is a row of an append-only table.
type Entry struct {
	ID   int64
	Time time.Time
	// Key groups rows (a tenant's UID, a principal).
	Key  string
	Data []byte
}

// Scan selects rows of an append-only table. After (exclusive) with ascending ids, or Before (exclusive; 0: from
// the end) with NewestFirst.
type Scan struct {
	Key           string
	After, Before int64
	NewestFirst   bool
	Limit         int
}

// BlobInfo describes a stored blob.
type BlobInfo struct {
	Name      string
	Size      int64
	CreatedAt time.Time
}

// Reader is a consistent view of the store.
type Reader interface {
	// Revision is the last committed revision that this view sees.
	Revision() int64
	// Get answers the object or ErrNotFound.
	Get(kind, name string) (*Object, error)
	List(q Query) (*List, error)
	// Claimed answers the owner of a unique key, or ErrNotFound.
	Claimed(index, value string) (owner string, err error)
	// Blob answers the content, or ErrNotFound.
	Blob(name string) ([]byte, error)
	// Blobs lists by name.
	Blobs(prefix string) ([]BlobInfo, error)
	Scan(table string, s Scan) ([]Entry, error)
	// Changes answers what a watcher of the queries would have been told of the revisions after since up to the
	// view's own, oldest first. It looks at the last revisions only, at as many as last says. since 0: as far as
	// the log is kept. ErrCompacted as of Watch.
	Changes(since int64, last int, queries ...Query) ([]Batch, error)
}

// Tx is a transaction: it reads its own writes, and commits all of them or none, under one new revision. A
// transaction that changes no object takes no revision.
type Tx interface {
	Reader
	// Create stores a new object and completes it in place: UID if empty, Revision, Generation 1, times.
	// ErrExists if the name is taken.
	Create(o *Object) error
	// Update replaces labels, annotations, finalizers, spec and status, and completes o in place. o.Revision
	// must be the stored one (ErrConflict). UID, times and DeletionTimestamp cannot be changed by it. An update
	// that changes nothing keeps the revision and logs nothing. An object that is deleting and has
	// no finalizers left is removed.
	Update(o *Object) error
	// Delete asks for deletion: an object without finalizers is removed, another gets its DeletionTimestamp
	// (again: no change). revision 0 means whatever the revision is. It answers the object as it then is.
	Delete(kind, name string, revision int64) (*Object, error)

	// Claim binds a unique key to an owner; claiming again for the same owner is allowed. ErrClaimed otherwise.
	Claim(index, value, owner string) error
	// Release frees a unique key; a free one is not an error.
	Release(index, value string) error

	// PutBlob stores bytes that are not part of the change log.
	PutBlob(name string, data []byte) error
	DeleteBlob(name string) error

	// Append adds a row to an append-only table and answers its id.
	Append(table, key string, data []byte) (int64, error)
	// Trim removes rows of a table with ids below the given one (key "": of every key).
	Trim(table, key string, below int64) error
}

// EventType is what happened to an object, as seen by one watcher.
type EventType string

// The event types.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
)

// Event is one change. An object that left the watcher's query (its labels changed) is Deleted to that watcher,
// one that entered it Added; Object is its last state.
type Event struct {
	Type   EventType
	Object *Object
}

// Batch is what one transaction changed, whole: a watcher sees all of it or none.
type Batch struct {
	// Revision to resume after. Batches carry rising revisions.
	Revision int64
	Events   []Event
	// Initial: the events are the state at Revision, all Added, not changes. Only the first batch of a watch
	// that started without a revision is initial (it comes even when it is empty).
	Initial bool
}

// Watcher is a cursor in the change log. It holds no memory while its reader is away.
type Watcher interface {
	// Next waits for the next batch that concerns the watcher. ErrCompacted: the cursor fell behind what is
	// kept; start again. ErrClosed: the store was closed. ctx's error: the wait was given up, and may be repeated.
	Next(ctx context.Context) (Batch, error)
	Close()
}

// Store keeps objects durably: when Update returned nil, a crash or power loss does not undo it.
type Store interface {
	// View runs f on a consistent view. The Reader ends with f. f holds one of a few readers while it runs.
	View(ctx context.Context, f func(Reader) error) error
	// Update runs f in a transaction and commits it when f returns nil. f may run more than once: it does no
	// I/O, leaks nothing before Update returns, and starts no other Update or Compact, which would wait for
	// it forever. A panic in f is answered as an error to its caller alone. When ctx ends before f was taken
	// up, f is not run; later that changes nothing.
	Update(ctx context.Context, f func(Tx) error) error
	// Watch follows what the queries select, from a snapshot (since 0) or after a revision (ErrCompacted). An
	// object that several queries select is reported once.
	Watch(ctx context.Context, since int64, queries ...Query) (Watcher, error)
	// Compact drops log entries that are older than keep, but never the last min ones.
	Compact(ctx context.Context, keep time.Duration, min int) error
	Close() error
}
