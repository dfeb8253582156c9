// Package api holds the OpenAPI document of the operator API, generated from the handlers' types: what a client may
// rely on.
package api

//go:generate go test -count=1 -run TestCommittedDocumentIsWhatIsServed -update .
