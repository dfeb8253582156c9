package apply

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
)

// Spec is a run to be started.
type Spec struct {
	UID, Tenant string
	// Trigger says in a few words why there is a run.
	Trigger string
	// Destroy: the run takes everything away; Partial: all but what does not answer, which is left to a later one.
	Destroy, Partial bool
	// Digest of what is applied; it becomes Record.Applied when the run succeeds.
	Digest string
	Stages []tofu.Stage
	Guard  tofu.Guard
	// Slots whose machines the run may change.
	Slots []string
}

// Begin starts a run and returns; the tenant is woken when it has ended and was settled. ErrRunning, ErrSaturated.
// States that an earlier run left behind are delivered before.
func (s *Service) Begin(ctx context.Context, spec Spec) error {
	if err := s.enter(spec.UID, spec.Tenant, false); err != nil {
		return err
	}
	run, err := s.begin(ctx, spec)
	if err != nil {
		s.leave(spec.UID)
		return err
	}
	s.follow(spec.UID, spec.Tenant, *run)
	return nil
}

func (s *Service) begin(ctx context.Context, spec Spec) (*Run, error) {
	folder := s.folder(spec.UID)
	busy, err := folder.Busy()
	if err != nil {
		return nil, err
	}
	if busy {
		return nil, fmt.Errorf("%w: something is alive in %s", ErrRunning, folder)
	}
	if err := s.deliver(ctx, spec.UID, spec.Tenant); err != nil {
		return nil, err
	}
	credential := rand.Text()
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	now := s.Now()
	run := &Run{
		ID: id.String(), Trigger: spec.Trigger, Destroy: spec.Destroy, Partial: spec.Partial, Digest: spec.Digest, Credential: digest(credential),
		Started: now, Deadline: now.Add(s.Deadline), Grace: s.Grace,
	}
	req := tofu.Request{
		Run: run.ID, Tenant: spec.Tenant, Tofu: s.Tofu.Path, Template: s.template, Stages: spec.Stages, Guard: spec.Guard,
		Credential: credential, Deadline: run.Deadline, Grace: run.Grace,
	}
	err = s.Store.Update(ctx, func(tx store.Tx) error {
		rec, err := ReadRecord(tx, spec.UID)
		if err != nil {
			return err
		}
		if rec.Run != nil {
			return ErrRunning
		}
		if req.Passphrase, err = passphrase(tx, s.Root, spec.UID); err != nil {
			return err
		}
		if req.State, err = readState(tx, rec); err != nil {
			return err
		}
		run.Projected = rec.State != nil && rec.State.Version == rec.Projected
		rec.Tenant, rec.Run, rec.Lock = spec.Tenant, run, reserved(run)
		rec.touch(spec.Slots)
		return rec.Write(tx)
	})
	if err != nil {
		return nil, err
	}
	s.Logger.InfoContext(ctx, "apply starts", "tenant", spec.Tenant, "run", run.ID, "trigger", spec.Trigger)
	if err := folder.Start(ctx, s.Self, req); err != nil {
		err = fmt.Errorf("start run %s of tenant %q: %w", run.ID, spec.Tenant, err)
		return nil, errors.Join(err, s.settle(context.WithoutCancel(ctx), spec.UID))
	}
	return run, nil
}

// watch follows a run that was started before, whether there is room or not.
func (s *Service) watch(uid, tenant string, run Run) {
	if s.enter(uid, tenant, true) == nil {
		s.follow(uid, tenant, run)
	}
}

// follow waits for the end of a run and settles it.
func (s *Service) follow(uid, tenant string, run Run) {
	s.running.Go(func() {
		defer s.Wake(tenant)
		defer s.leave(uid)
		err := s.folder(uid).Wait(s.ctx, run.Deadline, run.Grace)
		if s.ctx.Err() != nil {
			return // the service is closing: the next one finds the run
		}
		if err == nil {
			err = s.settle(s.ctx, uid)
		}
		if err != nil && s.ctx.Err() == nil {
			s.Logger.Error("a run could not be settled; it is tried again", "tenant", tenant, "run", run.ID, "error", err)
		}
	})
}

