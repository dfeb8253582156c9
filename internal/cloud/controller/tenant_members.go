package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
	"freehold.dev/freehold/internal/kernel/store"
)

type member = machineapi.EtcdMember

// errSilent: the machine does not answer.
var errSilent = errors.New("the machine does not answer")

// Members asks and changes a tenant's etcd through its control-plane machines, and resets single machines.
type Members interface {
	// List asks a machine. It answers only when its etcd has quorum.
	List(ctx context.Context, tenant string, m *cloud.Machine) ([]machineapi.EtcdMember, error)
	// Leave makes a machine leave; an error that wraps errSilent means that it cannot be reached.
	Leave(ctx context.Context, tenant string, m *cloud.Machine) error
	// Remove makes etcd forget a member that cannot leave by itself; another machine is asked to.
	Remove(ctx context.Context, tenant string, asked *cloud.Machine, id uint64) error
	// Retire takes the configuration, and what is left of etcd, from a control-plane machine that has left etcd. nil
	// means that it has none of this tenant's any more, and so does not come back.
	Retire(ctx context.Context, tenant string, m *cloud.Machine) error
	// ResetIfOurs resets a machine if it has a configuration of this tenant. One that is in maintenance mode, or
	// belongs to somebody else, is left alone. An error means that it is not known, or not done yet.
	ResetIfOurs(ctx context.Context, tenant string, m *cloud.Machine) error
}

// talosMembers goes over the Talos API.
type talosMembers struct{ secrets Secrets }

// memberCredentials live for one call.
const memberCredentials = 10 * time.Minute

func (t talosMembers) with(ctx context.Context, tenant string, m *cloud.Machine, f func(*machineapi.Client) error) error {
	s, err := t.secrets.TenantSecrets(ctx, tenant)
	if err != nil {
		return err
	}
	var creds machineapi.Credentials
	if creds.CA, creds.Certificate, creds.Key, err = s.ClientCredentials(memberCredentials); err != nil {
		return err
	}
	c, err := machineapi.DialSecured(m.Spec.ManagementAddress, creds)
	if err != nil {
		return err
	}
	defer c.Close()
	err = f(c)
	if errors.Is(err, machineapi.ErrUnreachable) {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

func (t talosMembers) List(ctx context.Context, tenant string, m *cloud.Machine) (out []machineapi.EtcdMember, err error) {
	err = t.with(ctx, tenant, m, func(c *machineapi.Client) (err error) {
		out, err = c.EtcdMembers(ctx)
		return err
	})
	return out, err
}

func (t talosMembers) Leave(ctx context.Context, tenant string, m *cloud.Machine) error {
	return t.with(ctx, tenant, m, func(c *machineapi.Client) error { return c.EtcdLeave(ctx) })
}

func (t talosMembers) Remove(ctx context.Context, tenant string, asked *cloud.Machine, id uint64) error {
	return t.with(ctx, tenant, asked, func(c *machineapi.Client) error { return c.EtcdRemove(ctx, id) })
}

// How long a machine that is told to reset itself is watched, and how often it is looked at. One that takes longer is
// looked at again later.
const (
	retireWatch = 15 * time.Second
	retirePoll  = 200 * time.Millisecond
)

func (t talosMembers) Retire(ctx context.Context, tenant string, m *cloud.Machine) error {
	err := t.with(ctx, tenant, m, func(c *machineapi.Client) error {
		// In order, so that one that has joined again meanwhile leaves again or refuses.
		return c.Reset(ctx, machineapi.ResetOptions{Graceful: true, Reboot: true})
	})
	stranger := errors.Is(err, machineapi.ErrUnauthorized)
	if err != nil && !stranger {
		return fmt.Errorf("reset it: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, retireWatch)
	defer cancel()
	for {
		switch maintenance, err := inMaintenance(ctx, m); {
		case maintenance, stranger && errors.Is(err, machineapi.ErrUnauthorized): // the latter is another cluster's
			return nil
		case stranger && err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return errNotYet
		case <-time.After(retirePoll):
		}
	}
}

// inMaintenance asks a machine without showing who asks.
func inMaintenance(ctx context.Context, m *cloud.Machine) (bool, error) {
	c, err := machineapi.DialMaintenance(m.Spec.ManagementAddress)
	if err != nil {
		return false, err
	}
	defer c.Close()
	s, err := c.Status(ctx)
	return s.Maintenance, err
}

// errNotYet: the machine was told to reset itself.
var errNotYet = errors.New("it is resetting itself")

func (t talosMembers) ResetIfOurs(ctx context.Context, tenant string, m *cloud.Machine) error {
	err := t.with(ctx, tenant, m, func(c *machineapi.Client) error {
		if _, err := c.Status(ctx); err != nil {
			return err
		}
		if err := c.Reset(ctx, machineapi.ResetOptions{Reboot: true}); err != nil {
			return err
		}
		return errNotYet
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil // without secrets no machine was configured with them
	case errors.Is(err, machineapi.ErrUnauthorized):
		return settledElsewhere(ctx, m)
	}
	return err
}

// settledElsewhere makes sure that a machine which does not know the tenant's certificates is in maintenance mode and
// stays there: one that has just taken its configuration still answers like that for a moment.
func settledElsewhere(ctx context.Context, m *cloud.Machine) error {
	for range 2 {
		maintenance, err := inMaintenance(ctx, m)
		switch {
		case errors.Is(err, machineapi.ErrUnauthorized):
			return nil // another cluster's
		case err != nil:
			return err
		case !maintenance:
			return errNotYet
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
	return nil
}
