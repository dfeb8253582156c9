package provider

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestMetalNamesEveryFaultWithItsField(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		count  int
		want   []string
	}{
		"none":                {"", 3, nil},
		"null":                {"null", 3, nil},
		"empty":               {"{}", 3, nil},
		"selector":            {`{"selector":"rack in (a,b),!gpu"}`, 3, nil},
		"one address":         {`{"address":"192.168.1.50:50000"}`, 1, nil},
		"addresses":           {`{"addresses":["10.0.0.1","10.0.0.2:50001"]}`, 2, nil},
		"address for many":    {`{"address":"10.0.0.1"}`, 3, []string{"c.address"}},
		"too few addresses":   {`{"addresses":["10.0.0.1"]}`, 2, []string{"c.addresses"}},
		"same twice":          {`{"addresses":["10.0.0.1","10.0.0.1:50000"]}`, 2, []string{"c.addresses[1]"}},
		"both":                {`{"address":"10.0.0.1","addresses":["10.0.0.2"]}`, 1, []string{"c.addresses"}},
		"bad ones":            {`{"addresses":["10.0.0.1:x","no host"]}`, 2, []string{"c.addresses[0]", "c.addresses[1]"}},
		"selector has no use": {`{"address":"10.0.0.1","selector":"a=b"}`, 1, []string{"c.selector"}},
		"broken selector":     {`{"selector":"a in"}`, 1, []string{"c.selector"}},
		"unknown field":       {`{"gateway":"10.0.0.1"}`, 1, []string{"c.gateway"}},
		"wrong type":          {`{"address":7}`, 1, []string{"c.address"}},
		"not an object":       {`[]`, 1, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, err := range Default().CheckConfig("metal", json.RawMessage(c.config), c.count, field.NewPath("c")) {
				got = append(got, err.Field)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("faults (-want +got):\n%s", d)
			}
		})
	}
}

func TestUnknownClassIsNamed(t *testing.T) {
	errs := Default().CheckConfig("vsphere", nil, 1, field.NewPath("spec", "providerClass"))
	if len(errs) != 1 || errs[0].Type != field.ErrorTypeNotSupported {
		t.Fatalf("got %v", errs)
	}
}

func TestMetalRendersWhereEachSlotIsReached(t *testing.T) {
	f, err := Metal{}.Render(Group{Name: "w", Slots: []Slot{
		{Key: "w-0", Address: "10.0.0.1"}, {Key: "w-1", Address: "[fd00::1]:50001"}, {Key: "w-2", Address: "Node.Example.COM:50000"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Node{
		"w-0": {Node: "10.0.0.1", Endpoint: "10.0.0.1"},
		"w-1": {Node: "fd00::1", Endpoint: "[fd00::1]:50001"},
		"w-2": {Node: "node.example.com", Endpoint: "node.example.com"},
	}
	if d := cmp.Diff(want, f.Nodes); d != "" {
		t.Errorf("nodes (-want +got):\n%s", d)
	}
}

func TestProviderObjectsCarryASchemaThatIsJSON(t *testing.T) {
	for _, p := range Default().Objects() {
		var v map[string]any
		if err := json.Unmarshal(p.Status.ConfigSchema, &v); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.Name != p.Spec.Type || len(p.Status.Mappings) == 0 {
			t.Errorf("incomplete: %+v", p)
		}
	}
}
