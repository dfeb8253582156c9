package kubeapi

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Object is any object of the API.
type Object = *unstructured.Unstructured

// NewObject makes an empty object.
func NewObject(r *Resource, namespace, name string) Object {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(r.APIVersion())
	o.SetKind(r.Kind)
	o.SetName(name)
	if namespace != "" {
		o.SetNamespace(namespace)
	}
	return o
}

// Condition is the status of one of an object's conditions, "" when it has none of that type.
func Condition(o Object, typ string) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["type"] == typ {
			s, _ := m["status"].(string)
			return s
		}
	}
	return ""
}

// SetCondition sets one of an object's conditions.
func SetCondition(o Object, typ, status, reason, message string, now time.Time) {
	at := now.UTC().Format(time.RFC3339)
	c := map[string]any{
		"type": typ, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": at, "lastTransitionTime": at,
	}
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for i := range list {
		if m, ok := list[i].(map[string]any); ok && m["type"] == typ {
			if m["status"] == status {
				c["lastTransitionTime"] = m["lastTransitionTime"]
			}
			list[i] = c
			_ = unstructured.SetNestedSlice(o.Object, list, "status", "conditions")
			return
		}
	}
	_ = unstructured.SetNestedSlice(o.Object, append(list, c), "status", "conditions")
}

// Bool reads a boolean field.
func Bool(o Object, path ...string) bool {
	b, _, _ := unstructured.NestedBool(o.Object, path...)
	return b
}

// String reads a string field.
func String(o Object, path ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, path...)
	return s
}

// Strings reads a map of strings.
func Strings(o Object, path ...string) map[string]string {
	m, _, _ := unstructured.NestedStringMap(o.Object, path...)
	return m
}

// Set sets a field, and tells whether that changed it.
func Set(o Object, value any, path ...string) bool {
	old, ok, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	if ok && reflect.DeepEqual(old, value) {
		return false
	}
	return unstructured.SetNestedField(o.Object, value, path...) == nil
}

// MergeLabels adds labels, and tells whether that changed anything.
func MergeLabels(o Object, labels map[string]string) bool {
	merged, changed := merge(o.GetLabels(), labels)
	if changed {
		o.SetLabels(merged)
	}
	return changed
}

// MergeAnnotations adds annotations, and tells whether that changed anything.
func MergeAnnotations(o Object, annotations map[string]string) bool {
	merged, changed := merge(o.GetAnnotations(), annotations)
	if changed {
		o.SetAnnotations(merged)
	}
	return changed
}

func merge(old, add map[string]string) (map[string]string, bool) {
	if old == nil {
		old = map[string]string{}
	}
	changed := false
	for k, v := range add {
		if was, ok := old[k]; !ok || was != v {
			old[k], changed = v, true
		}
	}
	return old, changed
}
