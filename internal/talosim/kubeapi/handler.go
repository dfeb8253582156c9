package kubeapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// review is a resource that is only ever asked.
type review struct{ group, plural, kind string }

var reviews = []review{
	{"authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"},
	{"authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"},
}

// target is what a path means.
type target struct {
	resource        *Resource
	namespace, name string
	subresource     string
}

// statusError is an answer that is not an object.
type statusError struct{ status *metav1.Status }

func (e *statusError) Error() string { return e.status.Message }

func fail(code int, reason metav1.StatusReason, format string, args ...any) error {
	return &statusError{errorStatus(code, reason, fmt.Sprintf(format, args...))}
}

func notFound(t target) error {
	kind := t.resource.Plural
	if t.resource.Group != "" {
		kind += "." + t.resource.Group
	}
	st := errorStatus(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", kind, t.name))
	st.Details = &metav1.StatusDetails{Name: t.name, Group: t.resource.Group, Kind: t.resource.Plural}
	return &statusError{st}
}

func parse(r *http.Request) (target, bool) {
	parts := strings.Split(strings.Trim(r.PathValue("rest"), "/"), "/")
	var t target
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		t.namespace = parts[1]
		parts = parts[2:]
	}
	t.resource = findResource(r.PathValue("group"), r.PathValue("version"), parts[0])
	if t.resource == nil || len(parts) > 3 || (t.namespace != "" && !t.resource.Namespaced) {
		return t, false
	}
	if len(parts) > 1 {
		t.name = parts[1]
	}
	if len(parts) > 2 {
		t.subresource = parts[2]
	}
	if t.name != "" && t.resource.Namespaced && t.namespace == "" {
		return t, false
	}
	return t, t.subresource == "" || t.subresource == "status"
}

