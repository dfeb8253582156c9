package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"freehold.dev/freehold/internal/hub"
)

// Hub is the part of the operator API that streams are run with.
//
// An accepted mutation is durable, and nothing more: whether the node made it true is told by the operation
// ([Hub.Operation]) and by the stream's convergence.
type Hub struct{ c *Client }

// Hub of the server.
func (c *Client) Hub() Hub { return Hub{c} }

// MutationOptions guard and identify a mutation.
type MutationOptions struct {
	// IfGeneration is the generation that the stream must have for the mutation to be accepted; 0: that it must be new.
	// nil accepts whatever it has. [IsGenerationConflict] tells that it has another one.
	IfGeneration *int64
	// IdempotencyKey lets the server recognise a repetition. Without one, a random key is made for the call, under which
	// it is repeated when the connection breaks or the server is not able to serve.
	IdempotencyKey string
	// CorrelationID is kept in the server's log, in the audit log and in the operation. Default: one of the server's.
	CorrelationID string
}

// Headers of the Hub API.
const (
	headerIdempotency = "Idempotency-Key"
	headerCorrelation = "X-Correlation-ID"
)

func (o MutationOptions) header() http.Header {
	h := http.Header{headerIdempotency: {o.IdempotencyKey}}
	if o.IdempotencyKey == "" {
		h.Set(headerIdempotency, rand.Text())
	}
	if o.CorrelationID != "" {
		h.Set(headerCorrelation, o.CorrelationID)
	}
	if o.IfGeneration != nil {
		h.Set("If-Match", ETag(*o.IfGeneration))
	}
	return h
}

// ETag is a generation as If-Match takes it: "generation-4", in quotes.
func ETag(generation int64) string {
	return strconv.Quote("generation-" + strconv.FormatInt(generation, 10))
}

// mutate sends a mutation and decodes its answer.
func mutate[R any](ctx context.Context, h Hub, method, path string, body any, o MutationOptions) (*R, error) {
	out := new(R)
	return result(out, h.c.do(ctx, request{method: method, path: path, body: body, header: o.header()}, out))
}

// fetch reads one thing.
func fetch[R any](ctx context.Context, h Hub, path string, q url.Values) (*R, error) {
	out := new(R)
	return result(out, h.c.do(ctx, request{method: http.MethodGet, path: path, query: q}, out))
}

// hubPageSize is the most that the server puts into a page.
const hubPageSize = 100

// pages reads a collection page by page, at most limit items (0: all of them). When its size changed meanwhile it reads
// again, as items may have slid from one page into one that was read before; under constant change the last reading counts.
func pages[R any](ctx context.Context, h Hub, path string, q url.Values, limit int, key func(R) string) ([]R, error) {
	for n := 1; ; n++ {
		items, stable, err := readPages(ctx, h, path, q, limit, key)
		if err != nil || stable || n == attempts {
			return items, err
		}
	}
}

func readPages[R any](ctx context.Context, h Hub, path string, q url.Values, limit int, key func(R) string) (all []R, stable bool, err error) {
	if q == nil {
		q = url.Values{}
	}
	size := hubPageSize
	if limit > 0 {
		size = min(size, limit)
	}
	q.Set("page_size", strconv.Itoa(size))
	seen := map[string]bool{}
	total := 0
	for n := 1; ; n++ {
		q.Set("page", strconv.Itoa(n))
		page, err := fetch[HubPage[R]](ctx, h, path, q)
		if err != nil {
			return nil, false, err
		}
		if n == 1 {
			total = page.Total
		}
		for _, item := range page.Items {
			if k := key(item); !seen[k] {
				seen[k] = true
				all = append(all, item)
			}
		}
		if limit > 0 && len(all) >= limit {
			return all[:limit], true, nil
		}
		if len(page.Items) == 0 || n*size >= page.Total {
			return all, page.Total == total, nil
		}
	}
}

// Codes of refusals that a program may act upon; they are the Reason of an [Error].
const (
	CodeGenerationConflict   = "generation_conflict"
	CodeIdempotencyKeyReused = "idempotency_key_reused"
	CodeOperationTerminal    = "operation_terminal"
	CodeStreamNotRunning     = "stream_not_running"
	CodeNodeDeleting         = "node_deleting"
	CodeNodeUnavailable      = "node_unavailable"
)

// IsGenerationConflict tells that a stream does not have the generation that the mutation was meant for.
func IsGenerationConflict(err error) bool { return hasReason(err, CodeGenerationConflict) }

// IsNodeUnavailable tells that what was asked for is on a node that is not connected.
func IsNodeUnavailable(err error) bool { return hasReason(err, CodeNodeUnavailable) }

// Lints are the faults of a configuration that was refused for them, nil if that is not what err says.
func Lints(err error) []hub.Lint {
	var e *Error
	if !errors.As(err, &e) {
		return nil
	}
	return e.lints
}
