package api

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/rest"
)

// CookieName of the console's session.
const CookieName = "freehold_session"

// Authenticate finds out who calls, by bearer token or, from a browser, by cookie. It is for [rest.Config].
func (a *API) Authenticate(r *http.Request) (context.Context, error) {
	token, cookie, err := credential(r)
	if err != nil {
		return nil, err
	}
	if cookie {
		// A browser attaches the cookie by itself, whichever page asks.
		if err := a.sameOrigin(r); err != nil {
			return nil, err
		}
	}
	p, err := a.service.Verify(r.Context(), token)
	if err != nil {
		return nil, mapped(err)
	}
	return identity.NewContext(r.Context(), p), nil
}

// credential takes the bearer token, else the cookie. A header that is there and wrong is not made up for by a cookie.
func credential(r *http.Request) (token string, cookie bool, err error) {
	switch headers := r.Header["Authorization"]; {
	case len(headers) > 1:
		return "", false, rest.Unauthorized("send one Authorization header")
	case len(headers) == 1:
		scheme, token, _ := strings.Cut(headers[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", false, rest.Unauthorized("send the token as: Authorization: Bearer TOKEN")
		}
		return strings.TrimSpace(token), false, nil
	}
	c, err := r.Cookie(CookieName)
	if err != nil || c.Value == "" {
		return "", false, unauthenticated()
	}
	return c.Value, true, nil
}

// sameOrigin: what changes anything by the cookie comes from our own pages, and says so.
func (a *API) sameOrigin(r *http.Request) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return nil
	}
	if r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == "" || a.origins.Check(r) != nil {
		return rest.Forbidden("a change with the session cookie must come from the same origin; programs send the token as: Authorization: Bearer TOKEN")
	}
	return nil
}

type loginInput struct {
	Body client.Credentials
}

type loginOutput struct {
	SetCookie http.Cookie `header:"Set-Cookie"`
	Body      client.Session
}

type logoutOutput struct {
	SetCookie http.Cookie `header:"Set-Cookie"`
}

func (a *API) registerAuth(api *rest.API) {
	rest.Register(api, rest.Operation{Method: http.MethodPost, Path: "/api/v1/auth/login", ID: "login", Tags: []string{"Auth"}, Access: rest.Public,
		MaxBody: 16 << 10, Summary: "Exchange a name and password for a session",
		Description: "The session's token is also set as a cookie for browsers."}, a.login)
	rest.Register(api, rest.Operation{Method: http.MethodPost, Path: "/api/v1/auth/logout", ID: "logout", Tags: []string{"Auth"}, Access: rest.View,
		Summary: "End the session"}, a.logout)
	rest.Register(api, rest.Operation{Method: http.MethodGet, Path: "/api/v1/auth/whoami", ID: "whoami", Tags: []string{"Auth"}, Access: rest.View,
		Summary: "Who the caller is"}, a.whoami)
}

func (a *API) login(ctx context.Context, in *loginInput) (*loginOutput, error) {
	r := rest.Request(ctx)
	if err := a.origins.Check(r); err != nil {
		return nil, rest.Forbidden("a login must come from the same origin")
	}
	login, err := a.service.Login(ctx, in.Body.Username, in.Body.Password, remote(r))
	if err != nil {
		return nil, failedLogin(err)
	}
	cookie := sessionCookie(r, login.Token)
	cookie.Expires = login.ExpiresAt
	return &loginOutput{
		SetCookie: cookie,
		Body:      client.Session{Token: login.Token, ExpiresAt: login.ExpiresAt, User: login.User, Role: string(login.Role)},
	}, nil
}

func (a *API) logout(ctx context.Context, _ *struct{}) (*logoutOutput, error) {
	if err := a.service.Logout(ctx, identity.FromContext(ctx)); err != nil {
		return nil, mapped(err)
	}
	cookie := sessionCookie(rest.Request(ctx), "")
	cookie.MaxAge = -1
	return &logoutOutput{SetCookie: cookie}, nil
}

func (a *API) whoami(ctx context.Context, _ *struct{}) (*struct{ Body client.Identity }, error) {
	p := identity.FromContext(ctx)
	out := client.Identity{User: p.User, Role: string(p.Role), Kind: string(p.Kind), ExpiresAt: p.ExpiresAt}
	if p.Kind == identity.KindToken {
		_, out.Token, _ = strings.Cut(p.TokenID, "/")
	}
	return &struct{ Body client.Identity }{out}, nil
}

func sessionCookie(r *http.Request, value string) http.Cookie {
	return http.Cookie{
		Name: CookieName, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
}

// remote is the address at the other end of the connection.
func remote(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.IPv4Unspecified()
	}
	return addr
}
