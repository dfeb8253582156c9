package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/store"
)

// historyTable keeps the applies that ended, by the tenant's UID; keepHistory is how many of each tenant.
const (
	historyTable = "applies"
	keepHistory  = 200
)

// Running is the result of an apply that has not ended.
const Running = "running"

// Apply is the record of one apply. It carries no secrets.
type Apply struct {
	ID       string     `json:"id"`
	Trigger  string     `json:"trigger"`
	Destroy  bool       `json:"destroy,omitempty"`
	Started  time.Time  `json:"startedAt"`
	Finished *time.Time `json:"finishedAt,omitempty"`
	// Seconds that it took, or takes so far.
	Seconds float64 `json:"seconds"`
	// Result is running, succeeded, failed, blocked, interrupted, timedOut or killed.
	Result string `json:"result"`
	// Error is the first error, in plain words.
	Error     string          `json:"error,omitempty"`
	Blocked   []string        `json:"blocked,omitempty"`
	Phase     tofu.Phase      `json:"phase,omitempty"`
	Plan      tofu.Summary    `json:"plan"`
	Resources []tofu.Resource `json:"resources,omitempty"`
}

func appendHistory(tx store.Tx, uid string, run Run, o tofu.Outcome) error {
	finished := o.Finished
	raw, err := json.Marshal(Apply{
		ID: run.ID, Trigger: run.Trigger, Destroy: run.Destroy, Started: run.Started, Finished: &finished,
		Seconds: finished.Sub(run.Started).Seconds(), Result: string(o.Result), Error: message(o), Blocked: o.Blocked,
		Phase: o.Progress.Phase, Plan: o.Progress.Plan, Resources: o.Progress.Resources,
	})
	if err != nil {
		return err
	}
	if _, err := tx.Append(historyTable, uid, raw); err != nil {
		return err
	}
	rows, err := tx.Scan(historyTable, store.Scan{Key: uid, NewestFirst: true, Limit: keepHistory + 1})
	if err != nil || len(rows) <= keepHistory {
		return err
	}
	return tx.Trim(historyTable, uid, rows[keepHistory].ID+1)
}

func trimHistory(tx store.Tx, uid string) error { return tx.Trim(historyTable, uid, math.MaxInt64) }

// Applies lists a tenant's applies, newest first, at most limit, the living one included with its progress.
// store.ErrNotFound without such a tenant.
func (s *Service) Applies(ctx context.Context, tenant string, limit int) ([]Apply, error) {
	out := []Apply{}
	err := s.Store.View(ctx, func(r store.Reader) error {
		out = out[:0]
		t, err := cloud.Tenants.Get(r, tenant)
		if err != nil {
			return fmt.Errorf("tenant %q: %w", tenant, err)
		}
		rec, err := ReadRecord(r, t.UID)
		if err != nil {
			return err
		}
		if rec.Run != nil {
			out = append(out, s.current(t.UID, *rec.Run))
		}
		rows, err := r.Scan(historyTable, store.Scan{Key: t.UID, NewestFirst: true, Limit: limit})
		if err != nil {
			return err
		}
		for _, row := range rows {
			var a Apply
			if err := json.Unmarshal(row.Data, &a); err != nil {
				return fmt.Errorf("read apply %d of tenant %q: %w", row.ID, tenant, err)
			}
			out = append(out, a)
		}
		return nil
	})
	return out[:min(len(out), limit)], err
}

func (s *Service) current(uid string, run Run) Apply {
	a := Apply{ID: run.ID, Trigger: run.Trigger, Destroy: run.Destroy, Started: run.Started, Result: Running}
	a.Seconds = s.Now().Sub(run.Started).Seconds()
	if p, err := s.folder(uid).Progress(run.ID); err == nil {
		a.Phase, a.Plan, a.Resources = p.Phase, p.Plan, p.Resources
	}
	return a
}
