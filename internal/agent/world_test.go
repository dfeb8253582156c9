package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// fataler is a test, or a run of a property.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

var errCrash = errors.New("the process died here")

// crashStore dies at a chosen write, before or after it became durable; until the world begins a new boot nothing works.
type crashStore struct {
	store.Store
	// writes counts down to the crash; 0: none is planned.
	writes  int
	durable bool
	dead    bool
	full    bool
	written func(store.Reader)
}

func (s *crashStore) Update(ctx context.Context, f func(store.Tx) error) error {
	if s.dead {
		return errCrash
	}
	if s.full {
		return fmt.Errorf("write: %w", store.ErrFull)
	}
	if s.writes > 0 {
		if s.writes--; s.writes == 0 {
			s.dead = true
			if !s.durable {
				return errCrash
			}
		}
	}
	if err := s.Store.Update(ctx, f); err != nil {
		return err
	}
	if s.written != nil {
		if err := s.View(ctx, func(r store.Reader) error { s.written(r); return nil }); err != nil {
			return err
		}
	}
	if s.dead {
		return errCrash
	}
	return nil
}

// worldRun is a run that has processes, whoever remembers it.
type worldRun struct {
	stream, token, version string
	action                 string
	boot                   int64
	ready, stopping        bool
}

// world is a node with its engines and its hub's config versions, without any goroutine.
type world struct {
	t     fataler
	store *crashStore
	core  *Core
	now   time.Time
	ids   int
	runs  map[string]*worldRun
	// engine tells what an engine does with a version: "ok", "rejected" (told by Check and Start), "rejected late"
	// (told by a run that ends), "no secret" (told by Check and Start, and may pass), "fails", "finishes", "slow".
	engine  map[string]string
	offline bool

	pending []Effect
	// accepted is the newest generation of each stream that the node took over.
	accepted map[string]agentapi.Command
	// restarts counts what was done for an action; proven has those whose run was ready.
	restarts map[string]int
	proven   map[string]bool
	// known are the actions as they are stored.
	known map[string]ActionState
	// reported are the newest generations that reports told.
	reported map[string]int64
}

func openTestStore(t *testing.T) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agent.db"), sqlite.Options{Kinds: Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// wipe empties a store for the next world: opening one anew costs more than all that a world writes.
func wipe(t fataler, s store.Store) {
	t.Helper()
	err := s.Update(ctx, func(tx store.Tx) error {
		all, err := tx.List(store.Query{Kind: records.Kind.Name})
		if err != nil {
			return err
		}
		for _, o := range all.Objects {
			if _, err := tx.Delete(o.Kind, o.Name, 0); err != nil {
				return err
			}
		}
		blobs, err := tx.Blobs("")
		for _, b := range blobs {
			err = errors.Join(err, tx.DeleteBlob(b.Name))
		}
		return err
	})
	if err != nil {
		t.Fatalf("wipe the store: %v", err)
	}
}

func newWorld(t fataler, s store.Store) *world {
	w := &world{
		t: t, store: &crashStore{Store: s}, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		runs: map[string]*worldRun{}, engine: map[string]string{}, accepted: map[string]agentapi.Command{},
		restarts: map[string]int{}, proven: map[string]bool{}, known: map[string]ActionState{}, reported: map[string]int64{},
	}
	w.store.written = w.checkStored
	w.boot()
	return w
}

var ctx = context.Background()

// boot begins a new boot, as after a crash: the engines' runs of the old one are still there.
func (w *world) boot() {
	w.t.Helper()
	w.store.dead, w.store.writes, w.pending = false, 0, nil
	full := w.store.full
	w.store.full = false // an agent that cannot begin waits for room
	core, err := OpenCore(ctx, CoreConfig{
		Store: w.store, Now: func() time.Time { return w.now }, Rand: func() float64 { return 0 },
		NewID: func() string { w.ids++; return "id" + strconv.Itoa(w.ids) },
	})
	w.store.full = full
	if err != nil {
		w.t.Fatalf("open the core: %v", err)
	}
	w.core = core
}

func (w *world) clean() {
	for _, token := range w.core.Leftovers() {
		delete(w.runs, token)
	}
	if err := w.core.Cleaned(ctx); err == nil && !w.store.dead {
		for _, r := range w.runs {
			if r.boot < w.core.Boot().Seq {
				w.t.Fatalf("run %s of %s was left over, and nobody knows of it", r.token, r.stream)
			}
		}
	}
}

