package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// Collection is one kind of resource of a server: every tenant, or the node groups of one tenant.
type Collection[S, T any] struct {
	c    *Client
	path string // "/api/v1/tenants"
	feed feed
}

// ListOptions restrict a list.
type ListOptions struct {
	// Selector is a label selector in Kubernetes' grammar.
	Selector string
}

// pageLimit is the most that a server answers at once.
const pageLimit = 500

// Get answers one resource. IsNotFound tells that there is none of that name.
func (r Collection[S, T]) Get(ctx context.Context, name string) (*Resource[S, T], error) {
	out := new(Resource[S, T])
	return result(out, r.c.do(ctx, request{method: http.MethodGet, path: r.one(name)}, out))
}

// Page answers at most limit (0: the server's default) resources from the offset on, in the order of their names.
func (r Collection[S, T]) Page(ctx context.Context, o ListOptions, offset, limit int) (*List[Resource[S, T]], error) {
	q := url.Values{}
	if o.Selector != "" {
		q.Set("labelSelector", o.Selector)
	}
	if offset > 0 {
		q.Set("offset", strconv.Itoa(offset))
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	out := new(List[Resource[S, T]])
	return result(out, r.c.do(ctx, request{method: http.MethodGet, path: r.path, query: q}, out))
}

// List answers all resources, page by page. What exists from its beginning to its end is in it, once, although
// others come and go meanwhile; its Metadata.ResourceVersion is that of its first page.
func (r Collection[S, T]) List(ctx context.Context, o ListOptions) (*List[Resource[S, T]], error) {
	return collect(func(offset int) (*List[Resource[S, T]], error) {
		return r.Page(ctx, o, offset, pageLimit)
	}, func(i Resource[S, T]) string { return i.Metadata.Name })
}

// collect joins pages that are ordered by key. A page overlaps the one before by an item: when the overlap is not
// there, items before it vanished and others slid in front of the offset unseen, so it steps back.
func collect[R any](page func(offset int) (*List[R], error), key func(R) string) (*List[R], error) {
	all, err := page(0)
	if err != nil {
		return nil, err
	}
	full := len(all.Items)
	offset, more := full, len(all.Items) < all.Total
	for more && full > 0 {
		start := max(offset-1, 0)
		next, err := page(start)
		if err != nil {
			return nil, err
		}
		last := key(all.Items[len(all.Items)-1])
		if start > 0 && (len(next.Items) == 0 || key(next.Items[0]) > last) {
			offset = max(start-full/2, 0)
			continue
		}
		for _, item := range next.Items {
			if key(item) > last {
				all.Items = append(all.Items, item)
				last = key(item)
			}
		}
		offset = start + len(next.Items)
		more = offset < next.Total && len(next.Items) > 1
	}
	all.Total = len(all.Items)
	return all, nil
}

// Create stores a new resource and answers it as stored. IsConflict tells that the name is taken.
func (r Collection[S, T]) Create(ctx context.Context, in *Resource[S, T]) (*Resource[S, T], error) {
	body, err := writable(in)
	if err != nil {
		return nil, err
	}
	out := new(Resource[S, T])
	return result(out, r.c.do(ctx, request{method: http.MethodPost, path: r.path, body: body}, out))
}

// Update replaces a resource that was read before. IsConflict tells that it was changed since.
func (r Collection[S, T]) Update(ctx context.Context, in *Resource[S, T]) (*Resource[S, T], error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", in.Metadata.Name, err)
	}
	out := new(Resource[S, T])
	return result(out, r.c.do(ctx, request{method: http.MethodPut, path: r.one(in.Metadata.Name), body: body}, out))
}

// Modify reads a resource, lets change alter it, and writes it back; again from the start when someone else wrote
// it meanwhile. An error of change ends it.
func (r Collection[S, T]) Modify(ctx context.Context, name string, change func(*Resource[S, T]) error) (*Resource[S, T], error) {
	for n := 1; ; n++ {
		got, err := r.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := change(got); err != nil {
			return nil, err
		}
		out, err := r.Update(ctx, got)
		if err == nil || !IsConflict(err) || got.Metadata.DeletionTimestamp != nil || n == 10 {
			return out, err
		}
		if sleep(ctx, retryDelay(n, nil)) != nil {
			return nil, err
		}
	}
}

// DeleteOptions of a deletion.
type DeleteOptions struct {
	// ScaleDown, for a machine of a tenant: lower its node group's count too, so that no replacement comes.
	ScaleDown bool
}

// Delete asks for deletion and answers the resource as it then is: with a DeletionTimestamp while finalizers hold
// it. Deleting what is being deleted is no error.
func (r Collection[S, T]) Delete(ctx context.Context, name string, o DeleteOptions) (*Resource[S, T], error) {
	q := url.Values{}
	if o.ScaleDown {
		q.Set("scaleDown", "true")
	}
	out := new(Resource[S, T])
	return result(out, r.c.do(ctx, request{method: http.MethodDelete, path: r.one(name), query: q}, out))
}

func (r Collection[S, T]) one(name string) string { return r.path + "/" + url.PathEscape(name) }

func result[R any](out *R, err error) (*R, error) {
	if err != nil {
		return nil, err
	}
	return out, nil
}

// writable is the JSON of what a client declares: without the fields that are the server's.
func writable[S, T any](in *Resource[S, T]) ([]byte, error) {
	type metadata struct {
		Name        string            `json:"name,omitempty"`
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	m := in.Metadata
	data, err := json.Marshal(struct {
		Metadata metadata `json:"metadata"`
		Spec     S        `json:"spec"`
	}{metadata{m.Name, m.Labels, m.Annotations}, in.Spec})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.Name, err)
	}
	return data, nil
}