func (s *Server) resource(w http.ResponseWriter, r *http.Request) {
	if s.review(w, r) {
		return
	}
	t, ok := parse(r)
	if !ok {
		writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	if err := s.Available(); err != nil {
		writeError(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: request timed out")
		return
	}
	var err error
	switch {
	case r.Method == http.MethodGet && t.name == "":
		err = s.list(w, r, t)
	case r.Method == http.MethodGet:
		err = s.get(w, r, t)
	case r.Method == http.MethodPost && t.name == "":
		err = s.create(w, r, t)
	case r.Method == http.MethodPut && t.name != "":
		err = s.replace(w, r, t)
	case r.Method == http.MethodPatch && t.name != "":
		err = s.patch(w, r, t)
	case r.Method == http.MethodDelete && t.name != "":
		err = s.delete(w, t)
	default:
		err = fail(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
	}
	var se *statusError
	if errors.As(err, &se) {
		writeJSON(w, int(se.status.Code), se.status)
	} else if err != nil {
		writeError(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, t target) error {
	o, ok := s.Store.Get(t.resource, t.namespace, t.name)
	if !ok {
		return notFound(t)
	}
	if asTable(r) {
		writeJSON(w, http.StatusOK, table(t.resource, []Object{o}, o.GetResourceVersion(), true))
		return nil
	}
	writeJSON(w, http.StatusOK, o)
	return nil
}

// selection is what a list or a watch wants.
type selection struct {
	resource  *Resource
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func (c selection) matches(o Object) bool {
	if c.namespace != "" && o.GetNamespace() != c.namespace {
		return false
	}
	f := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	for _, req := range c.fields.Requirements() {
		if _, ok := f[req.Field]; !ok {
			v, _, _ := unstructured.NestedFieldNoCopy(o.Object, strings.Split(req.Field, ".")...)
			if v != nil {
				f[req.Field] = fmt.Sprint(v)
			} else if req.Field == "spec.unschedulable" {
				f[req.Field] = "false"
			}
		}
	}
	return c.labels.Matches(labels.Set(o.GetLabels())) && c.fields.Matches(f)
}

func parseSelection(r *http.Request, t target) (selection, error) {
	c := selection{resource: t.resource, namespace: t.namespace}
	var err error
	if c.labels, err = labels.Parse(r.URL.Query().Get("labelSelector")); err != nil {
		return c, fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "unable to parse labelSelector: %s", err)
	}
	if c.fields, err = fields.ParseSelector(r.URL.Query().Get("fieldSelector")); err != nil {
		return c, fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "unable to parse fieldSelector: %s", err)
	}
	return c, nil
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, t target) error {
	c, err := parseSelection(r, t)
	if err != nil {
		return err
	}
	if w1 := r.URL.Query().Get("watch"); w1 == "true" || w1 == "1" {
		return s.watch(w, r, c)
	}
	all, rev := s.Store.listAt(t.resource, t.namespace)
	items := make([]Object, 0, len(all))
	for _, o := range all {
		if c.matches(o) {
			items = append(items, o)
		}
	}
	version := strconv.FormatUint(rev, 10)
	if asTable(r) {
		writeJSON(w, http.StatusOK, table(t.resource, items, version, true))
		return nil
	}
	list := map[string]any{
		"apiVersion": t.resource.APIVersion(), "kind": t.resource.Kind + "List", "metadata": map[string]any{"resourceVersion": version}, "items": items,
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, t target) error {
	o, err := s.decode(r)
	if err != nil {
		return err
	}
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + rand.String(5))
	}
	if msgs := validation.IsDNS1123Subdomain(o.GetName()); len(msgs) > 0 && t.resource.Group != "rbac.authorization.k8s.io" {
		return fail(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "%s %q is invalid: metadata.name: %s", t.resource.Kind, o.GetName(), msgs[0])
	}
	if t.resource.Namespaced {
		if t.namespace == "" {
			t.namespace = o.GetNamespace()
		}
		if _, ok := s.Store.Get(Namespaces, "", t.namespace); !ok {
			return notFound(target{resource: Namespaces, name: t.namespace})
		}
		o.SetNamespace(t.namespace)
	}
	o.SetAPIVersion(t.resource.APIVersion())
	o.SetKind(t.resource.Kind)
	if t.resource == Namespaces {
		Set(o, "Active", "status", "phase")
		MergeLabels(o, map[string]string{"kubernetes.io/metadata.name": o.GetName()})
	}
	o, err = s.Store.update(t.resource, o.GetNamespace(), o.GetName(), func(old Object) (Object, error) {
		if old != nil {
			st := errorStatus(http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("%s %q already exists", t.resource.Plural, o.GetName()))
			return nil, &statusError{st}
		}
		return o, nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, o)
	return nil
}

// keep applies the rules of a write: identity stays, and spec and status are written through their own paths.
func keep(t target, old, o Object) error {
	if v := o.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return fail(http.StatusConflict, metav1.StatusReasonConflict,
			"Operation cannot be fulfilled on %s %q: the object has been modified; please apply your changes to the latest version and try again", t.resource.Plural, t.name)
	}
	if o.GetName() != t.name {
		return fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "the name of the object (%s) does not match the name on the URL (%s)", o.GetName(), t.name)
	}
	o.SetNamespace(t.namespace)
	o.SetAPIVersion(t.resource.APIVersion())
	o.SetKind(t.resource.Kind)
	field := "status"
	if t.subresource == "status" {
		field = "spec"
	}
	if v, ok := old.Object[field]; ok {
		o.Object[field] = v
	} else if t.subresource == "status" {
		delete(o.Object, field)
	}
	return nil
}

func (s *Server) replace(w http.ResponseWriter, r *http.Request, t target) error {
	o, err := s.decode(r)
	if err != nil {
		return err
	}
	o, err = s.Store.update(t.resource, t.namespace, t.name, func(old Object) (Object, error) {
		if old == nil {
			return nil, notFound(t)
		}
		return o, keep(t, old, o)
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, o)
	return nil
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, t target) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return err
	}
	typ, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	created := false
	o, err := s.Store.update(t.resource, t.namespace, t.name, func(old Object) (Object, error) {
		if old == nil {
			if typ != string(types.ApplyYAMLPatchType) {
				return nil, notFound(t)
			}
			created = true
			old = NewObject(t.resource, t.namespace, t.name)
		}
		o, err := applyPatch(t, typ, old, body)
		if err != nil {
			return nil, err
		}
		return o, keep(t, old, o)
	})
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	writeJSON(w, code, o)
	return nil
}

func applyPatch(t target, typ string, old Object, body []byte) (Object, error) {
	before, err := old.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var after []byte
	switch types.PatchType(typ) {
	case types.JSONPatchType:
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(body); err == nil {
			after, err = p.Apply(before)
		}
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, body)
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, body, t.resource.Type)
	case types.ApplyYAMLPatchType:
		if body, err = yaml.YAMLToJSON(body); err == nil {
			after, err = strategicpatch.StrategicMergePatch(before, body, t.resource.Type)
		}
	default:
		return nil, fail(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "the body of the request was in an unknown format - accepted media types include: %s, %s, %s, %s",
			types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType)
	}
	if err != nil {
		return nil, fail(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the patch cannot be applied: %s", err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(after); err != nil {
		return nil, fail(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the patched object is not valid: %s", err)
	}
	return o, nil
}

func (s *Server) delete(w http.ResponseWriter, t target) error {
	o, ok := s.Store.Delete(t.resource, t.namespace, t.name)
	if !ok {
		return notFound(t)
	}
	writeJSON(w, http.StatusOK, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: t.name, Group: t.resource.Group, Kind: t.resource.Plural, UID: o.GetUID()},
	})
	return nil
}

// review answers who somebody is and what he may do: whoever gets this far may do everything.
func (s *Server) review(w http.ResponseWriter, r *http.Request) bool {
	for _, v := range reviews {
		if r.PathValue("group") != v.group || r.PathValue("rest") != v.plural || r.Method != http.MethodPost {
			continue
		}
		o, err := s.decode(r)
		if err != nil {
			writeError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
			return true
		}
		user := userFrom(r.Context())
		if v.kind == "SelfSubjectReview" {
			groups := make([]any, 0, len(user.Groups)+1)
			for _, g := range append(user.Groups, "system:authenticated") {
				groups = append(groups, g)
			}
			o.Object["status"] = map[string]any{"userInfo": map[string]any{"username": user.Name, "groups": groups}}
		} else {
			master := false
			for _, g := range user.Groups {
				master = master || g == "system:masters"
			}
			o.Object["status"] = map[string]any{"allowed": master}
		}
		writeJSON(w, http.StatusCreated, o)
		return true
	}
	return false
}
