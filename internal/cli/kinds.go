package cli

import (
	"fmt"
	"strings"

	"freehold.dev/freehold/client"
)

// apiVersion of the documents that the client reads and writes.
const apiVersion = "freehold.dev/v1"

// kind is what the client knows of a kind of resource.
type kind struct {
	client.Kind
	singular, plural string
	aliases          []string
	// scope is whose the resources are: "", "tenant" or "user". Machines may be asked for with or without.
	scope string
	table tableOf
}

// kinds in the order of help texts.
func kinds() []*kind {
	return []*kind{
		{Kind: client.KindTenant, singular: "tenant", plural: "tenants", aliases: []string{"tn"}, table: tenantTable},
		{Kind: client.KindNodeGroup, singular: "node-group", plural: "node-groups", aliases: []string{"nodegroup", "nodegroups", "ng"}, scope: "tenant", table: nodeGroupTable},
		{Kind: client.KindMachine, singular: "machine", plural: "machines", aliases: []string{"m"}, table: machineTable},
		{Kind: client.KindProvider, singular: "provider", plural: "providers", aliases: []string{"pr"}, table: providerTable},
		{Kind: client.KindUser, singular: "user", plural: "users", aliases: []string{"u"}, table: userTable},
		{Kind: client.KindToken, singular: "token", plural: "tokens", aliases: []string{"apitoken", "apitokens"}, scope: "user", table: tokenTable},
	}
}

func (k *kind) is(word string) bool {
	word = strings.ToLower(word)
	if word == k.singular || word == k.plural {
		return true
	}
	for _, a := range k.aliases {
		if word == a {
			return true
		}
	}
	return false
}

func kindOf(word string) (*kind, error) {
	for _, k := range kinds() {
		if k.is(word) {
			return k, nil
		}
	}
	var names []string
	for _, k := range kinds() {
		names = append(names, k.plural)
	}
	return nil, fmt.Errorf("there is no resource type %q: choose one of %s", word, strings.Join(names, ", "))
}

// ref names a resource: a kind and, unless all are meant, a name.
type ref struct {
	*kind
	name string
}

func (r ref) String() string { return r.singular + "/" + r.name }

// parseRefs understands TYPE [NAME…], TYPE/NAME…, and TYPE,TYPE.
func parseRefs(args []string) ([]ref, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("name a resource type: %s", strings.Join(plurals(), ", "))
	}
	if strings.Contains(args[0], "/") {
		var refs []ref
		for _, arg := range args {
			word, name, ok := strings.Cut(arg, "/")
			if !ok || name == "" {
				return nil, fmt.Errorf("%q: give every resource as TYPE/NAME, or one TYPE and its names", arg)
			}
			k, err := kindOf(word)
			if err != nil {
				return nil, err
			}
			refs = append(refs, ref{k, name})
		}
		return refs, nil
	}
	words := strings.Split(args[0], ",")
	if len(words) > 1 && len(args) > 1 {
		return nil, fmt.Errorf("with several types, give names as TYPE/NAME")
	}
	var refs []ref
	for _, word := range words {
		k, err := kindOf(word)
		if err != nil {
			return nil, err
		}
		if len(args) == 1 {
			refs = append(refs, ref{k, ""})
		}
		for _, name := range args[1:] {
			refs = append(refs, ref{k, name})
		}
	}
	return refs, nil
}

func plurals() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, k.plural)
	}
	return out
}
