package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// Record is what has to be remembered of a tenant between runs. It is durable, and changed only in transactions.
type Record struct {
	UID    string `json:"uid"`
	Tenant string `json:"tenant"`
	// Endpoint that was derived from the first control-plane machine, and is kept.
	Endpoint string `json:"endpoint,omitempty"`
	// Bootstrap is the slot whose machine starts etcd. Once chosen it stays, so that etcd is not started twice.
	Bootstrap string `json:"bootstrap,omitempty"`
	// BootstrapNode is that machine's address.
	BootstrapNode string `json:"bootstrapNode,omitempty"`
	// Bootstrapped: the state says that etcd was started.
	Bootstrapped bool `json:"bootstrapped,omitempty"`
	// Applied is the digest of the configuration that was applied last with success.
	Applied string `json:"applied,omitempty"`
	// Slots that the state holds, sorted.
	Slots []string `json:"slots,omitempty"`
	// Touched are the slots whose machine a run may have changed, whatever the state says; sorted.
	Touched []string `json:"touched,omitempty"`
	// Removing is the list of slots to remove: what the plan guard lets go.
	Removing []Removal `json:"removing,omitempty"`
	// Run that is alive, or was not settled yet.
	Run *Run `json:"run,omitempty"`
	// Last run that ended.
	Last *Ended `json:"last,omitempty"`
	// Failures in a row, and when to try again.
	Failures int       `json:"failures,omitempty"`
	RetryAt  time.Time `json:"retryAt,omitzero"`
	// State that is stored.
	State *StateInfo `json:"state,omitempty"`
	// Projected is the version of the state that Slots and Bootstrapped were read from.
	Projected int64 `json:"projected,omitempty"`
	// Lock of the state.
	Lock *Lock `json:"lock,omitempty"`
}

// Removal is a slot that is being removed, with the machine that fills it.
type Removal struct {
	Slot    string `json:"slot"`
	Machine string `json:"machine"`
	// Reason: scale-down, machine-deleted, group-deleted.
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// Ready: its etcd member is gone, or there never was one.
	Ready bool `json:"ready,omitempty"`
}

// Run is a run that was started.
type Run struct {
	ID      string `json:"id"`
	Trigger string `json:"trigger"`
	Destroy bool   `json:"destroy,omitempty"`
	Partial bool   `json:"partial,omitempty"`
	// Projected: the record told what the state held when the run began.
	Projected bool `json:"projected,omitempty"`
	// Digest of the configuration.
	Digest     string        `json:"digest"`
	Credential []byte        `json:"credential"` // SHA-256
	Started    time.Time     `json:"started"`
	Deadline   time.Time     `json:"deadline"`
	Grace      time.Duration `json:"grace"`
}

// Ended is how the last run ended.
type Ended struct {
	ID      string   `json:"id"`
	Destroy bool     `json:"destroy,omitempty"`
	Digest  string   `json:"digest"`
	Result  string   `json:"result"`
	Message string   `json:"message,omitempty"`
	Blocked []string `json:"blocked,omitempty"`
}

// StateInfo describes the stored state.
type StateInfo struct {
	// Version counts what was stored, from 1.
	Version int64     `json:"version"`
	Serial  int64     `json:"serial"`
	Lineage string    `json:"lineage"`
	MD5     string    `json:"md5"`
	Run     string    `json:"run"`
	Stored  time.Time `json:"stored"`
	// Deleted: the state was deleted; its versions are still there.
	Deleted bool `json:"deleted,omitempty"`
}

// Lock of a state.
type Lock struct {
	// Run that holds it.
	Run string `json:"run"`
	// ID that a writer has to name.
	ID string `json:"id"`
	// Info is what others are told of the holder.
	Info json.RawMessage `json:"info"`
	// Taken by a LOCK request; otherwise the lock is only reserved for the run.
	Taken bool `json:"taken,omitempty"`
}

// ReadRecord answers a tenant's record, an empty one if nothing was recorded.
func ReadRecord(r store.Reader, uid string) (*Record, error) {
	raw, err := r.Blob(blob(uid, "record"))
	if errors.Is(err, store.ErrNotFound) {
		return &Record{UID: uid}, nil
	}
	if err != nil {
		return nil, err
	}
	rec := &Record{}
	if err := json.Unmarshal(raw, rec); err != nil {
		return nil, fmt.Errorf("read the apply record of tenant %s: %w", uid, err)
	}
	return rec, nil
}

// Write stores the record.
func (rec *Record) Write(tx store.Tx) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return tx.PutBlob(blob(rec.UID, "record"), raw)
}

// IsRemoving tells whether the slot is on the list of those to remove.
func (rec *Record) IsRemoving(slot string) bool {
	return slices.ContainsFunc(rec.Removing, func(r Removal) bool { return r.Slot == slot })
}

// touch remembers slots whose machines may be changed from now on.
func (rec *Record) touch(slots []string) {
	rec.Touched = append(rec.Touched, slots...)
	slices.Sort(rec.Touched)
	rec.Touched = slices.Compact(rec.Touched)
}

// Forget takes a slot out of everything: its machine is back as it was before.
func (rec *Record) Forget(slot string) {
	drop := func(s string) bool { return s == slot }
	rec.Slots = slices.DeleteFunc(rec.Slots, drop)
	rec.Touched = slices.DeleteFunc(rec.Touched, drop)
	rec.Removing = slices.DeleteFunc(rec.Removing, func(r Removal) bool { return r.Slot == slot })
	if rec.Bootstrap == slot && !rec.Bootstrapped {
		rec.Bootstrap, rec.BootstrapNode = "", ""
	}
}
