package streamlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/agent/streamlog"
)

func open(t *testing.T, folder string, boot int64) *streamlog.Book {
	t.Helper()
	b, err := streamlog.Open(folder, boot, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// now reads what there is, without waiting.
func now(t *testing.T, b *streamlog.Book, stream string, after int64, limit int) agentapi.LogAnswer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, err := b.Read(ctx, stream, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func texts(a agentapi.LogAnswer) string {
	var out []string
	for _, l := range a.Lines {
		out = append(out, l.Text)
	}
	return strings.Join(out, " ")
}

func TestLinesAreReadOnceInOrder(t *testing.T) {
	b := open(t, t.TempDir(), 1)
	for i := range 5 {
		b.Append("a", "stdout", fmt.Sprintf("%d\n", i))
	}
	first := now(t, b, "a", 0, 2)
	if texts(first) != "3 4" {
		t.Errorf("the last two: %q", texts(first))
	}
	b.Append("a", "stderr", "5")
	b.Append("b", "stdout", "not a's")
	b.Append("a", "stderr", "6")
	next := now(t, b, "a", first.Next, 1)
	if texts(next) != "5" || next.Lines[0].Source != "stderr" {
		t.Errorf("next: %+v", next)
	}
	if rest := now(t, b, "a", next.Next, 0); texts(rest) != "6" {
		t.Errorf("rest: %q", texts(rest))
	}
}

func TestAReaderWaitsForTheNextLine(t *testing.T) {
	b := open(t, t.TempDir(), 1)
	b.Append("a", "stdout", "old")
	last := now(t, b, "a", 0, 10)
	got := make(chan agentapi.LogAnswer, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		out, _ := b.Read(ctx, "a", last.Next, 10)
		got <- out
	}()
	b.Append("a", "stdout", "new")
	if out := <-got; texts(out) != "new" {
		t.Errorf("%q", texts(out))
	}
}

func TestCursorsGoOnAcrossBootsAndLinesAreStillThere(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder, 1)
	b.Append("a", "stdout", "first")
	before := now(t, b, "a", 0, 10)
	if err := os.WriteFile(filepath.Join(folder, "a.log"), append(read(t, folder), `{"c":`...), 0o600); err != nil { // cut short by a crash
		t.Fatal(err)
	}
	b = open(t, folder, 2)
	b.Append("a", "stdout", "second")
	if out := now(t, b, "a", before.Next, 10); texts(out) != "second" || out.Next <= before.Next {
		t.Errorf("%q at %d, after %d", texts(out), out.Next, before.Next)
	}
	b = open(t, folder, 3)
	if out := now(t, b, "a", 0, 10); texts(out) != "first second" {
		t.Errorf("%q", texts(out))
	}
	if err := os.RemoveAll(folder); err != nil { // a loss of power took all lines
		t.Fatal(err)
	}
	last := now(t, b, "a", 0, 10).Next
	b = open(t, folder, 4)
	b.Append("a", "stdout", "after")
	if out := now(t, b, "a", last, 10); texts(out) != "after" {
		t.Errorf("a cursor was used twice: %+v", out)
	}
}

func read(t *testing.T, folder string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(folder, "a.log"))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestALogIsBounded(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder, 1)
	line := strings.Repeat("é", streamlog.MaxLine)
	for range 1000 {
		b.Append("a", "stdout", line)
	}
	out := now(t, b, "a", 0, 10000)
	size := 0
	for _, l := range out.Lines {
		size += len(l.Text)
	}
	if size > 600<<10 || len(out.Lines[0].Text) > streamlog.MaxLine+4 {
		t.Errorf("%d bytes in memory, lines of %d", size, len(out.Lines[0].Text))
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	onDisk := int64(0)
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		onDisk += info.Size()
	}
	if onDisk > 3<<20 {
		t.Errorf("%d bytes on disk", onDisk)
	}
}

func TestAForgottenLogIsGoneAndItsCursorsAreNotUsedAgain(t *testing.T) {
	b := open(t, t.TempDir(), 1)
	b.Append("a", "stdout", "old")
	last := now(t, b, "a", 0, 1).Next
	if err := b.Forget("a"); err != nil {
		t.Fatal(err)
	}
	b.Append("a", "stdout", "new")
	if out := now(t, b, "a", 0, 10); texts(out) != "new" || out.Next <= last {
		t.Errorf("%+v after %d", out, last)
	}
	if _, err := b.Read(t.Context(), "other", 0, 1); !errors.Is(err, streamlog.ErrUnknown) {
		t.Errorf("%v", err)
	}
}
