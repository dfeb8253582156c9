package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/jsonpath"

	"freehold.dev/freehold/client"
)

// outputFlags choose how resources are printed.
type outputFlags struct {
	format     string
	noHeaders  bool
	showLabels bool
	allTenants bool
	events     bool
	watch      bool
}

var formats = []string{"wide", "yaml", "json", "name", "jsonpath="}

func (f *outputFlags) add(cmd *cobra.Command) {
	f.addFormat(cmd)
	cmd.Flags().BoolVar(&f.showLabels, "show-labels", false, "print the labels as the last column")
}

func (f *outputFlags) addFormat(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.format, "output", "o", "", "output format: wide, yaml, json, name, or jsonpath=TEMPLATE")
	cmd.Flags().BoolVar(&f.noHeaders, "no-headers", false, "print tables without their headers")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// printer prints resources in one format.
type printer struct {
	w      io.Writer
	f      outputFlags
	now    func() time.Time
	path   *jsonpath.JSONPath
	tables map[client.Kind]*table
	docs   int
}

func (a *app) newPrinter(f outputFlags) (*printer, error) {
	p := &printer{w: a.out, f: f, now: a.Now, tables: map[client.Kind]*table{}}
	if template, ok := strings.CutPrefix(f.format, "jsonpath="); ok {
		p.f.format = "jsonpath"
		p.path = jsonpath.New("output").AllowMissingKeys(true)
		if !strings.Contains(template, "{") {
			template = "{" + template + "}"
		}
		if err := p.path.Parse(template); err != nil {
			return nil, fmt.Errorf("-o %s: %w", f.format, err)
		}
		return p, nil
	}
	switch f.format {
	case "", "wide", "yaml", "json", "name":
		return p, nil
	}
	return nil, fmt.Errorf("-o %s: choose one of %s", f.format, strings.Join(formats, ", "))
}

// tabular tells whether the format is a table.
func (p *printer) tabular() bool { return p.f.format == "" || p.f.format == "wide" }

// list prints resources of one kind; each kind once. A single resource that was asked for by name is not a list.
func (p *printer) list(k *kind, items []client.Object, revision int64, single bool) error {
	switch p.f.format {
	case "name":
		return p.names(k, items)
	case "json", "yaml", "jsonpath":
		if single && len(items) == 1 {
			return p.structured(documentOf(k, &items[0]))
		}
		l := documentList{APIVersion: apiVersion, Kind: "List", Items: []document{}}
		l.Metadata.ResourceVersion = revision
		for i := range items {
			l.Items = append(l.Items, documentOf(k, &items[i]))
		}
		return p.structured(l)
	}
	return p.rows(k, items, "")
}

// event prints one change of a watch.
func (p *printer) event(k *kind, change string, o *client.Object) error {
	switch {
	case p.f.format == "name":
		return p.names(k, []client.Object{*o})
	case p.tabular() && change == client.Deleted && !p.f.events:
		_, err := fmt.Fprintf(p.w, "%s/%s deleted\n", k.singular, o.Metadata.Name)
		return err
	case p.tabular():
		return p.rows(k, []client.Object{*o}, change)
	case p.f.events:
		return p.structured(struct {
			Type   string   `json:"type"`
			Object document `json:"object"`
		}{change, documentOf(k, o)})
	}
	return p.structured(documentOf(k, o))
}

func (p *printer) names(k *kind, items []client.Object) error {
	for _, o := range items {
		if _, err := fmt.Fprintf(p.w, "%s/%s\n", k.singular, o.Metadata.Name); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) structured(v any) error {
	var data []byte
	var err error
	switch p.f.format {
	case "yaml":
		if data, err = toYAML(v); p.docs > 0 {
			data = append([]byte("---\n"), data...)
		}
	case "jsonpath":
		return p.jsonpath(v)
	default:
		data, err = toJSON(v)
	}
	if err != nil {
		return err
	}
	p.docs++
	_, err = p.w.Write(data)
	return err
}

func (p *printer) jsonpath(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var generic any
	if err := json.Unmarshal(data, &generic); err != nil {
		return err
	}
	if err := p.path.Execute(p.w, generic); err != nil {
		return fmt.Errorf("jsonpath: %w", err)
	}
	_, err = io.WriteString(p.w, "\n")
	return err
}

func (p *printer) rows(k *kind, items []client.Object, change string) error {
	t, ok := p.tables[k.Kind]
	if !ok {
		t = &table{w: p.w}
		if len(p.tables) > 0 {
			if _, err := io.WriteString(p.w, "\n"); err != nil {
				return err
			}
		}
		p.tables[k.Kind] = t
		headers := p.columns(k, k.table.header, k.table.wide, "LABELS", "EVENT")
		if p.f.watch {
			t.reserve(headers)
		}
		if !p.f.noHeaders {
			t.add(headers...)
		}
	}
	for i := range items {
		cells, wide, err := k.table.cells(&items[i], p.now())
		if err != nil {
			return err
		}
		t.add(p.columns(k, cells, wide, labelText(items[i].Metadata.Labels), change)...)
	}
	return t.flush()
}

func (p *printer) columns(k *kind, cells, wide []string, labels, change string) []string {
	out := slices.Clone(cells)
	if k.Kind == client.KindNodeGroup && !p.f.allTenants {
		out = out[1:] // the tenant is known
	}
	if p.f.format == "wide" {
		out = append(out, wide...)
	}
	if p.f.showLabels {
		out = append(out, labels)
	}
	if p.f.events {
		out = append([]string{change}, out...)
	}
	return out
}

func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return "<none>"
	}
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, k+"="+labels[k])
	}
	return strings.Join(pairs, ",")
}
