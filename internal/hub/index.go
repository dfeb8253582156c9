package hub

import (
	"encoding/json"

	"freehold.dev/freehold/internal/kernel/store"
)

func convergenceIndex(o *store.Object) []string {
	var s StreamStatus
	if json.Unmarshal(o.Status, &s) != nil {
		return nil
	}
	return []string{string(s.Convergence.State)}
}

func liveIndex(o *store.Object) []string {
	var i Intent
	if json.Unmarshal(o.Status, &i) != nil || !i.Live() {
		return nil
	}
	return []string{i.Node}
}
