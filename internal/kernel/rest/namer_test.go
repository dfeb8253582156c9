package rest

import (
	"net/http"
	"reflect"
	"testing"
)

// Response has the name of a type of package http.
type Response struct{ Name string }

func TestSchemasOfTheSameNameAreToldApart(t *testing.T) {
	name := newSchemaNamer()
	for range 2 {
		if got := name(reflect.TypeFor[http.Response](), ""); got != "Response" {
			t.Errorf("the first is %s", got)
		}
		if got := name(reflect.TypeFor[*Response](), ""); got != "RestResponse" {
			t.Errorf("the second is %s", got)
		}
	}
}
