package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/store"
)

// reasonRemovalWaits of the condition Applied: what is declared is applied, but for a machine that cannot be removed yet.
const reasonRemovalWaits = "RemovalWaits"

// conditionBlocked: True names the resources that an apply would have destroyed without leave.
const conditionBlocked = "Blocked"

type labelSet = labels.Set

// report changes the conditions of a tenant that are this controller's own.
func (c *Tenant) report(ctx context.Context, t *cloud.Tenant, f func(*cloud.TenantStatus)) error {
	if s := t.Status; !changes(&s, f) {
		return nil
	}
	err := c.cfg.Store.Update(ctx, func(tx store.Tx) error {
		now, err := cloud.Tenants.Get(tx, t.Name)
		if err != nil || now.UID != t.UID || !changes(&now.Status, f) {
			return err
		}
		return cloud.Tenants.Update(tx, now)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

func changes(s *cloud.TenantStatus, f func(*cloud.TenantStatus)) bool {
	before := slices.Clone(s.Conditions)
	s.Conditions = slices.Clone(s.Conditions)
	f(s)
	return !reflect.DeepEqual(before, s.Conditions)
}

func (c *Tenant) condition(s *cloud.TenantStatus, kind string, status cloud.ConditionStatus, reason, message string) {
	cloud.SetCondition(&s.Conditions, cloud.Condition{Type: kind, Status: status, Reason: reason, Message: message}, c.cfg.Now().UTC())
}

// clearCondition turns a condition False that was True; one that never was True does not show.
func (c *Tenant) clearCondition(s *cloud.TenantStatus, kind, reason string) {
	if slices.ContainsFunc(s.Conditions, func(c cloud.Condition) bool { return c.Type == kind }) {
		c.condition(s, kind, cloud.ConditionFalse, reason, "")
	}
}

// writeShortage tells which groups lack machines.
func (c *Tenant) writeShortage(tx store.Tx, w *world, short []shortage) error {
	var parts []string
	for _, s := range short {
		parts = append(parts, fmt.Sprintf("node group %q has %d of %d machines: %s", s.group, s.have, s.want, s.why))
	}
	f := func(s *cloud.TenantStatus) {
		if len(parts) > 0 {
			c.condition(s, cloud.ConditionMachinesMissing, cloud.ConditionTrue, "NoMachines", strings.Join(parts, "; "))
			return
		}
		c.clearCondition(s, cloud.ConditionMachinesMissing, "AllBound")
	}
	if !changes(&w.tenant.Status, f) {
		return nil
	}
	return cloud.Tenants.Update(tx, w.tenant)
}

// verdict is whether to apply now, and what to say.
type verdict struct {
	apply   bool
	after   time.Duration
	status  cloud.ConditionStatus // of Applied
	reason  string
	message string
	blocked []string
}

// verdict decides whether the rendered configuration is to be applied now.
func (w *world) verdict(p *plan, waits []string, now time.Time) verdict {
	rec := w.record
	if p.waits != "" {
		return verdict{status: cloud.ConditionFalse, reason: "Waiting", message: p.waits}
	}
	removal := strings.Join(waits, "; ")
	if rec.Applied == p.digest || rec.Applied == p.goal() {
		pending := p.pending
		if rec.Applied != p.digest {
			pending = p.behind()
		}
		switch {
		case len(waits) > 0:
			return verdict{status: cloud.ConditionFalse, reason: reasonRemovalWaits, message: removal, after: removalRetry}
		case pending != "":
			return verdict{status: cloud.ConditionFalse, reason: "Waiting", message: pending}
		}
		return verdict{status: cloud.ConditionTrue, reason: "Applied"}
	}
	if last := rec.Last; last != nil && last.Digest == p.goal() && !last.Destroy && rec.Failures > 0 {
		if last.Result == string(tofu.Blocked) {
			return verdict{status: cloud.ConditionFalse, reason: "Blocked", message: last.Message, blocked: last.Blocked}
		}
		if wait := rec.RetryAt.Sub(now); wait > 0 {
			return verdict{status: cloud.ConditionFalse, reason: "Failed", message: last.Message, after: wait}
		}
	}
	return verdict{apply: true, status: cloud.ConditionFalse, reason: "Applying", message: w.trigger(p)}
}

// trigger says why there is an apply.
func (w *world) trigger(p *plan) string {
	rec := w.record
	var out []string
	for _, r := range rec.Removing {
		if r.Ready && !slices.Contains(p.exclude, machineAddress(r.Slot)) {
			out = append(out, fmt.Sprintf("remove %s (%s)", r.Slot, r.Reason))
		}
	}
	switch {
	case len(out) > 0:
		return list(out)
	case rec.State == nil:
		return "first apply"
	case rec.Last != nil && strings.HasPrefix(rec.Last.Digest, p.digest):
		if rec.Last.Result != string(tofu.Succeeded) {
			return "retry"
		}
		return "other machines answer now"
	}
	for _, s := range p.slots {
		if !slices.Contains(rec.Slots, s) {
			out = append(out, "add "+s)
		}
	}
	if len(out) > 0 {
		return list(out)
	}
	return "declaration changed"
}

func (c *Tenant) reportVerdict(s *cloud.TenantStatus, v verdict) {
	c.condition(s, cloud.ConditionApplied, v.status, v.reason, v.message)
	if len(v.blocked) > 0 {
		c.condition(s, conditionBlocked, cloud.ConditionTrue, "WouldDestroy",
			"the plan would destroy or replace what nobody asked to remove: "+list(v.blocked))
		return
	}
	c.clearCondition(s, conditionBlocked, "NothingBlocked")
}