// Settle records the end of a run that is dead, if there is one that nobody follows. It may be called at any time.
func (s *Service) Settle(ctx context.Context, uid, tenant string) error {
	if err := s.enter(uid, tenant, true); err != nil {
		return err
	}
	defer s.leave(uid)
	busy, err := s.folder(uid).Busy()
	if err != nil {
		return err
	}
	if busy {
		return ErrRunning
	}
	return s.settle(ctx, uid)
}

// settle delivers what a dead run left, learns its outcome and what the state holds now, and records all of it. Doing
// it again after a crash does the rest.
func (s *Service) settle(ctx context.Context, uid string) error {
	rec, err := s.Record(ctx, uid)
	if err != nil || rec.Run == nil {
		return err
	}
	run := *rec.Run
	if err := s.deliver(ctx, uid, rec.Tenant); err != nil {
		return err
	}
	folder := s.folder(uid)
	outcome, err := folder.Outcome(run.ID)
	if errors.Is(err, tofu.ErrNoOutcome) {
		outcome, err = s.killed(folder, run)
	}
	if err != nil {
		return err
	}
	outcome.Run = run.ID
	// What was read back before still holds if this run stored no state, or only changed what there was.
	same := run.Projected && outcome.Result == tofu.Succeeded && outcome.Progress.OnlyUpdates()
	var held *held
	var pullErr error
	if after, err := s.Record(ctx, uid); err != nil {
		return err
	} else if !same && after.State != nil && after.State.Version != after.Projected {
		held, pullErr = s.project(ctx, uid)
	}
	switch {
	case errors.Is(pullErr, tofu.ErrPassphrase) || errors.Is(pullErr, secrets.ErrMismatch):
		// Trying again does not help, and no other run can start from this state either.
		outcome.Result = tofu.Failed
		outcome.Error = &tofu.Failure{Phase: tofu.PhaseSaving, Summary: "The state could not be read back", Detail: pullErr.Error()}
	case pullErr != nil:
		// What is decided next needs to know what the state holds.
		return pullErr
	}
	err = s.Store.Update(ctx, func(tx store.Tx) error {
		rec, err := ReadRecord(tx, uid)
		if err != nil || rec.Run == nil || rec.Run.ID != run.ID {
			return err
		}
		switch {
		case held != nil:
			rec.hold(held)
		case same:
			rec.Projected = rec.State.Version
		}
		s.conclude(rec, outcome)
		if err := appendHistory(tx, uid, run, outcome); err != nil {
			return err
		}
		return rec.Write(tx)
	})
	if err != nil {
		return err
	}
	s.Logger.InfoContext(ctx, "apply ended", "tenant", rec.Tenant, "run", run.ID, "result", outcome.Result, "error", message(outcome))
	return folder.Prune(s.KeepRuns)
}

// killed makes up the outcome of a run that left none.
func (s *Service) killed(folder tofu.Folder, run Run) (tofu.Outcome, error) {
	progress, err := folder.Progress(run.ID)
	if err != nil {
		progress = tofu.Progress{} // half written when it was killed
	}
	return tofu.Outcome{
		Run: run.ID, Result: tofu.Killed, Progress: progress, Started: run.Started, Finished: s.Now(),
		Error: &tofu.Failure{Phase: progress.Phase, Summary: "The run was killed before it was done; it is tried again"},
	}, nil
}

