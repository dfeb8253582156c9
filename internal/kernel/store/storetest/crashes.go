package storetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// writerFolder, in the environment, makes the test binary a writer to be killed.
	writerFolder = "FREEHOLD_STORETEST_WRITER"

	crashes      = 200
	crashesShort = 10
	crashWriters = 8
)

// testCrashes kills a writer process with SIGKILL again and again, and checks that each update it had answered is
// there, that none is there by half, and that the change log tells of each once. It shows what the store does when
// its process dies; what it does when the machine loses power rests on the flush before each answer.
func testCrashes(t *testing.T, b Backend) {
	if folder := os.Getenv(writerFolder); folder != "" {
		_, _ = fmt.Fprintln(os.Stdout, "error", writeUntilKilled(b, folder))
		return
	}
	f := newFixture(t, b)
	n := crashes
	if testing.Short() {
		n = crashesShort
	}
	c := crash{fixture: f, seen: make([]int, crashWriters), logged: f.revision()}
	for i := range n {
		if err := f.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		answered := c.killWriter(rand.IntN(150))
		f.open()
		c.check(answered)
		if t.Failed() {
			t.Fatalf("after crash %d", i+1)
		}
	}
	t.Logf("%d updates in %d crashes", sum(c.seen), n)
}

// writeUntilKilled lets writers count in two objects, a blob and a table at once, and prints each count once it was
// answered.
func writeUntilKilled(b Backend, folder string) error {
	s, err := b.Open(ctx, folder, testedKinds())
	if err != nil {
		return err
	}
	failed := make(chan error)
	for i := range crashWriters {
		go func() {
			for {
				n := 0
				err := s.Update(ctx, func(tx store.Tx) (err error) {
					n, err = countOn(tx, i)
					return err
				})
				if err != nil {
					failed <- err
					return
				}
				_, _ = os.Stdout.WriteString(fmt.Sprintf("%d %d\n", i, n))
			}
		}()
	}
	return <-failed
}

func countOn(tx store.Tx, writer int) (n int, err error) {
	last, err := tx.Scan("journal", store.Scan{Key: strconv.Itoa(writer), NewestFirst: true, Limit: 1})
	if err != nil {
		return 0, err
	}
	if len(last) > 0 {
		if n, err = strconv.Atoi(string(last[0].Data)); err != nil {
			return 0, err
		}
	}
	n++
	count := fmt.Append(nil, n)
	for _, side := range []string{"left", "right"} {
		if err := put(tx, &store.Object{Kind: "tenant", Name: fmt.Sprintf("%s-%d", side, writer), Spec: count}); err != nil {
			return 0, err
		}
	}
	err = tx.PutBlob(fmt.Sprintf("count-%d", writer), count)
	return n, errors.Join(err, second(tx.Append("journal", strconv.Itoa(writer), count)))
}

// put creates an object, or gives it a new spec.
func put(tx store.Tx, o *store.Object) error {
	have, err := tx.Get(o.Kind, o.Name)
	if errors.Is(err, store.ErrNotFound) {
		return tx.Create(o)
	}
	if err != nil {
		return err
	}
	have = have.Clone()
	have.Spec = o.Spec
	return tx.Update(have)
}

// crash is a store whose writer is killed, with what was known of it before.
type crash struct {
	*fixture
	// seen is each writer's count at the last check, logged the revision of it.
	seen   []int
	logged int64
}

// killWriter starts a writer process and kills it soon after it has answered some updates. It answers each
// writer's last count that was answered.
func (c *crash) killWriter(after int) []int {
	c.t.Helper()
	pattern := "^" + strings.ReplaceAll(c.t.Name(), "/", "$/^") + "$"
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+pattern, "-test.count=1")
	cmd.Env = append(os.Environ(), writerFolder+"="+c.folder)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatalf("start the writer: %v", err)
	}
	var once sync.Once
	kill := func() { once.Do(func() { _ = cmd.Process.Kill() }) }
	defer time.AfterFunc(patience, kill).Stop()
	answered := make([]int, crashWriters)
	lines := bufio.NewReader(out)
	for i := 0; ; i++ {
		if i == after {
			// The moment of death is any, not only one at which an answer has just arrived.
			time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, kill)
		}
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		var writer, n int
		if _, err := fmt.Sscanf(line, "%d %d\n", &writer, &n); err != nil {
			c.t.Fatalf("the writer says %q\n%s", line, stderr.String())
		}
		answered[writer] = n
	}
	kill()
	_ = cmd.Wait()
	return answered
}

// check compares the store with what was answered.
func (c *crash) check(answered []int) {
	c.t.Helper()
	before := append([]int(nil), c.seen...)
	c.view(func(r store.Reader) error {
		for i := range c.seen {
			n, err := countOf(r, i)
			if err != nil {
				return err
			}
			least := max(answered[i], c.seen[i])
			if n < least || n > least+1 {
				c.t.Errorf("writer %d had %d answered, the store has %d", i, least, n)
			}
			c.seen[i] = n
		}
		return nil
	})
	c.checkLog(before)
}

// countOf answers a writer's count, which must be the same in all its places.
func countOf(r store.Reader, writer int) (int, error) {
	counts := map[string]string{}
	for _, side := range []string{"left", "right"} {
		o, err := r.Get("tenant", fmt.Sprintf("%s-%d", side, writer))
		if errors.Is(err, store.ErrNotFound) {
			counts[side] = ""
			continue
		}
		if err != nil {
			return 0, err
		}
		counts[side] = string(o.Spec)
	}
	blob, err := r.Blob(fmt.Sprintf("count-%d", writer))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, err
	}
	rows, err := r.Scan("journal", store.Scan{Key: strconv.Itoa(writer)})
	if err != nil {
		return 0, err
	}
	last := ""
	for i, row := range rows {
		if last = strconv.Itoa(i + 1); string(row.Data) != last {
			return 0, fmt.Errorf("writer %d: row %d of the journal says %s", writer, i+1, row.Data)
		}
	}
	if counts["left"] != last || counts["right"] != last || string(blob) != last {
		return 0, fmt.Errorf("writer %d: an update is there by half: objects %v, blob %q, journal %q", writer, counts, blob, last)
	}
	return len(rows), nil
}

// checkLog follows the log from the counts before to the present ones.
func (c *crash) checkLog(counts []int) {
	c.t.Helper()
	last := c.revision()
	w := c.watch(c.logged, store.Query{Kind: "tenant"})
	defer w.Close()
	for c.logged < last {
		batch := c.next(w)
		if batch.Revision != c.logged+1 || len(batch.Events) != 2 {
			c.t.Fatalf("after %d came %d with %v", c.logged, batch.Revision, seen(batch))
		}
		c.logged = batch.Revision
		var writer int
		if _, err := fmt.Sscanf(batch.Events[0].Object.Name, "left-%d", &writer); err != nil {
			c.t.Fatal(err)
		}
		counts[writer]++
		for _, e := range batch.Events {
			if string(e.Object.Spec) != strconv.Itoa(counts[writer]) {
				c.t.Errorf("revision %d: %s is %s, want %d", batch.Revision, e.Object.Name, e.Object.Spec, counts[writer])
			}
		}
	}
	if fmt.Sprint(counts) != fmt.Sprint(c.seen) {
		c.t.Errorf("the log leads to %v, the store has %v", counts, c.seen)
	}
}

func sum(numbers []int) (n int) {
	for _, m := range numbers {
		n += m
	}
	return n
}
