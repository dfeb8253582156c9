package watch

import (
	"sync"

	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// maxFrames bounds how many encoded events are kept.
	maxFrames = 512
	// maxFrameSize in bytes of those that are kept.
	maxFrameSize = 64 << 10
)

// frames keeps the latest encoded events, so that many watchers of one object have it encoded once.
type frames struct {
	mu    sync.Mutex
	known map[frameKey][]byte
	order []frameKey // a ring, oldest at next
	next  int
}

// frameKey tells encoded events apart. Watchers share a commit's objects.
type frameKey struct {
	object *store.Object
	event  store.EventType
	kinds  bool
}

func newFrames() *frames {
	return &frames{known: make(map[frameKey][]byte, maxFrames), order: make([]frameKey, maxFrames)}
}

func (f *frames) encode(sc Scope, e store.Event) ([]byte, error) {
	key := frameKey{e.Object, e.Type, sc.Kinds}
	f.mu.Lock()
	frame, ok := f.known[key]
	f.mu.Unlock()
	if ok {
		return frame, nil
	}
	event, err := sc.event(e)
	if err != nil {
		return nil, err
	}
	if frame, err = rest.EncodeEvent(event); err != nil || len(frame) > maxFrameSize {
		return frame, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.known[key]; !ok {
		delete(f.known, f.order[f.next])
		f.known[key], f.order[f.next] = frame, key
		f.next = (f.next + 1) % maxFrames
	}
	return frame, nil
}
