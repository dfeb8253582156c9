// Package audit keeps who asked for which change, from where, and what became of it.
//
// A change that is made is recorded in the transaction that makes it. One that is refused is recorded soon after, by a
// [Recorder], as far as the store takes it.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// table is the append-only table of entries. Its key is the principal.
const table = "audit"

// anonymous is the key of entries without a principal.
const anonymous = "-"

// Outcome of a request.
type Outcome string

// The outcomes.
const (
	Accepted Outcome = "accepted"
	Rejected Outcome = "rejected"
)

// Entry is one request for a change.
type Entry struct {
	// ID rises with time; it is the store's.
	ID   int64     `json:"-"`
	Time time.Time `json:"time"`
	// Principal is the user's name, "" for a caller who was not let in.
	Principal     string `json:"user"`
	CorrelationID string `json:"requestId,omitempty"`
	// Action is an operation's id ("restart-stream"), or a word for what was done.
	Action string `json:"action"`
	// Kind, Name and UID tell what it was done to ("stream", "node-a/orders").
	Kind string `json:"kind"`
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
	// Address of the other end of the connection.
	Address string  `json:"address,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`
	// Code tells why it was rejected.
	Code string `json:"code,omitempty"`
	// Detail is JSON; no secret is in it.
	Detail json.RawMessage `json:"detail,omitempty"`
}

// Resource is what the entry is about: "stream/node-a/orders".
func (e *Entry) Resource() string {
	if e.Name == "" {
		return e.Kind
	}
	return e.Kind + "/" + e.Name
}

// Of begins the entry of the request that ctx belongs to.
func Of(ctx context.Context, principal string) Entry {
	e := Entry{Principal: principal, CorrelationID: rest.RequestID(ctx), Outcome: Accepted}
	if r := rest.Request(ctx); r != nil {
		e.Address = Address(r.RemoteAddr)
	}
	return e
}

// Address is the host of a host and port.
func Address(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return hostPort
	}
	return host
}

// WithDetail sets what else is to be known; nil is nothing.
func (e Entry) WithDetail(v any) (Entry, error) {
	if v == nil {
		return e, nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return e, fmt.Errorf("encode the detail of an audit entry: %w", err)
	}
	e.Detail = data
	return e, nil
}

// Append records an entry in the transaction that does what it tells.
func Append(tx store.Tx, e Entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode an audit entry: %w", err)
	}
	key := e.Principal
	if key == "" {
		key = anonymous
	}
	_, err = tx.Append(table, key, data)
	return err
}

func decode(row store.Entry) (Entry, error) {
	e := Entry{ID: row.ID}
	if err := json.Unmarshal(row.Data, &e); err != nil {
		return e, fmt.Errorf("decode audit entry %d: %w", row.ID, err)
	}
	if e.Outcome == "" { // older entries are of changes that were made
		e.Outcome = Accepted
	}
	return e, nil
}

// Filter selects entries. The zero value of a field does not restrict.
type Filter struct {
	Principal     string
	Action        string
	CorrelationID string
	Outcome       Outcome
	// Resource is a kind, or a kind and the first parts of a name: "stream", "stream/node-a", "stream/node-a/orders".
	Resource string
	// Since is included, Until is not.
	Since, Until time.Time
}

func (f *Filter) selects(e *Entry) bool {
	switch {
	case f.Principal != "" && e.Principal != f.Principal,
		f.Action != "" && e.Action != f.Action,
		f.CorrelationID != "" && e.CorrelationID != f.CorrelationID,
		f.Outcome != "" && e.Outcome != f.Outcome,
		!f.Since.IsZero() && e.Time.Before(f.Since),
		!f.Until.IsZero() && !e.Time.Before(f.Until):
		return false
	}
	if f.Resource == "" {
		return true
	}
	rest, ok := strings.CutPrefix(e.Resource(), f.Resource)
	return ok && (rest == "" || rest[0] == '/')
}
