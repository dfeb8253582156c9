package cloud

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"freehold.dev/freehold/internal/kernel/store"
)

// Limits of what one object may carry.
const (
	maxLabels          = 64
	maxAnnotationBytes = 256 << 10
	maxFinalizers      = 32
)

// reservedPrefix of finalizers that only the plane's controllers remove.
const reservedPrefix = "rezuscloud.io/"

// reservedNames would be shadowed by a collection's own route.
var reservedNames = []string{"events"}

// ValidateName checks the name of a tenant or of a tenant's sub-resource.
func ValidateName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "give the object a name")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Label(name) {
		errs = append(errs, field.Invalid(at, clip(name), msg))
	}
	if slices.Contains(reservedNames, name) {
		errs = append(errs, field.Invalid(at, name, "is the name of a route: choose another"))
	}
	return errs
}

// owned are the labels (or annotations) that the server keeps on an object, with their values ("" for one that
// must be absent).
type owned map[string]string

// metadataRules are what the server keeps on an object: the client leaves it out, or sends it back as it is.
type metadataRules struct {
	labels, annotations owned
	// finalizers that creation adds.
	finalizers []string
	// force: the plane's finalizers may be removed.
	force bool
}

// validateMetadata checks what a client may set; old is nil at creation. Server-owned keys that the client left out
// are filled in by the server and not missed here.
func validateMetadata(m, old *store.Metadata, rules metadataRules) field.ErrorList {
	at := field.NewPath("metadata")
	errs := validateLabels(m.Labels, at.Child("labels"))
	errs = append(errs, validateAnnotations(m.Annotations, at.Child("annotations"))...)
	errs = append(errs, validateOwned(m.Labels, rules.labels, at.Child("labels"))...)
	errs = append(errs, validateOwned(m.Annotations, rules.annotations, at.Child("annotations"))...)
	return append(errs, validateFinalizers(m, old, rules, at.Child("finalizers"))...)
}

func validateLabels(labels map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(labels) > maxLabels {
		errs = append(errs, field.TooMany(at, len(labels), maxLabels))
	}
	for _, k := range sortedKeys(labels) {
		for _, msg := range validation.IsQualifiedName(k) {
			errs = append(errs, field.Invalid(at, clip(k), msg))
		}
		for _, msg := range validation.IsValidLabelValue(labels[k]) {
			errs = append(errs, field.Invalid(at.Key(clip(k)), clip(labels[k]), msg))
		}
	}
	return errs
}

func validateAnnotations(annotations map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, k := range sortedKeys(annotations) {
		size += len(k) + len(annotations[k])
		for _, msg := range validation.IsQualifiedName(strings.ToLower(k)) {
			errs = append(errs, field.Invalid(at, clip(k), msg))
		}
	}
	if size > maxAnnotationBytes {
		errs = append(errs, field.TooLong(at, "", maxAnnotationBytes))
	}
	return errs
}

func validateOwned(have map[string]string, want owned, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, k := range sortedKeys(want) {
		v, given := have[k]
		switch {
		case !given || v == want[k]:
		case want[k] == "":
			errs = append(errs, field.Forbidden(at.Key(k), "is set by the server: leave it out"))
		default:
			errs = append(errs, field.Invalid(at.Key(k), clip(v), fmt.Sprintf("is set by the server: leave it out, or keep it at %q", want[k])))
		}
	}
	return errs
}

func validateFinalizers(m, old *store.Metadata, rules metadataRules, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(m.Finalizers) > maxFinalizers {
		errs = append(errs, field.TooMany(at, len(m.Finalizers), maxFinalizers))
	}
	known := rules.finalizers
	if old != nil {
		known = old.Finalizers
	}
	seen := map[string]bool{}
	for i, f := range m.Finalizers {
		p := at.Index(i)
		switch {
		case seen[f]:
			errs = append(errs, field.Duplicate(p, clip(f)))
		case slices.Contains(known, f):
		case old != nil && old.Deleting():
			errs = append(errs, field.Forbidden(p, "an object that is being deleted takes no new finalizers"))
		case strings.HasPrefix(f, reservedPrefix):
			errs = append(errs, field.Forbidden(p, "finalizers of "+reservedPrefix+" are set by the server: leave them out"))
		case !strings.Contains(f, "/"):
			errs = append(errs, field.Invalid(p, clip(f), "must be prefixed with a domain, such as example.com/backup"))
		default:
			for _, msg := range validation.IsQualifiedName(f) {
				errs = append(errs, field.Invalid(p, clip(f), msg))
			}
		}
		seen[f] = true
	}
	if rules.force {
		return errs
	}
	for _, f := range RemovedFinalizers(m, old) {
		errs = append(errs, field.Forbidden(at, f+" is removed by the controller that does its work; an admin can remove it with ?force=true"))
	}
	return errs
}

// RemovedFinalizers lists the plane's own finalizers that old has and m lacks.
func RemovedFinalizers(m, old *store.Metadata) []string {
	var out []string
	if old == nil {
		return nil
	}
	for _, f := range old.Finalizers {
		if strings.HasPrefix(f, reservedPrefix) && !slices.Contains(m.Finalizers, f) {
			out = append(out, f)
		}
	}
	return out
}

// clip keeps an echoed value short: it goes into an answer and a log.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
