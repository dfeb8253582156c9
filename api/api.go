// Package api holds the OpenAPI document of the operator API, generated from the handlers' types: what a client may
// rely on.
package api

import _ "embed"

//go:generate go test -count=1 -run TestCommittedDocumentIsWhatIsServed -update .

// OpenAPI is the document, OpenAPI 3.1 as JSON.
//
//go:embed openapi.json
var OpenAPI []byte