// conclude ends the record's run.
func (s *Service) conclude(rec *Record, o tofu.Outcome) {
	rec.Last = &Ended{
		ID: rec.Run.ID, Destroy: rec.Run.Destroy, Digest: rec.Run.Digest,
		Result: string(o.Result), Message: message(o), Blocked: o.Blocked,
	}
	switch o.Result {
	case tofu.Succeeded:
		rec.Applied, rec.Failures, rec.RetryAt = rec.Run.Digest, 0, time.Time{}
		if rec.Run.Destroy {
			rec.Applied = ""
		}
		if rec.Run.Destroy && !rec.Run.Partial {
			rec.Touched, rec.Removing = nil, nil
		}
	case tofu.Interrupted:
		rec.RetryAt = time.Time{} // not the configuration's fault: again at once
	case tofu.Killed:
		rec.backOff(s.Now(), s.BackoffMin/10, s.BackoffMax) // most likely not its fault
	default:
		rec.backOff(s.Now(), s.BackoffMin, s.BackoffMax)
	}
	if o.Result != tofu.Succeeded {
		rec.Applied = "" // the world may be half-way
	}
	rec.Run, rec.Lock = nil, nil
}

func (rec *Record) backOff(now time.Time, first, longest time.Duration) {
	rec.Failures++
	rec.RetryAt = now.Add(min(longest, first<<min(rec.Failures-1, 16)))
}

func message(o tofu.Outcome) string {
	if o.Error == nil {
		return ""
	}
	return o.Error.String()
}

// deliver takes in the states that runs left in the folder, oldest first. One that is damaged, or not a successor of
// the stored state, is set aside: what it alone told of is found again by the slots that runs have touched.
func (s *Service) deliver(ctx context.Context, uid, tenant string) error {
	left, err := s.folder(uid).Leftovers()
	if err != nil {
		return err
	}
	for _, l := range left {
		if l.Damage != nil {
			to, err := l.SetAside()
			if err != nil {
				return err
			}
			s.Logger.ErrorContext(ctx, "a state that a run left behind is damaged; it was set aside, and the stored one stands", "tenant", tenant, "file", to, "error", l.Damage)
			continue
		}
		err := s.Store.Update(ctx, func(tx store.Tx) error {
			rec, err := ReadRecord(tx, uid)
			if err != nil {
				return err
			}
			rec.Tenant = tenant
			by := "leftover"
			if rec.Run != nil {
				by = rec.Run.ID
			}
			return s.putState(tx, rec, by, l.Body)
		})
		switch {
		case errors.Is(err, ErrStateConflict):
			to, err := l.SetAside()
			if err != nil {
				return err
			}
			s.Logger.WarnContext(ctx, "a state that a run left behind is older than the stored one; it was set aside", "tenant", tenant, "file", to)
		case err != nil:
			return fmt.Errorf("deliver the state that a run left in %s: %w", l.Path, err)
		default:
			s.Logger.InfoContext(ctx, "delivered a state that a run left behind", "tenant", tenant, "serial", l.Serial)
			if err := l.Remove(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Record answers what is remembered of a tenant.
func (s *Service) Record(ctx context.Context, uid string) (rec *Record, err error) {
	err = s.Store.View(ctx, func(r store.Reader) (err error) {
		rec, err = ReadRecord(r, uid)
		return err
	})
	return rec, err
}

// Interrupt asks the tenant's living run to stop; it saves its state and ends.
func (s *Service) Interrupt(ctx context.Context, uid string) error {
	rec, err := s.Record(ctx, uid)
	if err != nil || rec.Run == nil {
		return err
	}
	return s.folder(uid).Interrupt(rec.Run.ID)
}

// Erase removes all that is kept of a tenant: folder, state, key, records, cached secrets. ErrRunning while a run is
// alive. Erasing what is gone is not an error.
func (s *Service) Erase(ctx context.Context, uid string) error {
	if s.Watched(uid) {
		return ErrRunning
	}
	err := s.folder(uid).RemoveAll()
	if errors.Is(err, tofu.ErrBusy) {
		return ErrRunning
	}
	if err != nil {
		return err
	}
	s.secrets.Delete(uid)
	return s.Store.Update(ctx, func(tx store.Tx) error {
		infos, err := tx.Blobs(blob(uid, ""))
		if err != nil {
			return err
		}
		for _, info := range infos {
			if err := tx.DeleteBlob(info.Name); err != nil {
				return err
			}
		}
		return trimHistory(tx, uid)
	})
}

func digest(credential string) []byte {
	sum := sha256.Sum256([]byte(credential))
	return sum[:]
}
