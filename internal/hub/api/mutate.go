package api

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/idempotency"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// Retriable is embedded in the input of every mutation.
type Retriable struct {
	IdempotencyKey string `header:"Idempotency-Key" doc:"1 to 255 printable characters. The same request with the same key, within 24 hours, is answered as it was and changes nothing."`
	CorrelationID  string `header:"X-Correlation-ID" doc:"1 to 128 letters, digits, dots, underscores and hyphens; kept in operations, the audit and the log. Another value is replaced."`
}

// Guarded is embedded in the input of mutations of a generation.
type Guarded struct {
	Retriable
	IfMatch     string `header:"If-Match" doc:"The generation that the stream must have: \"generation-3\", in quotes. \"generation-0\": it must be new."`
	IfNoneMatch string `header:"If-None-Match" doc:"*: the stream must be new."`
}

// mutation is a request that changes something.
type mutation struct {
	*service
	caller Caller
	// retry is nil without an Idempotency-Key.
	retry *idempotency.Request
	now   time.Time
}

// change is what a mutation did.
type change[R any] struct {
	body           R
	location, etag string
	// status, where it is not the operation's own.
	status int
	// What is audited.
	kind, name, uid string
	detail          any
}

// answered is an answer that is kept for retries.
type answered[R any] struct {
	Status   int
	Location string `header:"Location" doc:"Where to see what becomes of it."`
	ETag     string `header:"ETag" doc:"The new generation."`
	Replayed string `header:"Idempotency-Replayed" doc:"true: this is the answer to an earlier request with the same Idempotency-Key."`
	Body     encoded[R]
}

// encoded is a value of type R as it was sent the first time.
type encoded[R any] struct{ raw json.RawMessage }

// MarshalJSON implements [json.Marshaler].
func (e encoded[R]) MarshalJSON() ([]byte, error) { return e.raw, nil }

// Schema implements [huma.SchemaProvider].
func (encoded[R]) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[R](), true, "")
}

// begin admits a mutation. Body is the decoded body, which a retry must have, too.
func (s *service) begin(ctx context.Context, body any) (*mutation, error) {
	m := &mutation{service: s, caller: s.Caller(ctx), now: s.Now().UTC()}
	if err := s.limiter.take(m.caller.User); err != nil {
		return nil, err
	}
	r := rest.Request(ctx)
	keys, ok := r.Header[idempotency.Header]
	if !ok {
		return m, nil
	}
	if len(keys) != 1 || !idempotency.Valid(keys[0]) {
		return nil, rest.Invalid(rest.Cause{Field: idempotency.Header, Message: "must be one key of 1 to 255 printable characters"})
	}
	data, err := json.Marshal(struct {
		Body  any
		Query string
	}{body, r.URL.RawQuery})
	if err != nil {
		return nil, err
	}
	m.retry = &idempotency.Request{Principal: m.caller.User, Method: r.Method, Path: r.URL.Path, Key: keys[0], Body: data}
	return m, nil
}

// commit makes the change durable, together with its audit entry and the answer for retries; or answers as it was
// answered before. Status is the operation's own.
func commit[R any](ctx context.Context, m *mutation, status int, do func(store.Tx) (*change[R], error)) (*answered[R], error) {
	var out *answered[R]
	err := m.Store.Update(ctx, func(tx store.Tx) error {
		if m.retry != nil {
			kept, err := m.records.Find(tx, m.retry, m.now)
			if err != nil {
				return err
			}
			if kept != nil {
				out = replay[R](kept)
				return nil
			}
		}
		c, err := do(tx)
		if err != nil {
			return err
		}
		if out, err = answer(c, status); err != nil {
			return err
		}
		if err := record(ctx, tx, m, c); err != nil {
			return err
		}
		if m.retry == nil {
			return nil
		}
		return m.records.Keep(tx, m.retry, keep(out), m.now)
	})
	return out, err
}

func answer[R any](c *change[R], status int) (*answered[R], error) {
	raw, err := rest.EncodeEvent(c.body)
	if err != nil {
		return nil, err
	}
	if c.status != 0 {
		status = c.status
	}
	return &answered[R]{Status: status, Location: c.location, ETag: c.etag, Body: encoded[R]{raw}}, nil
}

func record[R any](ctx context.Context, tx store.Tx, m *mutation, c *change[R]) error {
	e, err := audit.Of(ctx, m.caller.User).WithDetail(c.detail)
	if err != nil {
		return err
	}
	e.Time, e.Action, e.Kind, e.Name, e.UID = m.now, rest.OperationID(ctx), c.kind, c.name, c.uid
	return audit.Append(tx, e)
}

func keep[R any](a *answered[R]) *idempotency.Answer {
	kept := &idempotency.Answer{Status: a.Status, Header: map[string]string{}, Body: a.Body.raw}
	for name, value := range map[string]string{"Location": a.Location, "ETag": a.ETag} {
		if value != "" {
			kept.Header[name] = value
		}
	}
	return kept
}

func replay[R any](kept *idempotency.Answer) *answered[R] {
	return &answered[R]{
		Status: kept.Status, Location: kept.Header["Location"], ETag: kept.Header["ETag"], Replayed: "true",
		Body: encoded[R]{kept.Body},
	}
}

// precondition reads If-Match and If-None-Match, and tells whether there is one.
func precondition(ctx context.Context) (match hub.Match, conditional bool, err error) {
	h := rest.Request(ctx).Header
	ifMatch, one := h["If-Match"]
	ifNoneMatch, two := h["If-None-Match"]
	for _, value := range append(ifMatch[:len(ifMatch):len(ifMatch)], ifNoneMatch...) {
		if strings.TrimSpace(value) == "" {
			return match, true, hub.ErrBadMatch
		}
	}
	match, err = hub.ParseMatch(strings.Join(ifMatch, ","), strings.Join(ifNoneMatch, ","))
	return match, one || two, err
}
