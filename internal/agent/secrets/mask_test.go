package secrets_test

import (
	"errors"
	"testing"

	"freehold.dev/freehold/internal/agent/secrets"
)

func TestValuesThatWereHandedOutAreHidden(t *testing.T) {
	values := map[string]string{
		"password": `p"ss w/rd`, "longer": `p"ss w/rd-2`, "key": "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n", "short": "abc", "empty": "",
	}
	var mask secrets.Mask
	if text := `p"ss w/rd`; mask.Hide(text) != text {
		t.Fatal("hidden before it was handed out")
	}
	get := mask.Over(func(name string) (string, error) {
		if value, found := values[name]; found {
			return value, nil
		}
		return "zzzz", errors.New("there is none")
	})
	for name, want := range values {
		if value, err := get(name); value != want || err != nil {
			t.Fatal(name, value, err)
		}
	}
	if _, err := get("other"); err == nil {
		t.Fatal("an error got lost")
	}
	for text, want := range map[string]string{
		`login p"ss w/rd failed`:          "login ••• failed",
		`"p\"ss w/rd"`:                    `"•••"`,
		`http://u:p%22ss%20w%2Frd@host/`:  "http://u:•••@host/",
		`q=p%22ss+w%2Frd`:                 "q=•••",
		`p"ss w/rd-2`:                     "•••",
		"bad key: ijklmnop, abcdefgh":     "bad key: •••, •••",
		"abc, zzzz and what is no secret": "abc, zzzz and what is no secret",
	} {
		if got := mask.Hide(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
