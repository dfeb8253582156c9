// Package api serves identity over HTTP: login, users, API tokens; and tells every other API who calls.
package api

import (
	"context"
	"net/http"
	"time"

	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/rest"
)

// API of a service.
type API struct {
	service *identity.Service
	origins *http.CrossOriginProtection
}

// New makes the API of a service; its Authenticate, Authorize and Caller belong into every [rest.Config], its
// Register on the API that serves /api/v1.
func New(service *identity.Service) *API {
	return &API{service: service, origins: http.NewCrossOriginProtection()}
}

// Register adds the operations of login, users and API tokens.
func (a *API) Register(api *rest.API) {
	a.registerAuth(api)
	a.registerUsers(api)
	a.registerTokens(api)
}

// Authorize tells whether the caller in ctx has the access. It is for [rest.Config].
func Authorize(ctx context.Context, access rest.Access) error {
	p := identity.FromContext(ctx)
	if p == nil {
		return unauthenticated()
	}
	needed := identity.Role(access)
	if p.Role.Allows(needed) {
		return nil
	}
	return rest.Forbidden("user %q has the role %q; this needs %q", p.User, p.Role, needed)
}

// Caller names the caller in ctx. It is for [rest.Config].
func Caller(ctx context.Context) string {
	if p := identity.FromContext(ctx); p != nil {
		return p.User
	}
	return ""
}

// utc is t without a fraction of a second or a zone, as it is stored.
func utc(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
