package cloud

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of inline patches.
const (
	maxPatches    = 64
	maxPatchBytes = 256 << 10
)

// validatePatches checks each patch by itself.
func validatePatches(patches []InlinePatch, rules Rules, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(patches) > maxPatches {
		return append(errs, field.TooMany(at, len(patches), maxPatches))
	}
	seen := map[string]bool{}
	for i, p := range patches {
		name := at.Index(i).Child("name")
		switch {
		case p.Name == "":
			errs = append(errs, field.Required(name, "give the patch a name"))
		case seen[p.Name]:
			errs = append(errs, field.Duplicate(name, clip(p.Name)))
		default:
			for _, msg := range validation.IsDNS1123Label(p.Name) {
				errs = append(errs, field.Invalid(name, clip(p.Name), msg))
			}
		}
		seen[p.Name] = true
		errs = append(errs, validatePatch(p.Patch, rules, at.Index(i).Child("patch"))...)
	}
	return errs
}

// validatePatch never echoes a patch: it may carry secrets.
func validatePatch(patch string, rules Rules, at *field.Path) field.ErrorList {
	text := strings.TrimSpace(patch)
	switch {
	case text == "":
		return field.ErrorList{field.Required(at, "a patch is a YAML document: a strategic merge patch or a list of JSON patch operations")}
	case len(patch) > maxPatchBytes:
		return field.ErrorList{field.TooLong(at, "", maxPatchBytes)}
	case strings.HasPrefix(text, "@"):
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "must be the patch itself, not the name of a file")}
	}
	if err := rules.Talos.CheckPatch(patch); err != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, clipError(err))}
	}
	return nil
}

// validateConfig checks the configuration that comes of the patches after those already in check, and blames the
// first patch with which it is no longer valid.
func validateConfig(rules Rules, check ConfigCheck, patches []InlinePatch, at *field.Path) field.ErrorList {
	if len(patches) == 0 {
		return nil
	}
	before := check.Patches
	check.Patches = append(append([]string(nil), before...), patchTexts(patches)...)
	all := rules.Talos.CheckConfig(check)
	if all == nil {
		return nil
	}
	for i := range patches {
		check.Patches = append(append([]string(nil), before...), patchTexts(patches[:i+1])...)
		if err := rules.Talos.CheckConfig(check); err != nil {
			return field.ErrorList{field.Invalid(at.Index(i).Child("patch"), field.OmitValueType{},
				fmt.Sprintf("the configuration of a %s machine is not valid with it: %s", check.Role, clipError(err)))}
		}
	}
	return field.ErrorList{field.Invalid(at, field.OmitValueType{}, clipError(all))}
}

func patchTexts(lists ...[]InlinePatch) []string {
	var out []string
	for _, l := range lists {
		for _, p := range l {
			out = append(out, p.Patch)
		}
	}
	return out
}

// clipError keeps the machinery's words readable in one answer.
func clipError(err error) string {
	const most = 1024
	s := strings.TrimSpace(err.Error())
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// equalJSON compares what would be stored.
func equalJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
