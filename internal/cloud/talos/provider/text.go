package provider

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// sentence writes an error as a sentence.
func sentence(err error) string {
	text := strings.TrimSpace(err.Error())
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(text[size:], ".") + "."
}

// hideKey redacts the client's key where no configuration is at hand.
func hideKey(m *machine) func(string) string {
	return strings.NewReplacer(string(m.creds.key), "[secret]").Replace
}
