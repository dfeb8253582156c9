package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

// manifest is one resource that a file declares.
type manifest struct {
	where  string // "prod.yaml, document 2"
	kind   *kind
	parent string
	name   string
	// labels and annotations to set; a nil value removes the key.
	labels, annotations map[string]*string
	spec                json.RawMessage
}

// manifestFile is the form of a document in a file. What only the server writes is read past.
type manifestFile struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Tenant of a node group, instead of its label.
	Tenant   string `json:"tenant"`
	Metadata struct {
		Name              string             `json:"name"`
		Labels            map[string]*string `json:"labels"`
		Annotations       map[string]*string `json:"annotations"`
		UID               json.RawMessage    `json:"uid"`
		ResourceVersion   json.RawMessage    `json:"resourceVersion"`
		Generation        json.RawMessage    `json:"generation"`
		CreatedAt         json.RawMessage    `json:"createdAt"`
		UpdatedAt         json.RawMessage    `json:"updatedAt"`
		DeletionTimestamp json.RawMessage    `json:"deletionTimestamp"`
		Finalizers        json.RawMessage    `json:"finalizers"`
	} `json:"metadata"`
	Spec   json.RawMessage   `json:"spec"`
	Status json.RawMessage   `json:"status"`
	Items  []json.RawMessage `json:"items"`
}

// readManifests reads files, folders (their .yaml, .yml and .json files) and "-" (the standard input), and answers
// what they declare in an order in which it can be created: users, machines, tenants, node groups.
func (a *app) readManifests(paths []string) ([]manifest, error) {
	var all []manifest
	for _, path := range paths {
		files, err := manifestFiles(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			found, err := a.readFile(file)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no resources found", strings.Join(paths, ", "))
	}
	slices.SortStableFunc(all, func(x, y manifest) int { return rank(x.kind) - rank(y.kind) })
	return all, checkDuplicates(all)
}

func rank(k *kind) int {
	return slices.Index([]client.Kind{client.KindUser, client.KindMachine, client.KindTenant, client.KindNodeGroup}, k.Kind)
}

func checkDuplicates(all []manifest) error {
	seen := map[string]string{}
	for _, m := range all {
		id := m.id()
		if first, ok := seen[id]; ok && m.name != "" {
			return fmt.Errorf("%s: %s/%s is declared before, in %s", m.where, m.kind.singular, m.name, first)
		}
		seen[id] = m.where
	}
	return nil
}

func (m *manifest) id() string { return string(m.kind.Kind) + "/" + m.parent + "/" + m.name }

func manifestFiles(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileError(err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fileError(err)
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

func fileError(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Path, p.Err)
	}
	return err
}

// maxManifest bounds the size of a file.
const maxManifest = 64 << 20

func (a *app) readFile(path string) ([]manifest, error) {
	in, name := a.in, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fileError(err)
		}
		defer func() { _ = f.Close() }()
		in, name = f, path
	}
	next := documents(bufio.NewReader(io.LimitReader(in, maxManifest)))
	var found []manifest
	for n := 1; ; n++ {
		data, err := next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		where := fmt.Sprintf("%s, document %d", name, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if string(data) == "null" {
			continue // an empty document, or only comments
		}
		ms, err := parseManifest(where, data)
		if err != nil {
			return nil, err
		}
		found = append(found, ms...)
	}
}

// documents answers a file's documents as JSON, one by one: YAML ones between lines of ---, or JSON values in a row.
func documents(r *bufio.Reader) func() ([]byte, error) {
	if start, _ := r.Peek(256); bytes.HasPrefix(bytes.TrimSpace(start), []byte("{")) {
		d := json.NewDecoder(r)
		return func() ([]byte, error) {
			var raw json.RawMessage
			err := d.Decode(&raw)
			return raw, err
		}
	}
	y := utilyaml.NewYAMLReader(r)
	return func() ([]byte, error) {
		doc, err := y.Read()
		if err != nil {
			return nil, err
		}
		return yaml.YAMLToJSONStrict(doc)
	}
}

// parseManifest reads one document: a resource, or a List of them.
func parseManifest(where string, data []byte) ([]manifest, error) {
	var f manifestFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %w", where, plainJSON(err))
	}
	if f.APIVersion != "" && f.APIVersion != apiVersion {
		return nil, fmt.Errorf("%s: apiVersion is %q: this client knows %s", where, f.APIVersion, apiVersion)
	}
	if f.Kind == "List" {
		var all []manifest
		for i, item := range f.Items {
			found, err := parseManifest(fmt.Sprintf("%s, item %d", where, i+1), item)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	}
	m, err := f.manifest(where)
	if err != nil {
		return nil, err
	}
	return []manifest{m}, nil
}

// plainJSON says in an operator's words what does not fit.
func plainJSON(err error) error {
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	want, hint := "an object", ""
	switch t.Type.Kind() {
	case reflect.String:
		want, hint = "text", ": put it in quotes"
	case reflect.Slice:
		want = "a list"
	}
	return fmt.Errorf("%s is a %s, but has to be %s%s", strings.TrimPrefix(t.Field, "."), t.Value, want, hint)
}

func (f *manifestFile) manifest(where string) (manifest, error) {
	m := manifest{
		where: where, name: f.Metadata.Name, labels: f.Metadata.Labels, annotations: f.Metadata.Annotations, spec: f.Spec,
	}
	if f.Kind == "" {
		return m, fmt.Errorf("%s: kind is missing: Tenant, NodeGroup, Machine or User", where)
	}
	k, err := kindOf(f.Kind)
	if err != nil || rank(k) < 0 {
		return m, fmt.Errorf("%s: kind is %q: it can be Tenant, NodeGroup, Machine or User", where, f.Kind)
	}
	m.kind = k
	m.where = fmt.Sprintf("%s (%s/%s)", where, k.singular, m.name)
	if len(m.spec) == 0 || string(m.spec) == "null" {
		m.spec = json.RawMessage("{}")
	}
	if k.Kind == client.KindNodeGroup {
		m.parent = f.Tenant
		label := f.Metadata.Labels[cloud.LabelTenant]
		switch {
		case label != nil && m.parent != "" && *label != m.parent:
			return m, fmt.Errorf("%s: tenant is %q, and the label %s says %q", m.where, m.parent, cloud.LabelTenant, *label)
		case label != nil:
			m.parent = *label
		case m.parent == "":
			return m, fmt.Errorf("%s: name its tenant, by tenant: or by the label %s", m.where, cloud.LabelTenant)
		}
	} else if f.Tenant != "" {
		return m, fmt.Errorf("%s: tenant: is for node groups", m.where)
	}
	if m.name == "" && k.Kind != client.KindMachine {
		return m, fmt.Errorf("%s: metadata.name is missing", m.where)
	}
	return m, nil
}

// object is the resource to create.
func (m *manifest) object() *client.Object {
	return &client.Object{
		Metadata: client.Metadata{Name: m.name, Labels: merged(nil, m.labels), Annotations: merged(nil, m.annotations)},
		Spec:     m.spec,
	}
}

// merged is have with the changes.
func merged(have map[string]string, changes map[string]*string) map[string]string {
	out := maps.Clone(have)
	for k, v := range changes {
		if v == nil {
			delete(out, k)
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = *v
	}
	return out
}