// checkStored looks at what became durable.
func (w *world) checkStored(r store.Reader) {
	all, _, err := records.List(r, store.Query{})
	if err != nil {
		w.t.Fatalf("list: %v", err)
	}
	for _, rec := range all {
		for _, a := range rec.Spec.Actions {
			key := rec.Name + " " + a.ID
			before, known := w.known[key]
			switch {
			case !known && a.State != ActionBegun:
				w.t.Fatalf("action %s is %s and was never recorded as begun", key, a.State)
			case known && before != ActionBegun && before != a.State:
				w.t.Fatalf("action %s went from %s to %s", key, before, a.State)
			}
			w.known[key] = a.State
		}
		if newest := w.accepted[rec.Name]; rec.Spec.Target.Generation < newest.Generation {
			w.t.Fatalf("%s went back from generation %d to %d", rec.Name, newest.Generation, rec.Spec.Target.Generation)
		}
	}
}

func content(version string) string { return "content of " + version }

func command(stream string, generation int64, state hub.State, version, action string) agentapi.Command {
	c := agentapi.Command{
		AttemptID: fmt.Sprintf("%s-%d-a", stream, generation), IntentID: fmt.Sprintf("intent-%d", generation), StreamID: stream,
		Generation: generation, State: state, ConfigVersion: version, ActionID: action, ExpiresInMS: 30_000,
	}
	if version != "" {
		c.Digest = digestOf(content(version))
	}
	return c
}

func (w *world) accept(commands ...agentapi.Command) error {
	w.t.Helper()
	err := w.core.Accept(ctx, commands, w.now)
	if err == nil {
		for _, c := range commands {
			if c.Generation > w.accepted[c.StreamID].Generation {
				w.accepted[c.StreamID] = c
			}
		}
	}
	return err
}

// look asks the core what to do, and checks that it may be done.
func (w *world) look() {
	w.t.Helper()
	effects, _ := w.core.Effects(ctx)
	if w.store.dead {
		return // the process died before anything was done
	}
	for _, e := range effects {
		w.checkEffect(e)
		if e.Kind == EffectStart {
			w.runs[e.Token] = &worldRun{stream: e.Stream, token: e.Token, version: e.ConfigVersion, action: w.begun(e), boot: w.core.Boot().Seq}
		}
	}
	w.pending = append(w.pending, effects...)
}

func (w *world) stored(stream string) Record {
	w.t.Helper()
	var rec Record
	err := w.store.View(ctx, func(r store.Reader) error {
		found, err := records.Get(r, stream)
		if err == nil {
			rec = found.Spec
		}
		return err
	})
	if err != nil {
		w.t.Fatalf("read %s: %v", stream, err)
	}
	return rec
}

// begun is the restart that a start is for, by the record.
func (w *world) begun(e Effect) string {
	rec := w.stored(e.Stream)
	if a := rec.action(rec.Target.ActionID); a != nil && a.State == ActionBegun && rec.Target.Generation == e.Generation {
		return a.ID
	}
	return ""
}

func (w *world) checkEffect(e Effect) {
	w.t.Helper()
	switch e.Kind {
	case EffectStart:
		for _, r := range w.runs {
			if r.stream == e.Stream {
				w.t.Fatalf("%s is started twice: %s beside %s", e.Stream, e.Token, r.token)
			}
		}
		rec := w.stored(e.Stream)
		if !slices.Contains(rec.Runs, e.Token) {
			w.t.Fatalf("run %s of %s is started and not recorded", e.Token, e.Stream)
		}
		if e.Content != content(e.ConfigVersion) {
			w.t.Fatalf("%s is started with %q", e.Stream, e.Content)
		}
	case EffectStop:
		rec := w.stored(e.Stream)
		if !e.Final && rec.Failure == nil && rec.Target.ConfigVersion == w.runs[e.Token].version {
			// Nothing but a restart asks for that.
			a := rec.action(rec.Target.ActionID)
			if a == nil || a.State != ActionBegun {
				w.t.Fatalf("%s is restarted for %q, which is not recorded", e.Stream, rec.Target.ActionID)
			}
			key := e.Stream + " " + a.ID
			if w.restarts[key]++; w.restarts[key] > 1 {
				w.t.Fatalf("action %s was run twice", key)
			}
		}
	}
}

// act does one thing that was asked for.
func (w *world) act(i int) {
	e := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	behaviour := w.engine[e.ConfigVersion]
	rejected := failure(hub.ConfigRejected, "invalid_config", "no")
	noSecret := failure(hub.Transient, "secret_missing", "not here yet")
	switch e.Kind {
	case EffectFetch:
		if w.offline {
			w.core.Fetched(ctx, e.ConfigVersion, e.Digest, nil, failure(hub.Transient, "config_unavailable", "offline"))
			return
		}
		w.core.Fetched(ctx, e.ConfigVersion, e.Digest, &agentapi.ConfigContent{Engine: hub.EngineBenthos, Content: content(e.ConfigVersion)}, nil)
	case EffectCheck:
		switch behaviour {
		case "rejected":
			w.core.Checked(ctx, e.Stream, e.Token, rejected)
			return
		case "no secret":
			w.core.Checked(ctx, e.Stream, e.Token, noSecret)
			return
		}
		w.core.Checked(ctx, e.Stream, e.Token, nil)
	case EffectStart:
		switch behaviour {
		case "rejected":
			delete(w.runs, e.Token)
			w.core.Started(ctx, e.Stream, e.Token, rejected)
			return
		case "no secret":
			delete(w.runs, e.Token)
			w.core.Started(ctx, e.Stream, e.Token, noSecret)
			return
		}
		w.core.Started(ctx, e.Stream, e.Token, nil)
	case EffectStop:
		w.runs[e.Token].stopping = true
	}
}

