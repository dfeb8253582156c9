package tofu

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// alive finds what lives in the folder.
func (w *workbench) alive() (supervisors, tofus []int) {
	pids, err := w.folder.holders()
	if err != nil {
		w.Fatal(err)
	}
	for _, pid := range pids {
		exe := program(pid)
		if exe == "" {
			continue
		}
		// A child that is about to become another program still has its parent's.
		switch forked := slices.Contains(pids, parent(pid)); {
		case exe != w.tofu.Path:
			if !forked {
				supervisors = append(supervisors, pid)
			}
		case !forked || program(parent(pid)) != w.tofu.Path:
			tofus = append(tofus, pid)
		}
	}
	if len(tofus) > 1 || len(supervisors) > 1 {
		w.Errorf("%d supervisors and %d tofus live in one folder", len(supervisors), len(tofus))
	}
	return supervisors, tofus
}

// program is the file that a process runs, "" when it is gone.
func program(pid int) string {
	exe, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	return strings.TrimSuffix(exe, " (deleted)")
}

func parent(pid int) int {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(after)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// kill ends what lives in the folder, without a word.
func (w *workbench) kill(supervisor, tofu bool) {
	supervisors, tofus := w.alive()
	if supervisor {
		for _, pid := range supervisors {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if tofu {
		for _, pid := range tofus {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// crash is one run that is killed, and what has to hold afterwards.
func (w *workbench) crash(things map[string]map[string]any, away bool, when func(Request), supervisor, tofu bool) {
	w.Helper()
	before := w.serial
	known := map[string]bool{}
	if before > 0 {
		known = w.inState()
	}
	req := w.request(Stage{Config: w.things(things)})
	w.setAway(away)
	w.start(req)
	when(req)
	w.kill(supervisor, tofu)
	if busy, err := w.folder.Busy(); err == nil && busy {
		if err := w.folder.Start(w.Context(), w.self(), w.request()); err != nil && !errors.Is(err, ErrBusy) {
			w.Error(err)
		}
	}
	w.wait(req)
	if s, t := w.alive(); len(s)+len(t) > 0 {
		w.Errorf("the lock is free, and %v %v are alive", s, t)
	}
	w.setAway(false)
	w.collect()
	if w.serial < before {
		w.Errorf("the state went back from serial %d to %d", before, w.serial)
	}
	if w.serial == 0 {
		return
	}
	now := w.inState()
	for key := range known {
		if !now[key] {
			w.Errorf("%s was in the state and is lost", key)
		}
	}
	// A tofu that was left alone ended in order: what it knew that it had made is in the state that it left. What exists
	// besides was made by a tofu that was killed, now or in an earlier run, or by a provider that died with its
	// supervisor before it could answer; the next run makes it again.
	if !tofu {
		for key := range w.made(req.Run) {
			if !now[key] {
				w.Errorf("tofu made %s, and the state that it left does not know it", key)
			}
		}
	}
}

// made answers the slot keys of the things that tofu has reported as made in a run.
func (w *workbench) made(run string) map[string]bool {
	w.Helper()
	raw, err := os.ReadFile(w.folder.Log(run))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	keys := map[string]bool{}
	for text := range strings.Lines(string(raw)) {
		var l struct {
			Type string `json:"type"`
			Hook struct {
				Resource struct {
					Key string `json:"resource_key"`
				} `json:"resource"`
			} `json:"hook"`
		}
		if json.Unmarshal([]byte(text), &l) == nil && l.Type == "apply_complete" {
			keys[l.Hook.Resource.Key] = true
		}
	}
	return keys
}

// The supervisor dies while tofu is at work, and what it has made already is not lost with it.
func TestTofuOutlivesItsSupervisorAndSavesItsState(t *testing.T) {
	w := newWorkbench(t)
	w.do(w.request(Stage{Config: w.things(map[string]map[string]any{"z-0": {}})}))
	for i, things := range []map[string]map[string]any{
		{"z-0": {}, "a-0": {}, "b-0": {"delay_ms": 120000}},
		{"z-0": {}, "a-0": {}, "a-1": {}, "a-2": {}, "b-0": {"delay_ms": 120000}},
	} {
		made := func(req Request) {
			w.until("tofu made it", func() bool { return w.made(req.Run)[fmt.Sprintf("a-%d", i)] })
		}
		w.crash(things, false, made, true, false)
	}
	if got := w.inState(); !got["z-0"] || !got["a-0"] || !got["a-1"] {
		t.Errorf("in state: %v", got)
	}
}

// finish runs to the end, and everything has to be there.
func (w *workbench) finish(things map[string]map[string]any) {
	w.Helper()
	o := w.do(w.request(Stage{Config: w.things(things)}))
	if o.Result != Succeeded {
		w.Fatalf("after the crashes: %+v, %v", o, o.Error)
	}
	now := w.inState()
	for key := range things {
		if !w.exists(key) || !now[key] {
			w.Errorf("%s: exists %v, in the state %v", key, w.exists(key), now[key])
		}
	}
	if len(w.badPost) > 0 {
		w.Errorf("the plane refused states: %v", w.badPost)
	}
}

func TestKilledInEveryPhaseLosesNothing(t *testing.T) {
	phases := []Phase{"", PhasePreparing, PhasePlanning, PhaseChecking, PhaseApplying, PhaseSaving}
	if testing.Short() {
		phases = []Phase{PhasePlanning, PhaseApplying}
	}
	for _, c := range []struct {
		name             string
		supervisor, tofu bool
	}{
		{"supervisor", true, false}, {"tofu", false, true}, {"both", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorkbench(t)
			things := map[string]map[string]any{}
			for i, phase := range phases {
				things[fmt.Sprintf("a-%d", i)] = map[string]any{"delay_ms": 30 * i}
				things[fmt.Sprintf("b-%d", i)] = map[string]any{"delay_ms": 300}
				w.crash(things, i%2 == 1, func(req Request) { w.reached(req, phase) }, c.supervisor, c.tofu)
			}
			w.finish(things)
		})
	}
}

// reached waits until a run has come to a phase, or is over.
func (w *workbench) reached(req Request, phase Phase) {
	w.Helper()
	if phase == "" {
		return // before it could do anything
	}
	order := []Phase{PhasePreparing, PhasePlanning, PhaseChecking, PhaseApplying, PhaseSaving, PhaseDone}
	at := func(p Phase) int {
		for i, o := range order {
			if o == p {
				return i
			}
		}
		return -1
	}
	w.until("phase "+string(phase), func() bool {
		if busy, err := w.folder.Busy(); err == nil && !busy {
			return true
		}
		p, _ := w.folder.Progress(req.Run)
		return at(p.Phase) >= at(phase)
	})
}

func TestKilledAtRandomLosesNothing(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	w := newWorkbench(t)
	things := map[string]map[string]any{}
	for i := range rounds {
		for j := range 3 {
			things[fmt.Sprintf("%c-%d", 'a'+j, i)] = map[string]any{"delay_ms": rand.IntN(200)}
		}
		moment := time.Duration(rand.IntN(2000)) * time.Millisecond
		target := 1 + rand.IntN(3)
		w.crash(things, rand.IntN(2) == 0, func(Request) { <-time.After(moment) }, target&1 != 0, target&2 != 0)
	}
	w.finish(things)
}

func TestStatesOfARunWithoutAPlaneAreKeptForIt(t *testing.T) {
	w := newWorkbench(t)
	w.setAway(true)
	o := w.do(w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}})}, Stage{Config: w.things(map[string]map[string]any{"a-0": {}, "a-1": {}})}))
	if o.Result != Succeeded {
		t.Fatalf("outcome %+v, %v", o, o.Error)
	}
	if w.serial != 0 {
		t.Fatal("the plane was away")
	}
	w.setAway(false)
	if n := w.collect(); n != 2 {
		t.Errorf("%d states were left, not 2", n)
	}
	if got := w.inState(); !got["a-0"] || !got["a-1"] {
		t.Errorf("in state: %v", got)
	}
	if o := w.do(w.request(Stage{Config: w.things(map[string]map[string]any{"a-0": {}, "a-1": {}})})); o.Progress.Plan != (Summary{}) {
		t.Errorf("something was made twice: %+v", o.Progress)
	}
}
