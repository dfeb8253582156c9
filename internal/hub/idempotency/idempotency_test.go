package idempotency_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/hub/idempotency"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T) (store.Store, idempotency.Records) {
	t.Helper()
	dir := t.TempDir()
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	root, err := secrets.Open(t.Context(), s, filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	return s, idempotency.Records{Sealer: root}
}

func request(key, body string) *idempotency.Request {
	return &idempotency.Request{Principal: "ann", Method: "PUT", Path: "/x", Key: key, Body: []byte(body)}
}

func keep(t *testing.T, s store.Store, r idempotency.Records, at time.Time, requests ...*idempotency.Request) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for _, q := range requests {
			if err := r.Keep(tx, q, &idempotency.Answer{Status: 202, Header: map[string]string{"ETag": "e"}, Body: q.Body}, at); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, s store.Store, r idempotency.Records, q *idempotency.Request, at time.Time) (a *idempotency.Answer, err error) {
	t.Helper()
	err = s.View(t.Context(), func(view store.Reader) (err error) { a, err = r.Find(view, q, at); return err })
	return a, err
}

func TestAnAnswerIsFoundByItsRequestOnly(t *testing.T) {
	s, r := open(t)
	first := request("k", "body")
	keep(t, s, r, start, first)
	a, err := find(t, s, r, first, start)
	if diff := cmp.Diff(&idempotency.Answer{Status: 202, Header: map[string]string{"ETag": "e"}, Body: []byte("body")}, a); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := find(t, s, r, request("k", "other"), start); !errors.Is(err, idempotency.ErrReused) {
		t.Errorf("another body: %v", err)
	}
	// Parts of the scope do not run into each other.
	for _, q := range []idempotency.Request{
		{Principal: "an", Method: "nPUT", Path: "/x", Key: "k"}, {Principal: "ann", Method: "PUT", Path: "/xk", Key: ""},
		{Principal: "ann", Method: "PUT", Path: "/", Key: "xk"}, {Principal: "bob", Method: "PUT", Path: "/x", Key: "k"},
		{Principal: "ann", Method: "POST", Path: "/x", Key: "k"}, {Principal: "ann", Method: "PUT", Path: "/x", Key: "K"},
	} {
		if a, err := find(t, s, r, &q, start); a != nil || err != nil {
			t.Errorf("%+v: %v, %v", q, a, err)
		}
	}
}

func TestARecordThatWasMovedIsNotTakenForAnothers(t *testing.T) {
	s, r := open(t)
	keep(t, s, r, start, request("k", "body"))
	var data []byte
	if err := s.View(t.Context(), func(view store.Reader) error {
		rows, err := view.Scan("idempotency", store.Scan{})
		data = rows[0].Data
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte("ETag")) {
		t.Error("the answer is in the clear")
	}
	other, otherRecords := open(t)
	if err := other.Update(t.Context(), func(tx store.Tx) error {
		keepKey := request("k", "body")
		if err := otherRecords.Keep(tx, keepKey, &idempotency.Answer{}, start); err != nil {
			return err
		}
		rows, err := tx.Scan("idempotency", store.Scan{})
		if err != nil {
			return err
		}
		_, err = tx.Append("idempotency", rows[0].Key, data)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if a, err := find(t, other, otherRecords, request("k", "body"), start); a != nil || err == nil {
		t.Errorf("sealed with another key: %v, %v", a, err)
	}
}

func TestAnswersAreKeptForADay(t *testing.T) {
	s, r := open(t)
	const old = 2500
	var requests []*idempotency.Request
	for i := range old {
		requests = append(requests, request(fmt.Sprint("old", i), ""))
	}
	keep(t, s, r, start, requests...)
	keep(t, s, r, start.Add(time.Hour), request("new", ""))
	rows := func() (n int) {
		t.Helper()
		if err := s.View(t.Context(), func(view store.Reader) error {
			all, err := view.Scan("idempotency", store.Scan{})
			n = len(all)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for at, left := range map[time.Duration]int{idempotency.Kept - 1: old + 1} {
		if err := idempotency.Trim(t.Context(), s, start.Add(at)); err != nil || rows() != left {
			t.Fatalf("%s: %d rows, %v", at, rows(), err)
		}
	}
	if a, err := find(t, s, r, requests[0], start.Add(idempotency.Kept)); a != nil || err != nil {
		t.Errorf("after a day: %v, %v", a, err)
	}
	if err := idempotency.Trim(t.Context(), s, start.Add(idempotency.Kept)); err != nil || rows() != 1 {
		t.Fatalf("%d rows, %v", rows(), err)
	}
	if a, err := find(t, s, r, request("new", ""), start.Add(idempotency.Kept)); a == nil || err != nil {
		t.Errorf("the younger is gone: %v", err)
	}
}

func TestKeysAreOneTo255PrintableCharacters(t *testing.T) {
	for key, want := range map[string]bool{
		"": false, "k": true, " ~": true, strings.Repeat("k", 255): true, strings.Repeat("k", 256): false, "a\x7f": false, "a\n": false, "é": false,
	} {
		if got := idempotency.Valid(key); got != want {
			t.Errorf("%q: %v", key, got)
		}
	}
}
