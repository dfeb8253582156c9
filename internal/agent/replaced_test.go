package agent

import (
	"testing"

	"freehold.dev/freehold/internal/hub"
)

// TestARunThatIsToBeReplacedHoldsNothingUpWhenItFails: the next version is accepted, its content is not here yet, and
// what runs until then ends for good.
func TestARunThatIsToBeReplacedHoldsNothingUpWhenItFails(t *testing.T) {
	w := newWorld(t, openTestStore(t))
	w.engine["cfg-1"] = "rejected late"
	mustAccept(t, w, command("a", 1, hub.Running, "cfg-1", ""))
	for len(w.runs) == 0 || len(w.pending) > 0 {
		w.look()
		w.act(0)
	}
	mustAccept(t, w, command("a", 2, hub.Running, "cfg-2", ""))
	for _, token := range w.tokens() {
		w.progress(w.runs[token])
	}
	w.settle()
	if s := w.state("a"); s.State != hub.Running || s.ConfigVersion != "cfg-2" || s.Error != nil {
		t.Fatalf("the stream is %+v", s)
	}
}