// progress lets a run get on by itself.
func (w *world) progress(r *worldRun) {
	end := func(why *hub.Failure) {
		delete(w.runs, r.token)
		w.core.Ended(ctx, r.stream, r.token, why)
	}
	if slices.ContainsFunc(w.pending, func(e Effect) bool { return e.Token == r.token && e.Kind == EffectStart }) {
		return
	}
	behaviour := w.engine[r.version]
	switch {
	case r.stopping:
		end(nil)
	case behaviour == "fails":
		end(failure(hub.Transient, "exit_status", "it ended with status 1"))
	case behaviour == "rejected late":
		end(failure(hub.ConfigRejected, "invalid_config", "no"))
	case behaviour == "slow":
	case behaviour == "finishes" && r.ready:
		end(nil)
	case !r.ready:
		r.ready = true
		if r.action != "" {
			w.proven[r.action] = true
		}
		w.core.Ready(ctx, r.stream, r.token)
	}
}

// report makes a report, and checks that it tells what is.
func (w *world) report(heartbeat, answered bool) agentapi.Report {
	w.t.Helper()
	r := w.core.Report(heartbeat, func(string) *agentapi.Metrics { return &agentapi.Metrics{} })
	if w.store.dead {
		return r
	}
	for _, s := range r.Streams {
		w.checkReported(s)
	}
	if answered {
		w.core.Reported(r, agentapi.ReportAnswer{AcceptedSeq: r.ReportSeq})
	}
	return r
}

func (w *world) checkReported(s agentapi.StreamReport) {
	w.t.Helper()
	var live []*worldRun
	for _, r := range w.runs {
		if r.stream == s.StreamID && r.boot == w.core.Boot().Seq {
			live = append(live, r)
		}
	}
	switch s.State {
	case hub.Running:
		if len(live) != 1 || !live[0].ready || live[0].version != s.ConfigVersion {
			w.t.Fatalf("%s is reported running %s, but there is %+v", s.StreamID, s.ConfigVersion, live)
		}
	case hub.Stopped, hub.Absent:
		if len(live) > 0 {
			w.t.Fatalf("%s is reported %s, but there is %+v", s.StreamID, s.State, live[0])
		}
	}
	if s.Generation < w.reported[s.StreamID] {
		w.t.Fatalf("%s: generation %d is reported after %d", s.StreamID, s.Generation, w.reported[s.StreamID])
	}
	if s.Generation < w.accepted[s.StreamID].Generation {
		w.t.Fatalf("%s: generation %d is reported, and %d was accepted", s.StreamID, s.Generation, w.accepted[s.StreamID].Generation)
	}
	w.reported[s.StreamID] = s.Generation
	for _, id := range s.CompletedActions {
		if !w.proven[id] {
			w.t.Fatalf("action %s is reported completed, and no run proved it", id)
		}
	}
}

// settle lets everything happen until nothing is left to.
func (w *world) settle() {
	w.t.Helper()
	for range 1000 {
		w.look()
		if len(w.pending) > 0 {
			w.act(0)
			continue
		}
		before := len(w.runs)
		moved := false
		for _, token := range w.tokens() {
			if r := w.runs[token]; r.boot == w.core.Boot().Seq {
				was := *r
				w.progress(r)
				moved = moved || len(w.runs) != before || *r != was
				break
			}
		}
		for _, token := range w.tokens()[min(1, len(w.runs)):] {
			if r := w.runs[token]; r != nil && r.boot == w.core.Boot().Seq {
				was := *r
				w.progress(r)
				moved = moved || w.runs[token] == nil || *r != was
			}
		}
		if !moved && len(w.pending) == 0 {
			if w.look(); len(w.pending) == 0 {
				return
			}
		}
	}
	w.t.Fatalf("the node does not come to rest")
}

func (w *world) tokens() []string {
	var out []string
	for token := range w.runs {
		out = append(out, token)
	}
	slices.Sort(out)
	return out
}

// state is what the node would report of a stream.
func (w *world) state(stream string) agentapi.StreamReport {
	w.t.Helper()
	for _, s := range w.core.Streams() {
		if s.StreamID == stream {
			return s.StreamReport
		}
	}
	w.t.Fatalf("there is no stream %s", stream)
	return agentapi.StreamReport{}
}

func (w *world) attempt(stream string) Attempt {
	w.t.Helper()
	rec := w.stored(stream)
	return *rec.attempt()
}
