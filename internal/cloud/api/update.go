package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// maxPatchTries bounds how often a merge patch without a resourceVersion is applied anew to what others wrote
// meanwhile.
const maxPatchTries = 10

// putStatus replaces an object's status and nothing else. Prepare may refuse the object that was found.
func putStatus[S, T any](ctx context.Context, s *service, t store.Type[S, T], what, stored, name string,
	in *client.Metadata, status T, prepare func(store.Reader, *store.Resource[S, T]) error,
) (*store.Resource[S, T], error) {
	var out *store.Resource[S, T]
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		found, err := t.Get(tx, stored)
		if err != nil {
			return named(err, what, name)
		}
		if prepare != nil {
			if err := prepare(tx, found); err != nil {
				return err
			}
		}
		if err := precondition(in, name, found.Revision); err != nil {
			return err
		}
		found.Status = status
		out = found
		return t.Update(tx, found)
	})
	return out, err
}

// patcher applies merge patches to one kind of object.
type patcher[R any] struct {
	decoder  *rest.Decoder[R]
	metadata func(*R) *client.Metadata
}

func newPatcher[R any](metadata func(*R) *client.Metadata) patcher[R] {
	return patcher[R]{rest.NewDecoder[R](), metadata}
}

// mergePatch reads an object, applies the patch and writes the result. A patch that carries no resourceVersion is
// applied again when others wrote meanwhile.
func mergePatch[R, W any](p patcher[R], patch []byte, read func() (W, error), write func(R) (*output[W], error)) (*output[W], error) {
	pinned, err := pinsVersion(patch)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		current, err := read()
		if err != nil {
			return nil, err
		}
		doc, err := json.Marshal(current)
		if err != nil {
			return nil, err
		}
		merged, err := jsonpatch.MergePatch(doc, patch)
		if err != nil {
			return nil, rest.BadRequest("the body is not a JSON merge patch: %s", err)
		}
		var next R
		if err := p.decoder.Decode(merged, &next); err != nil {
			return nil, err
		}
		// What was there and is missing now was removed, not left out.
		if m := p.metadata(&next); m.Finalizers == nil {
			m.Finalizers = []string{}
		}
		out, err := write(next)
		if !pinned && try < maxPatchTries && isModified(err) {
			continue
		}
		return out, err
	}
}

// pinsVersion checks that a patch is one JSON object, and tells whether it says to which version it applies.
func pinsVersion(patch []byte) (bool, error) {
	var object struct {
		Metadata struct {
			ResourceVersion json.RawMessage `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if text := bytes.TrimSpace(patch); len(text) == 0 || text[0] != '{' || !json.Valid(text) {
		return false, rest.BadRequest("the body must be a JSON merge patch: one JSON object with the fields that change")
	}
	if err := json.Unmarshal(patch, &object); err != nil {
		return false, fault("metadata", "must be an object")
	}
	return object.Metadata.ResourceVersion != nil, nil
}

func isModified(err error) bool {
	if errors.Is(err, store.ErrConflict) {
		return true
	}
	var p *rest.Problem
	return errors.As(err, &p) && p.Status == http.StatusConflict && p.Message == rest.Modified().Message
}

// forced tells whether the caller may and does remove the plane's finalizers.
func (s *service) forced(ctx context.Context, asked bool) (bool, error) {
	if asked && !s.Caller(ctx).Admin {
		return false, rest.Forbidden("only an admin can use force")
	}
	return asked, nil
}

// auditForced records which of the plane's finalizers a change removes by force.
func (s *service) auditForced(ctx context.Context, tx store.Tx, kind string, now, old *store.Metadata) error {
	removed := cloud.RemovedFinalizers(now, old)
	if len(removed) == 0 {
		return nil
	}
	return s.audit(ctx, tx, auditEntry{Action: "remove-finalizers", Kind: kind, Name: old.Name, UID: old.UID, Detail: removed})
}
