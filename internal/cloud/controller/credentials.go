package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"freehold.dev/freehold/internal/cloud/kubeprobe"
	"freehold.dev/freehold/internal/cloud/talos"
	"freehold.dev/freehold/internal/cloud/talos/machineapi"
)

const (
	// credentialsTTL of the client certificates with which machines and Kubernetes APIs are probed.
	credentialsTTL = 2 * time.Hour
	// askAgainAfter bounds how often secrets that are not known are asked for.
	askAgainAfter = time.Second
	// probeUser is the common name that the probes show to Kubernetes.
	probeUser = "freehold:probe"
)

// Secrets gives the secrets of a tenant. An error means that they are not known yet.
type Secrets interface {
	TenantSecrets(ctx context.Context, tenantName string) (*talos.Secrets, error)
}

// Credentials keeps what is made of tenants' secrets: client certificates, and digests of configurations. All of it
// is in memory only, and dropped when the tenant is gone. Certificates are made anew when half of their life is over,
// or when the tenant has other secrets than before (a tenant made again under an old name).
type Credentials struct {
	source Secrets

	mu      sync.Mutex
	tenants map[string]*credentialEntry
}

type credentialEntry struct {
	mu sync.Mutex
	tenantCredentials
	renewAt time.Time
	// asking: the source is being asked; asked is when it last answered, err what.
	asking bool
	asked  time.Time
	err    error
	// configs by node group, as stored.
	configs map[string]wantedConfig
}

type tenantCredentials struct {
	secrets *talos.Secrets
	machine machineapi.Credentials
	kube    kubeprobe.Target
}

// NewCredentials answers an empty cache in front of the source.
func NewCredentials(source Secrets) *Credentials {
	return &Credentials{source: source, tenants: map[string]*credentialEntry{}}
}

func (c *Credentials) entry(tenant string) *credentialEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.tenants[tenant]
	if e == nil {
		e = &credentialEntry{configs: map[string]wantedConfig{}}
		c.tenants[tenant] = e
	}
	return e
}

// known tells whether the tenant's credentials were to be had at some time.
func (c *Credentials) known(tenant string) bool {
	e := c.entry(tenant)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.secrets != nil
}

// forget drops what is known of a tenant.
func (c *Credentials) forget(tenant string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tenants, tenant)
}

// errAsking: another probe is asking for the tenant's secrets, which can take seconds; nobody waits for it.
var errAsking = errors.New("the tenant's secrets are being fetched")

// get answers the tenant's credentials, up to date.
func (c *Credentials) get(ctx context.Context, tenant string) (tenantCredentials, error) {
	e := c.entry(tenant)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.asking && e.secrets == nil:
		return tenantCredentials{}, errAsking
	case e.asking:
		return e.tenantCredentials, nil
	case e.err != nil && time.Since(e.asked) < askAgainAfter:
		return tenantCredentials{}, e.err
	}
	e.asking = true
	e.mu.Unlock()
	s, err := c.source.TenantSecrets(ctx, tenant)
	e.mu.Lock()
	e.asking = false
	if err == nil && (s != e.secrets || time.Now().After(e.renewAt)) {
		err = e.renew(s, time.Now())
	}
	if e.asked, e.err = time.Now(), err; err != nil {
		return tenantCredentials{}, err
	}
	return e.tenantCredentials, nil
}

func (e *credentialEntry) renew(s *talos.Secrets, now time.Time) (err error) {
	m, k := &e.machine, &e.kube
	if m.CA, m.Certificate, m.Key, err = s.ClientCredentials(credentialsTTL); err != nil {
		return err
	}
	if k.CA, k.Certificate, k.Key, err = s.KubernetesCredentials(probeUser, credentialsTTL); err != nil {
		return err
	}
	e.secrets, e.renewAt = s, now.Add(credentialsTTL/2)
	return nil
}

// talos answers credentials for the tenant's machines.
func (c *Credentials) talos(ctx context.Context, tenant string) (machineapi.Credentials, error) {
	e, err := c.get(ctx, tenant)
	return e.machine, err
}
