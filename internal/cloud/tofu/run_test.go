package tofu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRunAppliesWhatIsDeclaredAndLeavesItsOutcome(t *testing.T) {
	w := newWorkbench(t)
	o := w.do(w.request(
		Stage{Name: "first", Config: w.things(map[string]map[string]any{"a-0": {"text": "1"}})},
		Stage{Name: "all", Config: w.things(map[string]map[string]any{"a-0": {"text": "1"}, "a-1": {}})},
	))
	if o.Result != Succeeded || o.Error != nil || o.Progress.Plan != (Summary{Add: 2}) || o.Progress.Phase != PhaseDone {
		t.Fatalf("outcome %+v, error %v", o, o.Error)
	}
	if len(o.Progress.Resources) != 2 || o.Progress.Resources[0].State != "done" || o.Progress.Resources[0].Action != "create" {
		t.Errorf("resources %+v", o.Progress.Resources)
	}
	if got := w.inState(); !got["a-0"] || !got["a-1"] {
		t.Errorf("in state: %v", got)
	}
	if left, _ := w.folder.Leftovers(); len(left) != 0 {
		t.Errorf("the plane was there, yet %d states are left", len(left))
	}
	posts := w.posts
	o = w.do(w.request(Stage{Name: "all", Config: w.things(map[string]map[string]any{"a-0": {"text": "1"}, "a-1": {}})}))
	if o.Result != Succeeded || o.Progress.Plan != (Summary{}) || w.posts != posts {
		t.Errorf("nothing was to be done, yet: %+v, %d posts more", o, w.posts-posts)
	}
}

func TestGuardStopsWhatNobodyAskedToRemove(t *testing.T) {
	w := newWorkbench(t)
	w.do(w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}, "a-1": {}, "a-2": {}})}))

	req := w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {"kind": "other"}})})
	req.Guard.Slots = []string{"a-2"}
	o := w.do(req)
	if o.Result != Blocked || len(o.Blocked) != 2 {
		t.Fatalf("outcome %+v", o)
	}
	for _, want := range []string{`world_thing.t["a-0"] (delete, create)`, `world_thing.t["a-1"] (delete)`} {
		if !slices.Contains(o.Blocked, want) {
			t.Errorf("%s is not named in %v", want, o.Blocked)
		}
	}
	if !w.exists("a-0") || !w.exists("a-1") || !w.exists("a-2") {
		t.Error("a blocked run changed the world")
	}

	req = w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}, "a-1": {}})})
	req.Guard.Slots = []string{"a-2"}
	if o := w.do(req); o.Result != Succeeded || w.exists("a-2") || !w.exists("a-1") {
		t.Fatalf("outcome %+v", o)
	}
	req = w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}}), Destroy: true})
	if o := w.do(req); o.Result != Blocked {
		t.Fatalf("a destroy without leave: %+v", o)
	}
	req = w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}}), Destroy: true})
	req.Guard.All = true
	if o := w.do(req); o.Result != Succeeded || w.exists("a-0") || w.exists("a-1") {
		t.Fatalf("outcome %+v", o)
	}
}

func TestExcludedResourcesStayAsTheyAre(t *testing.T) {
	w := newWorkbench(t)
	w.do(w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {"text": "1"}, "a-1": {"text": "1"}, "a-2": {}})}))
	stage := Stage{
		Config:  w.things(map[string]map[string]any{"a-0": {"text": "2"}, "a-1": {"text": "2"}}),
		Exclude: []string{`world_thing.t["a-1"]`, `world_thing.t["a-2"]`},
	}
	if o := w.do(w.request(stage)); o.Result != Succeeded || o.Progress.Plan != (Summary{Change: 1}) || !o.Progress.OnlyUpdates() {
		t.Errorf("outcome %+v, %v", o, o.Error)
	}
	if got := w.inState(); !got["a-1"] || !got["a-2"] || !w.exists("a-2") {
		t.Errorf("in state: %v", got)
	}
}

