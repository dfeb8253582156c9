package apply

import (
	"errors"
	"fmt"

	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/store"
)

func stateBlob(uid string, version int64) string {
	return blob(uid, fmt.Sprintf("states/%010d", version))
}

// readState answers the stored state, nil if there is none.
func readState(r store.Reader, rec *Record) ([]byte, error) {
	if rec.State == nil || rec.State.Deleted {
		return nil, nil
	}
	body, err := r.Blob(stateBlob(rec.UID, rec.State.Version))
	if err != nil {
		return nil, fmt.Errorf("read version %d of the state of tenant %q: %w", rec.State.Version, rec.Tenant, err)
	}
	return body, nil
}

// putState stores a successor of the stored state as a new version, and drops the version that is too old to keep.
// The same state again changes nothing. ErrStateConflict, tofu.ErrNotEncrypted.
func (s *Service) putState(tx store.Tx, rec *Record, run string, body []byte) error {
	env, err := tofu.ReadEnvelope(body)
	if err != nil {
		return err
	}
	sum := tofu.ContentMD5(body)
	next := &StateInfo{Version: 1, Serial: env.Serial, Lineage: env.Lineage, MD5: sum, Run: run, Stored: s.Now()}
	if have := rec.State; have != nil {
		if have.MD5 == sum && !have.Deleted {
			return nil
		}
		if !have.Deleted && have.Lineage != env.Lineage {
			return fmt.Errorf("%w: its lineage is %s, the stored one's is %s", ErrStateConflict, env.Lineage, have.Lineage)
		}
		if !have.Deleted && env.Serial <= have.Serial {
			return fmt.Errorf("%w: its serial is %d, the stored one's is %d", ErrStateConflict, env.Serial, have.Serial)
		}
		next.Version = have.Version + 1
	}
	if err := tx.PutBlob(stateBlob(rec.UID, next.Version), body); err != nil {
		return err
	}
	rec.State = next
	if old := next.Version - int64(s.KeepStates); old > 0 {
		if err := tx.DeleteBlob(stateBlob(rec.UID, old)); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return rec.Write(tx)
}
