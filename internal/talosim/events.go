package talosim

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// How much a machine remembers.
const (
	maxEvents   = 256
	maxLogLines = 200
)

type event struct {
	id    string
	actor string
	at    time.Time
	data  *anypb.Any
}

// eventLog is the ring of a boot's events.
type eventLog struct {
	mu     sync.Mutex
	first  int // sequence number of list[0]
	list   []event
	closed bool
	notify notifier
}

// newEventID makes an id in the form of Talos' event ids: 4 bytes of time and 8 others, in base 32.
func newEventID() string {
	var b [12]byte
	binary.BigEndian.PutUint32(b[:4], uint32(time.Now().Unix()))
	rand.Read(b[4:])
	return base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding).EncodeToString(b[:])
}

func newEventLog() *eventLog { return &eventLog{} }

func (l *eventLog) publish(actor string, payload proto.Message) {
	data, err := anypb.New(payload)
	if err != nil {
		return
	}
	// The type URLs of Talos' events are their own.
	data.TypeUrl = "talos/runtime/" + string(payload.ProtoReflect().Descriptor().FullName())
	l.mu.Lock()
	l.list = append(l.list, event{id: newEventID(), actor: actor, at: time.Now(), data: data})
	if over := len(l.list) - maxEvents; over > 0 {
		l.first += over
		l.list = append([]event(nil), l.list[over:]...)
	}
	l.mu.Unlock()
	l.notify.broadcast()
}

func (l *eventLog) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.notify.broadcast()
}

// since returns the events from a sequence number on, and the next number.
func (l *eventLog) since(n int) (list []event, next int, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := max(n-l.first, 0)
	if i < len(l.list) {
		list = append(list, l.list[i:]...)
	}
	return list, l.first + len(l.list), l.closed
}

// follow calls f for every event from a sequence number on.
func (l *eventLog) follow(ctx context.Context, n int, f func(event) error) error {
	for {
		changed := l.notify.wait()
		list, next, closed := l.since(n)
		for _, e := range list {
			if err := f(e); err != nil {
				return err
			}
		}
		n = next
		if closed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// logBook keeps the last lines of every service's log.
type logBook struct {
	mu     sync.Mutex
	lines  map[string]*logFile
	closed bool
	notify notifier
}

type logFile struct {
	first int
	lines []string
}

func newLogBook() *logBook { return &logBook{lines: map[string]*logFile{}} }

func (b *logBook) add(service string, at time.Time, line string) {
	b.mu.Lock()
	f := b.lines[service]
	if f == nil {
		f = &logFile{}
		b.lines[service] = f
	}
	f.lines = append(f.lines, at.UTC().Format("2006/01/02 15:04:05.000000")+" "+line)
	if over := len(f.lines) - maxLogLines; over > 0 {
		f.first += over
		f.lines = append([]string(nil), f.lines[over:]...)
	}
	b.mu.Unlock()
	b.notify.broadcast()
}

func (b *logBook) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.notify.broadcast()
}

// since returns a service's lines from a number on, and the next number.
func (b *logBook) since(service string, n int) (lines []string, next int, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.lines[service]
	if f == nil {
		return nil, 0, b.closed
	}
	i := max(n-f.first, 0)
	if i < len(f.lines) {
		lines = append(lines, f.lines[i:]...)
	}
	return lines, f.first + len(f.lines), b.closed
}

// services lists whose logs there are.
func (b *logBook) has(service string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines[service] != nil
}