func TestFirstErrorIsToldInPlainWordsWithoutSecrets(t *testing.T) {
	w := newWorkbench(t)
	secret := strings.Repeat("c2VjcmV0IHNlY3JldA", 5)
	o := w.do(w.request(Stage{Name: "all", Config: w.things(map[string]map[string]any{
		"a-0": {}, "a-1": {"fail": "no room at " + secret},
	})}))
	if o.Result != Failed || o.Error == nil || o.Error.Summary != "The thing refuses to be made" || o.Error.Phase != PhaseApplying {
		t.Fatalf("outcome %+v, error %v", o, o.Error)
	}
	if o.Error.Detail != "no room at [redacted]" || o.Error.Address != `world_thing.t["a-1"]` {
		t.Errorf("error %+v", o.Error)
	}
	if got := w.inState(); !got["a-0"] || got["a-1"] {
		t.Errorf("in state: %v", got)
	}
}

func TestWrongPassphraseSaysSoAndChangesNothing(t *testing.T) {
	w := newWorkbench(t)
	config := w.things(map[string]map[string]any{"a-0": {}})
	w.do(w.request(Stage{Config: config}))
	before := w.serial
	req := w.request(Stage{Config: config})
	req.Passphrase = "another passphrase of the same length"
	o := w.do(req)
	if o.Result != Failed || o.Error == nil || !o.Error.WrongPassphrase || !strings.Contains(o.Error.String(), "root.key") {
		t.Fatalf("outcome %+v, error %v", o, o.Error)
	}
	if w.serial != before {
		t.Error("the state was replaced")
	}
	if _, err := Pull(t.Context(), w.tofu, w.template, w.plane.URL+"/state", "r", "r", "another passphrase of the same length"); !errors.Is(err, ErrPassphrase) {
		t.Errorf("pull: %v", err)
	}
}

func TestHangingTofuIsStoppedAtItsDeadlineWithItsStateSaved(t *testing.T) {
	w := newWorkbench(t)
	// A busy computer may need longer to come to the thing that hangs.
	for patience := 2 * time.Second; !w.exists("a-1.hangs"); patience *= 2 {
		req := w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}, "a-1": {"hang": true}})})
		req.Deadline, req.Grace = time.Now().Add(patience), 8*time.Second
		if o := w.do(req); o.Result != TimedOut || o.Error == nil {
			t.Fatalf("outcome %+v, error %v", o, o.Error)
		}
		if patience > time.Minute {
			t.Fatal("it did not come to the hanging thing")
		}
	}
	if got := w.inState(); !got["a-0"] {
		t.Errorf("in state: %v", got)
	}
}

func TestInterruptedRunSavesItsState(t *testing.T) {
	w := newWorkbench(t)
	req := w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}, "a-1": {"delay_ms": 120000}})})
	w.start(req)
	w.until("a-0 exists", func() bool { return w.exists("a-0") })
	if err := w.folder.Interrupt(req.Run); err != nil {
		t.Fatal(err)
	}
	w.wait(req)
	if o, err := w.folder.Outcome(req.Run); err != nil || o.Result != Interrupted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	if got := w.inState(); !got["a-0"] || got["a-1"] {
		t.Errorf("in state: %v", got)
	}
}

func TestTwoRunsNeverShareAFolder(t *testing.T) {
	w := newWorkbench(t)
	req := w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {"delay_ms": 120000}})})
	w.start(req)
	if err := w.folder.Start(w.Context(), w.self(), w.request()); !errors.Is(err, ErrBusy) {
		t.Errorf("a second run: %v", err)
	}
	if err := w.folder.RemoveAll(); !errors.Is(err, ErrBusy) {
		t.Errorf("removing the folder under a run: %v", err)
	}
}

func TestFilesAreTheOwnersAloneAndHoldNoSecret(t *testing.T) {
	w := newWorkbench(t)
	w.setAway(true) // so that the spool is among them
	req := w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {"delay_ms": 120000}, "a-1": {}})})
	w.start(req)
	w.until("a-1 exists", func() bool { return w.exists("a-1") })
	w.scan([]string{w.phrase, req.Credential})
	if err := w.folder.Interrupt(req.Run); err != nil {
		t.Fatal(err)
	}
	w.wait(req)
	w.scan([]string{w.phrase, req.Credential})
}

func (w *workbench) scan(secrets []string) {
	w.Helper()
	err := filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone since
		}
		if err != nil {
			return err
		}
		if path != w.root && info.Mode().Perm()&0o077 != 0 {
			w.Errorf("%s has mode %v", path, info.Mode())
		}
		if !d.Type().IsRegular() {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, s := range secrets {
			if strings.Contains(string(raw), s) {
				w.Errorf("%s holds a secret", path)
			}
		}
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
}
