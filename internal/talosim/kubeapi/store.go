package kubeapi

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// maxChanges is how many changes a watch may lag behind.
const maxChanges = 1000

// change is an entry of the change log.
type change struct {
	rev      uint64
	typ      string // ADDED, MODIFIED, DELETED
	resource *Resource
	object   Object
}

// Store holds the objects of one cluster.
type Store struct {
	onChange func()

	mu      sync.Mutex
	rev     uint64
	objects map[*Resource]map[string]Object
	changes []change
	waiters chan struct{}
}

type snapshot struct {
	Revision uint64                      `json:"revision"`
	Objects  map[string][]map[string]any `json:"objects"`
}

func (r *Resource) key() string { return r.Group + "/" + r.Version + "/" + r.Plural }

// NewStore makes a store from a snapshot; an empty one has the namespaces of a new cluster. onChange is called after
// each change.
func NewStore(data []byte, onChange func()) *Store {
	s := &Store{onChange: onChange, objects: map[*Resource]map[string]Object{}}
	var snap snapshot
	if len(data) == 0 || json.Unmarshal(data, &snap) != nil {
		s.seed()
		return s
	}
	s.rev = snap.Revision
	for _, r := range resources {
		for _, m := range snap.Objects[r.key()] {
			o := &unstructured.Unstructured{Object: normalize(m)}
			s.set(r, o)
		}
	}
	return s
}

// normalize turns what JSON decoded into the types that unstructured objects have: integers stay integers.
func normalize(m map[string]any) map[string]any {
	data, err := json.Marshal(m)
	if err != nil {
		return m
	}
	var o unstructured.Unstructured
	if o.UnmarshalJSON(data) != nil {
		return m
	}
	return o.Object
}

func objectKey(namespace, name string) string { return namespace + "/" + name }

func (s *Store) set(r *Resource, o Object) {
	if s.objects[r] == nil {
		s.objects[r] = map[string]Object{}
	}
	s.objects[r][objectKey(o.GetNamespace(), o.GetName())] = o
}

func (s *Store) seed() {
	for _, ns := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		o := NewObject(Namespaces, "", ns)
		o.SetLabels(map[string]string{"kubernetes.io/metadata.name": ns})
		o.Object["spec"] = map[string]any{"finalizers": []any{"kubernetes"}}
		o.Object["status"] = map[string]any{"phase": "Active"}
		s.put(Namespaces, o)
	}
}

// Reset throws everything away, as a new etcd does.
func (s *Store) Reset() {
	s.mu.Lock()
	s.objects = map[*Resource]map[string]Object{}
	s.changes = nil
	s.seed()
	s.mu.Unlock()
	s.changed()
}

// Snapshot is the whole store as JSON.
func (s *Store) Snapshot() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := snapshot{Revision: s.rev, Objects: map[string][]map[string]any{}}
	for r, objects := range s.objects {
		for _, o := range objects {
			snap.Objects[r.key()] = append(snap.Objects[r.key()], o.Object)
		}
	}
	data, err := json.Marshal(snap)
	if err != nil {
		return nil
	}
	return data
}

// Revision grows with every change.
func (s *Store) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rev
}

// Get returns a copy of an object.
func (s *Store) Get(r *Resource, namespace, name string) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[r][objectKey(namespace, name)]
	if !ok {
		return nil, false
	}
	return o.DeepCopy(), true
}

// List returns copies of the objects in a namespace (empty: in all), by namespace and name.
func (s *Store) List(r *Resource, namespace string) []Object {
	list, _ := s.listAt(r, namespace)
	return list
}

func (s *Store) listAt(r *Resource, namespace string) ([]Object, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Object
	for _, o := range s.objects[r] {
		if namespace == "" || o.GetNamespace() == namespace {
			list = append(list, o.DeepCopy())
		}
	}
	slices.SortFunc(list, func(a, b Object) int {
		return strings.Compare(objectKey(a.GetNamespace(), a.GetName()), objectKey(b.GetNamespace(), b.GetName()))
	})
	return list, s.rev
}

// Put stores an object, new or changed, and completes its metadata in place.
func (s *Store) Put(r *Resource, o Object) {
	s.mu.Lock()
	s.put(r, o)
	s.mu.Unlock()
	s.changed()
}

func (s *Store) put(r *Resource, o Object) {
	s.rev++
	old, exists := s.objects[r][objectKey(o.GetNamespace(), o.GetName())]
	typ := "MODIFIED"
	if exists {
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	} else {
		typ = "ADDED"
		o.SetUID(types.UID(uuid.NewString()))
		o.SetCreationTimestamp(metav1.NewTime(time.Now().UTC().Truncate(time.Second)))
	}
	o.SetResourceVersion(strconv.FormatUint(s.rev, 10))
	stored := o.DeepCopy()
	s.set(r, stored)
	s.log(change{rev: s.rev, typ: typ, resource: r, object: stored})
}

// update runs f on a copy of an object under the store's lock; what it returns is stored.
func (s *Store) update(r *Resource, namespace, name string, f func(old Object) (Object, error)) (Object, error) {
	s.mu.Lock()
	old, ok := s.objects[r][objectKey(namespace, name)]
	if ok {
		old = old.DeepCopy()
	}
	o, err := f(old)
	if err == nil && o != nil {
		s.put(r, o)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s.changed()
	return o, nil
}

// Delete removes an object, and tells whether it was there. With a namespace goes all that is in it.
func (s *Store) Delete(r *Resource, namespace, name string) (Object, bool) {
	s.mu.Lock()
	o, ok := s.objects[r][objectKey(namespace, name)]
	if ok {
		if r == Namespaces {
			for other, objects := range s.objects {
				for _, inside := range objects {
					if other.Namespaced && inside.GetNamespace() == name {
						s.delete(other, inside)
					}
				}
			}
		}
		s.delete(r, o)
	}
	s.mu.Unlock()
	if ok {
		s.changed()
	}
	return o, ok
}

func (s *Store) delete(r *Resource, o Object) {
	s.rev++
	delete(s.objects[r], objectKey(o.GetNamespace(), o.GetName()))
	last := o.DeepCopy()
	last.SetResourceVersion(strconv.FormatUint(s.rev, 10))
	s.log(change{rev: s.rev, typ: "DELETED", resource: r, object: last})
}

func (s *Store) log(c change) {
	s.changes = append(s.changes, c)
	if over := len(s.changes) - maxChanges; over > 0 {
		s.changes = append([]change(nil), s.changes[over:]...)
	}
}

func (s *Store) changed() {
	s.mu.Lock()
	if s.waiters != nil {
		close(s.waiters)
		s.waiters = nil
	}
	s.mu.Unlock()
	if s.onChange != nil {
		s.onChange()
	}
}

// since returns the changes after a revision and a channel that closes with the next one; false when the revision is
// too old to continue from.
func (s *Store) since(rev uint64) ([]change, <-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters == nil {
		s.waiters = make(chan struct{})
	}
	if rev < s.rev && (len(s.changes) == 0 || s.changes[0].rev > rev+1) {
		return nil, nil, false
	}
	i, _ := slices.BinarySearchFunc(s.changes, rev+1, func(c change, r uint64) int {
		return int(int64(c.rev) - int64(r))
	})
	return slices.Clone(s.changes[i:]), s.waiters, true
}
