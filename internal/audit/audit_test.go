package audit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func add(t *testing.T, s store.Store, entries ...audit.Entry) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for _, e := range entries {
			if err := audit.Append(tx, e); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func entry(i int, principal, action, kind, name string, outcome audit.Outcome) audit.Entry {
	return audit.Entry{
		Time: start.Add(time.Duration(i) * time.Minute), Principal: principal, Action: action, Kind: kind, Name: name,
		Outcome: outcome, CorrelationID: fmt.Sprint("c", i), Address: "10.0.0.1",
	}
}

// ids lists the correlation ids of a page.
func ids(t *testing.T, s store.Store, f audit.Filter, offset, limit int) (out []string, total int) {
	t.Helper()
	page, err := audit.List(t.Context(), s, f, offset, limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		out = append(out, e.CorrelationID)
	}
	return out, page.Total
}

func TestEntriesAreListedNewestFirstByEveryFilter(t *testing.T) {
	s := open(t)
	add(t, s,
		entry(0, "ann", "set", "stream", "a/orders", audit.Accepted),
		entry(1, "bob", "set", "stream", "a/orders2", audit.Rejected),
		entry(2, "ann", "restart", "stream", "b/orders", audit.Accepted),
		entry(3, "", "set", "stream", "a/orders", audit.Rejected),
		entry(4, "ann", "delete", "node", "a", ""),
	)
	for name, c := range map[string]struct {
		filter        audit.Filter
		offset, limit int
		want          []string
		total         int
	}{
		"all":         {audit.Filter{}, 0, 9, []string{"c4", "c3", "c2", "c1", "c0"}, 5},
		"page":        {audit.Filter{}, 2, 2, []string{"c2", "c1"}, 5},
		"beyond":      {audit.Filter{}, 7, 2, nil, 5},
		"principal":   {audit.Filter{Principal: "ann"}, 0, 9, []string{"c4", "c2", "c0"}, 3},
		"action":      {audit.Filter{Action: "set"}, 0, 9, []string{"c3", "c1", "c0"}, 3},
		"outcome":     {audit.Filter{Outcome: audit.Accepted}, 0, 9, []string{"c4", "c2", "c0"}, 3},
		"correlation": {audit.Filter{CorrelationID: "c1"}, 0, 9, []string{"c1"}, 1},
		"kind":        {audit.Filter{Resource: "stream"}, 0, 9, []string{"c3", "c2", "c1", "c0"}, 4},
		"node":        {audit.Filter{Resource: "stream/a"}, 0, 9, []string{"c3", "c1", "c0"}, 3},
		"resource":    {audit.Filter{Resource: "stream/a/orders"}, 0, 9, []string{"c3", "c0"}, 2},
		"since":       {audit.Filter{Since: start.Add(3 * time.Minute)}, 0, 9, []string{"c4", "c3"}, 2},
		"until":       {audit.Filter{Until: start.Add(time.Minute)}, 0, 9, []string{"c0"}, 1},
		"several":     {audit.Filter{Action: "set", Outcome: audit.Rejected, Principal: "bob"}, 0, 9, []string{"c1"}, 1},
	} {
		got, total := ids(t, s, c.filter, c.offset, c.limit)
		if diff := cmp.Diff(c.want, got); diff != "" || total != c.total {
			t.Errorf("%s: total %d, want %d: %s", name, total, c.total, diff)
		}
	}
}

func TestListsReachFarAndNoFarther(t *testing.T) {
	s := open(t)
	const n = audit.MaxListed + 1500
	entries := make([]audit.Entry, n)
	for i := range entries {
		entries[i] = entry(i, "ann", "set", "stream", "a/b", audit.Accepted)
	}
	entries[0].Principal = "bob"
	add(t, s, entries...)
	got, total := ids(t, s, audit.Filter{}, audit.MaxListed-1, 5)
	if diff := cmp.Diff([]string{fmt.Sprint("c", n-audit.MaxListed)}, got); diff != "" || total != audit.MaxListed {
		t.Errorf("total %d: %s", total, diff)
	}
	if got, total := ids(t, s, audit.Filter{CorrelationID: "c0"}, 0, 5); total != 1 || len(got) != 1 {
		t.Errorf("the oldest entry is not found: %v, %d", got, total)
	}
}

func TestRetentionIsByAgeByNumberAndForStrangersApart(t *testing.T) {
	s := open(t)
	for i := range 10 {
		add(t, s, entry(i, "", "set", "stream", "a/b", audit.Rejected), entry(i, "ann", "set", "stream", "a/b", audit.Accepted))
	}
	now := time.Now()
	keep := audit.Retention{Age: time.Hour, Rows: 14, Anonymous: 3}
	if err := keep.Trim(t.Context(), s, now); err != nil {
		t.Fatal(err)
	}
	// Of the last 14 rows 7 are of strangers, of whom 3 stay.
	all, _ := ids(t, s, audit.Filter{}, 0, 100)
	ann, _ := ids(t, s, audit.Filter{Principal: "ann"}, 0, 100)
	if len(ann) != 7 || len(all) != 10 {
		t.Errorf("kept %v, of ann %v", all, ann)
	}
	if err := keep.Trim(t.Context(), s, now.Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if all, _ := ids(t, s, audit.Filter{}, 0, 100); len(all) != 0 {
		t.Errorf("old entries %v", all)
	}
}

// brittle refuses updates while it is broken, and tells of each one.
type brittle struct {
	store.Store
	broken  atomic.Bool
	refused chan struct{}
}

func (b *brittle) Update(ctx context.Context, f func(store.Tx) error) error {
	if b.broken.Load() {
		select {
		case b.refused <- struct{}{}:
		default:
		}
		return store.ErrFull
	}
	return b.Store.Update(ctx, f)
}

func TestTheRecorderOutlastsAFullStoreAndItsOwnEnd(t *testing.T) {
	b := &brittle{Store: open(t), refused: make(chan struct{}, 1)}
	b.broken.Store(true)
	r := audit.NewRecorder(b, slog.New(slog.DiscardHandler), func() time.Time { return start })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Record(entry(0, "ann", "set", "stream", "a/b", audit.Rejected))
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	select {
	case <-b.refused:
	case <-deadline.C:
		t.Fatal("the entry was not tried to be recorded")
	}
	b.broken.Store(false)
	for {
		if _, total := ids(t, b, audit.Filter{}, 0, 10); total == 1 {
			break
		}
		select {
		case <-deadline.C:
			t.Fatal("the entry was not recorded")
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	r.Record(entry(1, "ann", "set", "stream", "a/b", audit.Rejected))
	if err := r.Run(ctx); err != nil { // its context has ended: what waits is recorded all the same
		t.Fatal(err)
	}
	if _, total := ids(t, b, audit.Filter{}, 0, 10); total != 2 {
		t.Errorf("%d entries", total)
	}
}

func TestStrangersAreRecordedAtABoundedRate(t *testing.T) {
	s := open(t)
	now := start
	r := audit.NewRecorder(s, slog.New(slog.DiscardHandler), func() time.Time { return now })
	for range 1000 {
		r.Record(audit.Entry{Action: "set", Outcome: audit.Rejected})
		r.Record(audit.Entry{Principal: "ann", Action: "set", Outcome: audit.Rejected})
	}
	now = now.Add(5 * time.Second)
	for range 10 {
		r.Record(audit.Entry{Action: "set", Outcome: audit.Rejected, Code: "later"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	page, err := audit.List(t.Context(), s, audit.Filter{}, 0, audit.MaxListed)
	if err != nil {
		t.Fatal(err)
	}
	strangers, later := 0, 0
	for _, e := range page.Entries {
		if e.Principal == "" {
			strangers++
		}
		if e.Code == "later" {
			later++
		}
	}
	if strangers != 205 || later != 5 || len(page.Entries)-strangers != 1000 {
		t.Errorf("%d of strangers, %d of them later, %d in all", strangers, later, len(page.Entries))
	}
}

func TestEntriesOfOlderServersAreRead(t *testing.T) {
	s := open(t)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.Append("audit", "ann", []byte(`{"time":"2026-01-02T03:04:05Z","user":"ann","requestId":"r","action":"issue-kubeconfig","kind":"tenant","name":"prod","uid":"u","detail":{"ttl":"1h"}}`))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	page, err := audit.List(t.Context(), s, audit.Filter{Resource: "tenant/prod", Outcome: audit.Accepted}, 0, 10)
	if err != nil || len(page.Entries) != 1 {
		t.Fatal(page, err)
	}
	e := page.Entries[0]
	if e.Principal != "ann" || e.CorrelationID != "r" || e.Resource() != "tenant/prod" || e.Outcome != audit.Accepted || string(e.Detail) != `{"ttl":"1h"}` {
		t.Errorf("%+v", e)
	}
}
