package api

import "errors"

var (
	// ErrNodeUnavailable is what [Live] answers of a node that is not there to be asked.
	ErrNodeUnavailable = errors.New("the node is not reachable")
	// ErrNoLog is what [Live] answers of a node that has no log of a stream.
	ErrNoLog = errors.New("the node has no log of this stream")
)
