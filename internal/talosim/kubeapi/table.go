package kubeapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// asTable tells whether the client prefers the server to print.
func asTable(r *http.Request) bool {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	return strings.Contains(first, "as=Table")
}

type column struct {
	name  string
	wide  bool
	value func(Object) any
}

func columns(r *Resource) []column {
	name := column{name: "Name", value: func(o Object) any { return o.GetName() }}
	created := column{name: "Age", value: age}
	switch r {
	case Nodes:
		return []column{
			name,
			{name: "Status", value: nodeStatus},
			{name: "Roles", value: nodeRoles},
			created,
			{name: "Version", value: path("status", "nodeInfo", "kubeletVersion")},
			{name: "Internal-IP", wide: true, value: nodeAddress("InternalIP")},
			{name: "External-IP", wide: true, value: nodeAddress("ExternalIP")},
			{name: "OS-Image", wide: true, value: path("status", "nodeInfo", "osImage")},
			{name: "Kernel-Version", wide: true, value: path("status", "nodeInfo", "kernelVersion")},
			{name: "Container-Runtime", wide: true, value: path("status", "nodeInfo", "containerRuntimeVersion")},
		}
	case Namespaces:
		return []column{name, {name: "Status", value: path("status", "phase")}, created}
	case Pods:
		return []column{
			name, {name: "Ready", value: podReady}, {name: "Status", value: path("status", "phase")},
			{name: "Restarts", value: func(Object) any { return "0" }}, created,
			{name: "IP", wide: true, value: path("status", "podIP")}, {name: "Node", wide: true, value: path("spec", "nodeName")},
		}
	}
	return []column{name, created}
}

func path(fields ...string) func(Object) any {
	return func(o Object) any {
		if s := String(o, fields...); s != "" {
			return s
		}
		return "<none>"
	}
}

func age(o Object) any {
	t := o.GetCreationTimestamp()
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func nodeStatus(o Object) any {
	status := map[string]string{"True": "Ready", "False": "NotReady", "Unknown": "NotReady", "": "Unknown"}[Condition(o, "Ready")]
	if Bool(o, "spec", "unschedulable") {
		status += ",SchedulingDisabled"
	}
	return status
}

func nodeRoles(o Object) any {
	const prefix = "node-role.kubernetes.io/"
	var roles []string
	for k := range o.GetLabels() {
		if role, ok := strings.CutPrefix(k, prefix); ok && role != "" {
			roles = append(roles, role)
		}
	}
	if len(roles) == 0 {
		return "<none>"
	}
	slices.Sort(roles)
	return strings.Join(roles, ",")
}

func nodeAddress(typ string) func(Object) any {
	return func(o Object) any {
		list, _, _ := unstructured.NestedSlice(o.Object, "status", "addresses")
		for _, a := range list {
			if m, ok := a.(map[string]any); ok && m["type"] == typ {
				return m["address"]
			}
		}
		return "<none>"
	}
}

func podReady(o Object) any {
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "containers")
	ready := 0
	if Condition(o, "Ready") == "True" {
		ready = len(containers)
	}
	return fmt.Sprintf("%d/%d", ready, len(containers))
}

// table prints objects.
func table(r *Resource, objects []Object, version string, header bool) *metav1.Table {
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: version},
		Rows:     make([]metav1.TableRow, 0, len(objects)),
	}
	cols := columns(r)
	for _, c := range cols {
		if !header {
			break
		}
		d := metav1.TableColumnDefinition{Name: c.name, Type: "string"}
		if c.name == "Name" {
			d.Format = "name"
		}
		if c.wide {
			d.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, d)
	}
	for _, o := range objects {
		meta := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
		md, _, _ := unstructured.NestedMap(o.Object, "metadata")
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(md, &meta.ObjectMeta)
		row := metav1.TableRow{Object: runtime.RawExtension{Object: meta}}
		for _, c := range cols {
			row.Cells = append(row.Cells, c.value(o))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
