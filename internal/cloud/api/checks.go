package api

import (
	"context"
	"encoding/json"
	"errors"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// maxRounds bounds how often a change is validated anew because what surrounds it keeps changing.
const maxRounds = 10

// errUnchecked ends a transaction whose validation needs checks that are too costly to run in it.
var errUnchecked = errors.New("checks are pending")

// checks is the Talos rules for one request. The costly ones are not run where they are asked for, but noted and
// run by resolve, outside any transaction; until then they find no fault.
type checks struct {
	cloud.TalosRules
	known   map[string]error
	pending map[string]func() error
}

func newChecks(rules cloud.TalosRules) *checks {
	return &checks{TalosRules: rules, known: map[string]error{}, pending: map[string]func() error{}}
}

// CheckPatch implements [cloud.TalosRules].
func (c *checks) CheckPatch(patch string) error {
	return c.ask("patch\x00"+patch, func() error { return c.TalosRules.CheckPatch(patch) })
}

// CheckConfig implements [cloud.TalosRules].
func (c *checks) CheckConfig(check cloud.ConfigCheck) error {
	key, err := json.Marshal(check)
	if err != nil {
		return err
	}
	return c.ask("config\x00"+string(key), func() error { return c.TalosRules.CheckConfig(check) })
}

func (c *checks) ask(key string, run func() error) error {
	err, known := c.known[key]
	if !known {
		c.pending[key] = run
	}
	return err
}

func (c *checks) resolve() {
	for key, run := range c.pending {
		c.known[key] = run()
	}
	clear(c.pending)
}

// change runs a transaction that validates against what it reads. The costly checks that it asks for run outside
// of it, and the transaction again after them: it commits only when all it asked for is known.
func (s *service) change(ctx context.Context, f func(tx store.Tx, rules cloud.Rules) error) error {
	talos := newChecks(s.Rules.Talos)
	rules := cloud.Rules{Talos: talos, Providers: s.Rules.Providers}
	for range maxRounds {
		err := s.Store.Update(ctx, func(tx store.Tx) error {
			clear(talos.pending)
			err := f(tx, rules)
			if len(talos.pending) > 0 {
				return errUnchecked
			}
			return err
		})
		if !errors.Is(err, errUnchecked) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		talos.resolve()
	}
	return rest.Conflict("the tenant and its node groups changed again and again while this change was checked: try again")
}
