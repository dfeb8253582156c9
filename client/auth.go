package client

import (
	"context"
	"net/http"
)

// Login exchanges a name and password for a session; [Client.WithToken] uses its token. IsUnauthorized tells that
// they do not match.
func (c *Client) Login(ctx context.Context, username, password string) (*Session, error) {
	out := new(Session)
	in := Credentials{Username: username, Password: password}
	// A token that is no longer good must not stand in the way of a new one.
	return result(out, c.WithToken("").do(ctx, request{method: http.MethodPost, path: api + "/auth/login", body: in}, out))
}

// Logout ends the session of the client's token.
func (c *Client) Logout(ctx context.Context) error {
	return c.do(ctx, request{method: http.MethodPost, path: api + "/auth/logout"}, nil)
}

// Whoami answers whom the client's token belongs to.
func (c *Client) Whoami(ctx context.Context) (*Identity, error) {
	out := new(Identity)
	return result(out, c.do(ctx, request{method: http.MethodGet, path: api + "/auth/whoami"}, out))
}

// CreateToken makes an API token of a user. Its text is a secret that the server does not show again.
func (c *Client) CreateToken(ctx context.Context, user string, in *APIToken) (*CreatedToken, error) {
	body, err := writable(in)
	if err != nil {
		return nil, err
	}
	path, _ := place(KindToken, user)
	out := new(CreatedToken)
	return result(out, c.do(ctx, request{method: http.MethodPost, path: path, body: body}, out))
}
