package cloud_test

import (
	"encoding/json"
	"testing"

	. "freehold.dev/freehold/internal/cloud"
)

func FuzzParseMachineAddress(f *testing.F) {
	for _, s := range []string{"10.0.0.9", "10.0.0.9:50000", "[fd00::5]:1", "node-1.lab", "::ffff:10.0.0.9", "[", "]:", "a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseMachineAddress(s)
		if err != nil {
			return
		}
		if again, err := ParseMachineAddress(a.String()); err != nil || again != a {
			t.Errorf("%q became %q, which becomes %q, %v", s, a, again, err)
		}
	})
}

func FuzzCanonicalConfig(f *testing.F) {
	for _, s := range []string{``, `null`, `{}`, `{"b":1,"a":[1.50,{"y":null}]}`, `[]`, `{"a":1e400}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := CanonicalConfig(data)
		if err != nil || c == nil {
			return
		}
		if again, err := CanonicalConfig(c); err != nil || string(again) != string(c) {
			t.Errorf("%s is not canonical: %s, %v", c, again, err)
		}
		ConfigAddresses(c, nil)
	})
}

// FuzzTenantSpec: whatever decodes is judged without a panic, and what is accepted is accepted again.
func FuzzTenantSpec(f *testing.F) {
	seed, err := json.Marshal(tenant().Spec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"podNetwork":["::/0","0.0.0.0/0"],"controlPlaneEndpoint":"https://[::1%25a]:1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var spec TenantSpec
		if json.Unmarshal(data, &spec) != nil {
			return
		}
		next := tenant(func(t *Tenant) { t.Spec = spec })
		if errs := (TenantChange{New: next}).Validate(rules); len(errs) > 0 {
			return
		}
		if errs := (TenantChange{New: next, Old: tenant()}).Validate(rules); len(errs) > 0 {
			t.Errorf("accepted when new, refused when changed: %v", errs)
		}
	})
}
