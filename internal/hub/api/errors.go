package api

import (
	"errors"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

var (
	// ErrNodeUnavailable is what [Live] answers of a node that is not there to be asked.
	ErrNodeUnavailable = errors.New("the node is not reachable")
	// ErrNoLog is what [Live] answers of a node that has no log of a stream.
	ErrNoLog = errors.New("the node has no log of this stream")
)

// missing says what there is none of.
func missing(err error, kind, id string) error {
	if errors.Is(err, store.ErrNotFound) {
		return &hub.NotFoundError{Kind: kind, ID: id}
	}
	return err
}
