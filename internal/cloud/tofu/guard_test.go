package tofu

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestGuardReadsThePlan(t *testing.T) {
	change := func(address, mode, index string, actions ...string) string {
		if index == "" {
			index = "null"
		}
		return `{"address":"` + address + `","mode":"` + mode + `","index":` + index + `,"change":{"actions":["` + strings.Join(actions, `","`) + `"]}}`
	}
	plan := func(changes ...string) string {
		return `{"format_version":"1.2","resource_changes":[` + strings.Join(changes, ",") + `]}`
	}
	for name, c := range map[string]struct {
		guard   Guard
		plan    string
		refused int
		broken  bool
	}{
		"harmless":               {Guard{}, plan(change("a", "managed", "", "create"), change("b", "managed", "", "update"), change("c", "managed", "", "no-op")), 0, false},
		"delete":                 {Guard{}, plan(change("a", "managed", `"w-0"`, "delete")), 1, false},
		"replace":                {Guard{}, plan(change("a", "managed", `"w-0"`, "delete", "create"), change("b", "managed", "", "create", "delete")), 2, false},
		"forget":                 {Guard{}, plan(change("a", "managed", "", "forget")), 1, false},
		"an action of tomorrow":  {Guard{}, plan(change("a", "managed", "", "teleport")), 1, false},
		"a slot on the list":     {Guard{Slots: []string{"w-0"}}, plan(change("a", "managed", `"w-0"`, "delete"), change("a", "managed", `"w-1"`, "delete")), 1, false},
		"an index is no slot":    {Guard{Slots: []string{"0"}}, plan(change("a", "managed", "0", "delete")), 1, false},
		"an address on the list": {Guard{Addresses: []string{"a"}}, plan(change("a", "managed", "", "delete"), change("b", "managed", "", "delete")), 1, false},
		"all":                    {Guard{All: true}, plan(change("a", "managed", "", "delete")), 0, false},
		"data sources":           {Guard{}, plan(change("a", "data", "", "delete")), 0, false},
		"no plan":                {Guard{}, `[]`, 0, true},
		"another format":         {Guard{}, `{"format_version":"2.0"}`, 0, true},
		"incomplete":             {Guard{All: true}, `{"format_version":"1.2","errored":true}`, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			refused, err := c.guard.Check([]byte(c.plan))
			if len(refused) != c.refused || (err != nil) != c.broken {
				t.Errorf("refused %v, %v", refused, err)
			}
		})
	}
}

func TestPlanIsShownUnlessItIsSurelyHarmless(t *testing.T) {
	const create = `{"type":"planned_change","change":{"resource":{"addr":"a"},"action":"create"}}`
	const sum = `{"type":"change_summary","changes":{"add":1,"change":0,"remove":0,"operation":"plan"}}`
	for name, c := range map[string]struct {
		lines    []string
		harmless bool
	}{
		"create":           {[]string{create, sum}, true},
		"nothing was said": {nil, false},
		"no sum":           {[]string{create}, false},
		"delete":           {[]string{strings.Replace(create, "create", "delete", 1), sum}, false},
		"replace":          {[]string{strings.Replace(create, "create", "replace", 1), sum}, false},
		"unknown":          {[]string{strings.Replace(create, "create", "teleport", 1), sum}, false},
		"sum of removals":  {[]string{create, strings.Replace(sum, `"remove":0`, `"remove":1`, 1)}, false},
		"sum of forgotten": {[]string{create, strings.Replace(sum, `"remove":0`, `"remove":0,"forget":1`, 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var p planned
			for _, raw := range c.lines {
				l, ok := parseLine([]byte(raw))
				if !ok {
					t.Fatal(raw)
				}
				p.follow(l)
			}
			if p.harmless() != c.harmless {
				t.Errorf("harmless: %v", p.harmless())
			}
		})
	}
}

func TestSecretsAreTakenOutOfWhatTofuSays(t *testing.T) {
	r := redactor{known: []string{"the passphrase"}}
	long := strings.Repeat("QUJD", 20)
	for _, c := range []struct{ in, want string }{
		{"with the passphrase inside", "with [redacted] inside"},
		{"key " + long + "== end", "key [redacted] end"},
		{"-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY----- end", "[redacted] end"},
		{"secret " + strings.Repeat("QUJD", 10) + "QUI= end", "secret [redacted] end"},
		{"token abcdef.0123456789abcdef end", "token [redacted] end"},
		{`talos_machine_configuration_apply.machine["workers-10"]: 10.0.0.1:50000 refused`, `talos_machine_configuration_apply.machine["workers-10"]: 10.0.0.1:50000 refused`},
	} {
		if got := r.text(c.in); got != c.want {
			t.Errorf("%q became %q", c.in, got)
		}
	}
	line := string(r.line([]byte(`{"type":"diagnostic","diagnostic":{"severity":"error","summary":"the passphrase","snippet":{"code":"secret = 1"}},"outputs":{"x":"y"}}`)))
	if strings.Contains(line, "passphrase") || strings.Contains(line, "secret = 1") || strings.Contains(line, "outputs") {
		t.Errorf("line: %s", line)
	}
}

func FuzzOnlyAnEncryptedStateIsTaken(f *testing.F) {
	f.Add([]byte(`{"serial":1,"lineage":"l","meta":{"k":"e30="},"encrypted_data":"AAAA","encryption_version":"v0"}`))
	f.Add([]byte(`{"version":4,"serial":1,"lineage":"l","resources":[]}`))
	f.Add([]byte(`{"serial":1}{"serial":2}`))
	known := []string{"serial", "lineage", "meta", "encrypted_data", "encryption_version"}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := ReadEnvelope(body); err != nil {
			return
		}
		var v map[string]json.RawMessage
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatalf("taken, and no JSON: %s", body)
		}
		for key := range v {
			if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
				t.Errorf("taken with %q beside the ciphertext: %s", key, body)
			}
		}
	})
}
