package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/store"
)

// held is what a tenant's state holds, as far as the plane reads it.
type held struct {
	// addresses of the machines by slot.
	addresses    map[string]string
	bootstrapped bool
	secrets      *talos.Secrets // nil before they are made
	version      int64          // of the state
}

// stateJSON is the part of "tofu state pull" that is read.
type stateJSON struct {
	Version   int `json:"version"`
	Resources []struct {
		Mode      string `json:"mode"`
		Type      string `json:"type"`
		Instances []struct {
			Key        any             `json:"index_key"`
			Attributes json.RawMessage `json:"attributes"`
		} `json:"instances"`
	} `json:"resources"`
}

func readHeld(raw []byte) (*held, error) {
	var v stateJSON
	if err := json.Unmarshal(raw, &v); err != nil || v.Version != 4 {
		return nil, errors.New("the state is not in the format that OpenTofu 1.12 writes")
	}
	h := &held{addresses: map[string]string{}}
	for _, r := range v.Resources {
		for _, i := range r.Instances {
			if r.Mode != "managed" {
				continue
			}
			if err := h.read(r.Type, i.Key, i.Attributes); err != nil {
				return nil, fmt.Errorf("read %s from the state: %w", r.Type, err)
			}
		}
	}
	return h, nil
}

func (h *held) read(kind string, key any, attributes json.RawMessage) error {
	switch kind {
	case "talos_machine_configuration_apply":
		var a struct {
			Node     string `json:"node"`
			Endpoint string `json:"endpoint"`
		}
		if err := json.Unmarshal(attributes, &a); err != nil {
			return err
		}
		if slot, ok := key.(string); ok {
			if h.addresses[slot] = a.Endpoint; a.Endpoint == "" {
				h.addresses[slot] = a.Node
			}
		}
	case "talos_machine_bootstrap":
		h.bootstrapped = true
	case "talos_machine_secrets":
		var a struct {
			MachineSecrets json.RawMessage `json:"machine_secrets"`
		}
		if err := json.Unmarshal(attributes, &a); err != nil {
			return err
		}
		secrets, err := talos.SecretsFromState(a.MachineSecrets)
		if err != nil {
			return err
		}
		h.secrets = secrets
	}
	return nil
}

// hold takes over what the state holds.
func (rec *Record) hold(h *held) {
	rec.Slots = slices.Sorted(maps.Keys(h.addresses))
	if rec.Bootstrapped && !h.bootstrapped {
		// The control plane is gone; the next one starts an etcd of its own.
		rec.Bootstrap, rec.BootstrapNode = "", ""
	}
	rec.Bootstrapped = h.bootstrapped
	rec.Projected = h.version
}

// pull reads the tenant's state back. A tenant without a state has none: nil.
func (s *Service) pull(ctx context.Context, uid string) (*held, error) {
	var rec *Record
	var passphrase string
	err := s.Store.View(ctx, func(r store.Reader) (err error) {
		if rec, err = ReadRecord(r, uid); err != nil || rec.State == nil || rec.State.Deleted {
			return err
		}
		passphrase, err = knownPassphrase(r, s.Root, uid)
		return err
	})
	if err != nil || passphrase == "" {
		return nil, err
	}
	password, giveBack := s.lendReader(uid)
	defer giveBack()
	raw, err := tofu.Pull(ctx, s.Tofu, s.template, s.url+"/api/v1/tenants/"+rec.Tenant+"/state", "reader", password, passphrase)
	if err != nil {
		return nil, fmt.Errorf("read the state of tenant %q: %w", rec.Tenant, err)
	}
	h, err := readHeld(raw)
	if err != nil {
		return nil, fmt.Errorf("tenant %q: %w", rec.Tenant, err)
	}
	h.version = rec.State.Version
	return h, nil
}

// project reads the state back after a run, and keeps its secrets in memory.
func (s *Service) project(ctx context.Context, uid string) (*held, error) {
	h, err := s.pull(ctx, uid)
	if h != nil && h.secrets != nil {
		s.secrets.Store(uid, h.secrets)
	}
	return h, err
}

// TenantSecrets answers a tenant's secrets: from memory, else from its state. They are in no file. ErrNoSecrets (which
// wraps store.ErrNotFound) before the first apply has made them; store.ErrNotFound without such a tenant.
func (s *Service) TenantSecrets(ctx context.Context, tenant string) (*talos.Secrets, error) {
	var uid string
	err := s.Store.View(ctx, func(r store.Reader) error {
		t, err := cloud.Tenants.Get(r, tenant)
		if err == nil {
			uid = t.UID
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tenant %q: %w", tenant, err)
	}
	return s.secretsOf(ctx, uid)
}

func (s *Service) secretsOf(ctx context.Context, uid string) (*talos.Secrets, error) {
	if known, ok := s.secrets.Load(uid); ok {
		return known.(*talos.Secrets), nil
	}
	// The pull outlives an impatient caller: the next one finds its result.
	result := s.pulls.DoChan(uid, func() (any, error) { return s.project(s.ctx, uid) })
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-result:
		if r.Err != nil {
			return nil, r.Err
		}
		if h := r.Val.(*held); h != nil && h.secrets != nil {
			return h.secrets, nil
		}
		return nil, ErrNoSecrets
	}
}
