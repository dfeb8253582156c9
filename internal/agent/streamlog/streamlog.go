// Package streamlog keeps the newest lines that each stream of a node logged, bounded in memory and on disk.
//
// A line's cursor is not given twice to a stream: it is above the number of the agent's boot, which is durable, and
// above that of every line that is still there. Lines survive the death of the agent; those of the last moments before
// a loss of power may be gone.
package streamlog

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"freehold.dev/freehold/client/agentapi"
)

// Bounds of a stream's log.
const (
	// MaxLine is the longest line in bytes; what is longer is cut.
	MaxLine = 8 << 10
	// keptLines and keptBytes are in memory, and can be read.
	keptLines = 2000
	keptBytes = 512 << 10
	// maxFile is the size at which a file is put aside; one that was put aside is kept.
	maxFile = 1 << 20
	// MaxRead is the most lines that one read answers.
	MaxRead = 1000
)

// ErrUnknown means that the stream has logged nothing here.
var ErrUnknown = errors.New("the stream has no log on this node")

// Book has the logs of all streams. It is safe for concurrent use.
type Book struct {
	folder string
	boot   int64
	now    func() time.Time

	mu   sync.Mutex
	logs map[string]*log
}

// Open reads what is in a folder, which it makes. bootSeq is the durable number of this run of the agent.
func Open(folder string, bootSeq int64, now func() time.Time) (*Book, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("open the streams' logs: %w", err)
	}
	b := &Book{folder: folder, boot: bootSeq << 32, now: now, logs: map[string]*log{}}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("open the streams' logs: %w", err)
	}
	for _, e := range entries {
		if stream, found := strings.CutSuffix(e.Name(), suffix); found {
			b.log(stream).load()
		}
	}
	return b, nil
}

const (
	suffix    = ".log"
	oldSuffix = ".log.old"
)

// log is one stream's.
type log struct {
	path string
	now  func() time.Time

	mu    sync.Mutex
	lines []entry
	bytes int
	next  int64
	file  *os.File
	size  int64
	// more is closed when a line comes.
	more chan struct{}
}

// entry is a line with its cursor, as it is on disk.
type entry struct {
	Cursor int64 `json:"c"`
	agentapi.LogLine
}

func (b *Book) log(stream string) *log {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.logs[stream]
	if l == nil {
		l = &log{path: filepath.Join(b.folder, stream), now: b.now, next: b.boot + 1, more: make(chan struct{})}
		b.logs[stream] = l
	}
	return l
}

// Append adds a line. A disk that is full loses it for the next boot, not for those who read now.
func (b *Book) Append(stream, source, text string) {
	b.log(stream).append(source, text)
}

func (l *log) append(source, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := entry{Cursor: l.next, LogLine: agentapi.LogLine{Time: l.now().UTC(), Source: source, Text: cut(text)}}
	l.next++
	l.keep(e)
	l.write(e)
	close(l.more)
	l.more = make(chan struct{})
}

func cut(text string) string {
	text = strings.TrimRight(text, "\r\n")
	if len(text) > MaxLine {
		text = strings.ToValidUTF8(text[:MaxLine], "") + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

func (l *log) keep(e entry) {
	l.lines = append(l.lines, e)
	l.bytes += len(e.Text)
	drop := 0
	for len(l.lines)-drop > 1 && (len(l.lines)-drop > keptLines || l.bytes > keptBytes) {
		l.bytes -= len(l.lines[drop].Text)
		drop++
	}
	if drop > 0 {
		clear(l.lines[:drop])
		l.lines = l.lines[drop:]
	}
}

// write is as good as the disk: a log is no reason to stop a stream.
func (l *log) write(e entry) {
	raw, err := json.Marshal(e)
	if err != nil {
		return
	}
	if l.file == nil {
		if l.file, err = os.OpenFile(l.path+suffix, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			l.file = nil
			return
		}
		if info, err := l.file.Stat(); err == nil {
			l.size = info.Size()
		}
	}
	n, _ := l.file.Write(append(raw, '\n'))
	if l.size += int64(n); l.size >= maxFile {
		_ = l.file.Close()
		l.file, l.size = nil, 0
		_ = os.Rename(l.path+suffix, l.path+oldSuffix)
	}
}

// load reads the lines of earlier boots. What is damaged is left out.
func (l *log) load() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range []string{l.path + oldSuffix, l.path + suffix} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		scanner := bufio.NewScanner(f)
		scanner.Buffer(nil, 16*MaxLine)
		for scanner.Scan() {
			var e entry
			if json.Unmarshal(scanner.Bytes(), &e) == nil && e.Cursor > 0 {
				l.keep(e)
				l.next = max(l.next, e.Cursor+1)
			}
		}
		_ = f.Close()
	}
	if f, err := os.OpenFile(l.path+suffix, os.O_WRONLY|os.O_APPEND, 0o600); err == nil {
		_, _ = f.WriteString("\n") // a line that was cut short stays alone
		_ = f.Close()
	}
}

// Read answers the lines after a cursor, up to limit (0 or less: [MaxRead]); after 0 it answers the last ones. When
// there is none it waits until ctx ends, which is no error.
func (b *Book) Read(ctx context.Context, stream string, after int64, limit int) (agentapi.LogAnswer, error) {
	b.mu.Lock()
	l := b.logs[stream]
	b.mu.Unlock()
	if l == nil {
		return agentapi.LogAnswer{}, ErrUnknown
	}
	if limit <= 0 || limit > MaxRead {
		limit = MaxRead
	}
	for {
		out, more := l.read(after, limit)
		if len(out.Lines) > 0 {
			return out, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return out, nil
		}
	}
}

func (l *log) read(after int64, limit int) (agentapi.LogAnswer, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := len(l.lines)
	for from > 0 && l.lines[from-1].Cursor > after {
		from--
	}
	to := min(len(l.lines), from+limit)
	if after <= 0 {
		from, to = max(0, len(l.lines)-limit), len(l.lines)
	}
	out := agentapi.LogAnswer{Lines: []agentapi.LogLine{}, Next: max(after, 0)}
	for _, e := range l.lines[from:to] {
		out.Lines = append(out.Lines, e.LogLine)
		out.Next = e.Cursor
	}
	return out, l.more
}

// Streams answers those that have lines.
func (b *Book) Streams() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for stream, l := range b.logs {
		if l.has() {
			out = append(out, stream)
		}
	}
	return out
}

func (l *log) has() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines) > 0
}

// Forget removes the log of a stream that is gone. Cursors go on from where they were.
func (b *Book) Forget(stream string) error {
	b.mu.Lock()
	l := b.logs[stream]
	b.mu.Unlock()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
	}
	l.lines, l.bytes, l.file, l.size = nil, 0, nil, 0
	var errs []error
	for _, name := range []string{l.path + oldSuffix, l.path + suffix} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close closes the files.
func (b *Book) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, l := range b.logs {
		l.mu.Lock()
		if l.file != nil {
			errs = append(errs, l.file.Close())
			l.file = nil
		}
		l.mu.Unlock()
	}
	return errors.Join(errs...)
}
