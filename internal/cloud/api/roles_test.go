package api_test

import (
	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/internal/identity"
)

type opAccess struct{ access string }

// accessOf answers what the document says that an operation needs.
func accessOf(op *huma.Operation) *opAccess {
	if op == nil {
		return nil
	}
	access, _ := op.Extensions["x-access"].(string)
	return &opAccess{access}
}

func roleOf(name string) identity.Role { return identity.Role(name) }
